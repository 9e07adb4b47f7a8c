# LibTorch, and what is used only with it. Included by TuttiDependencies.cmake.

# --- LibTorch: Debian's, a downloaded libtorch, or the one inside a PyTorch installation (CMAKE_PREFIX_PATH).
# TorchConfig.cmake is not used: in a CUDA build of LibTorch it requires a CUDA toolkit, which Tutti does not need.
find_path(TUTTI_TORCH_INCLUDE torch/torch.h PATH_SUFFIXES torch/csrc/api/include
          include/torch/csrc/api/include REQUIRED)
find_path(TUTTI_TORCH_ROOT_INCLUDE ATen/ATen.h PATH_SUFFIXES include REQUIRED)
find_library(TUTTI_TORCH_CPU_LIBRARY torch_cpu REQUIRED)
find_library(TUTTI_C10_LIBRARY c10 REQUIRED)
get_filename_component(tutti_torch_lib_dir ${TUTTI_TORCH_CPU_LIBRARY} DIRECTORY)
find_library(TUTTI_TORCH_CUDA_LIBRARY torch_cuda PATHS ${tutti_torch_lib_dir} NO_DEFAULT_PATH)

# torch/version.h has the numbers; in later versions, a header that it includes.
find_file(TUTTI_TORCH_VERSION_HEADER torch/headeronly/version.h PATHS ${TUTTI_TORCH_ROOT_INCLUDE} NO_DEFAULT_PATH)
if(NOT TUTTI_TORCH_VERSION_HEADER)
  set(TUTTI_TORCH_VERSION_HEADER ${TUTTI_TORCH_INCLUDE}/torch/version.h)
endif()
file(STRINGS ${TUTTI_TORCH_VERSION_HEADER} tutti_torch_version REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX REPLACE "[^0-9;]" "" tutti_torch_version "${tutti_torch_version}")
string(REPLACE ";" "." TUTTI_TORCH_VERSION "${tutti_torch_version}")

add_library(tutti_torch INTERFACE)
target_include_directories(tutti_torch SYSTEM INTERFACE ${TUTTI_TORCH_ROOT_INCLUDE} ${TUTTI_TORCH_INCLUDE})
target_link_libraries(tutti_torch INTERFACE ${TUTTI_TORCH_CPU_LIBRARY} ${TUTTI_C10_LIBRARY})
message(STATUS "LibTorch ${TUTTI_TORCH_VERSION}: ${TUTTI_TORCH_CPU_LIBRARY}")
# LibTorch's own headers use it too.
target_link_libraries(tutti_torch INTERFACE tutti_fmt)

# Highway: vector instructions, chosen at run time.
find_path(TUTTI_HWY_INCLUDE hwy/highway.h REQUIRED)
find_library(TUTTI_HWY_LIBRARY hwy REQUIRED)
add_library(tutti_hwy INTERFACE)
target_include_directories(tutti_hwy SYSTEM INTERFACE ${TUTTI_HWY_INCLUDE})
target_link_libraries(tutti_hwy INTERFACE ${TUTTI_HWY_LIBRARY})
# Each loop is compiled for AVX-512, AVX2 with FMA, SSE4 and scalars, and on ARM for NEON.
target_compile_definitions(tutti_hwy INTERFACE HWY_SHARED_DEFINE
  "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")

# LibTorch's CUDA libraries are used if they can be loaded: the libraries that they need may be missing.
if(TUTTI_TORCH_CUDA_LIBRARY)
  # A check can use only imported targets, so this is not the target.
  set(CMAKE_REQUIRED_LIBRARIES -Wl,--no-as-needed ${TUTTI_TORCH_CUDA_LIBRARY} -Wl,--as-needed
      ${TUTTI_TORCH_CPU_LIBRARY} ${TUTTI_C10_LIBRARY})
  check_cxx_source_runs("int main() { return 0; }" TUTTI_TORCH_CUDA_LOADS)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()
tutti_optional(CUDA "${TUTTI_TORCH_CUDA_LOADS}")
if(TUTTI_HAVE_CUDA)
  # No symbol refers to this library: it registers its kernels when it is loaded.
  target_link_libraries(tutti_torch INTERFACE -Wl,--no-as-needed ${TUTTI_TORCH_CUDA_LIBRARY} -Wl,--as-needed)
endif()

find_package(ZLIB QUIET)
tutti_optional(ZLIB "${ZLIB_FOUND}")

# Arrow's CMake files are not used, since its Python wheel, which scripts/arrow downloads, does not have them.
find_path(TUTTI_PARQUET_INCLUDE parquet/arrow/reader.h)
find_library(TUTTI_PARQUET_LIBRARY parquet)
find_library(TUTTI_ARROW_LIBRARY arrow)
if(TUTTI_PARQUET_INCLUDE AND TUTTI_PARQUET_LIBRARY AND TUTTI_ARROW_LIBRARY)
  add_library(tutti_parquet INTERFACE)
  target_include_directories(tutti_parquet SYSTEM INTERFACE ${TUTTI_PARQUET_INCLUDE})
  target_link_libraries(tutti_parquet INTERFACE ${TUTTI_PARQUET_LIBRARY} ${TUTTI_ARROW_LIBRARY})
  set(CMAKE_REQUIRED_INCLUDES ${TUTTI_PARQUET_INCLUDE})
  set(CMAKE_REQUIRED_LIBRARIES ${TUTTI_PARQUET_LIBRARY} ${TUTTI_ARROW_LIBRARY})
  check_cxx_source_compiles("
    #include <arrow/util/config.h>
    #include <parquet/arrow/reader.h>
    static_assert(ARROW_VERSION_MAJOR >= 21);
    int main() { return 0; }" TUTTI_PARQUET_COMPILES)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(NOT TUTTI_PARQUET_COMPILES)
    message(STATUS "Parquet: ${TUTTI_PARQUET_LIBRARY} cannot be used; Arrow 21 or later can")
  endif()
endif()
tutti_optional(PARQUET "${TUTTI_PARQUET_COMPILES}")

# Gloo is inside LibTorch, but its headers are not. Only headers are needed: nothing is linked.
find_path(TUTTI_GLOO_INCLUDE gloo/context.h PATH_SUFFIXES include)
tutti_optional(GLOO "${TUTTI_GLOO_INCLUDE}")
if(TUTTI_HAVE_GLOO)
  add_library(tutti_gloo INTERFACE)
  target_include_directories(tutti_gloo SYSTEM INTERFACE ${TUTTI_GLOO_INCLUDE})
endif()

# NCCL is inside LibTorch's CUDA libraries. c10d's header for it includes the headers of NCCL and CUDA, which are beside
# PyTorch (site-packages/nvidia). Only headers are needed, no CUDA compiler.
if(TUTTI_HAVE_CUDA AND NOT TUTTI_WITH_NCCL STREQUAL "OFF")
  set(tutti_nvidia_dirs)
  foreach(prefix ${TUTTI_TORCH_ROOT_INCLUDE}/../.. ${CMAKE_PREFIX_PATH})
    file(GLOB dirs ${prefix}/nvidia/*/include)
    list(APPEND tutti_nvidia_dirs ${dirs})
  endforeach()
  set(tutti_nccl_dirs)
  set(tutti_nccl_missing)
  foreach(header nccl.h cuda_runtime_api.h crt/host_defines.h nv/target cublas_v2.h cusparse.h cusolverDn.h)
    string(MAKE_C_IDENTIFIER "TUTTI_INCLUDE_${header}" variable)
    find_path(${variable} ${header} HINTS ${tutti_nvidia_dirs} /usr/local/cuda/include PATH_SUFFIXES cccl)
    if(${variable})
      list(APPEND tutti_nccl_dirs ${${variable}})
    else()
      list(APPEND tutti_nccl_missing ${header})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES tutti_nccl_dirs)
  find_library(TUTTI_C10_CUDA_LIBRARY c10_cuda PATHS ${tutti_torch_lib_dir} NO_DEFAULT_PATH)
  if(tutti_nccl_missing)
    message(STATUS "NCCL: without ${tutti_nccl_missing}; docs/libtorch.md says where they are")
  else()
    set(CMAKE_REQUIRED_INCLUDES ${TUTTI_TORCH_ROOT_INCLUDE} ${TUTTI_TORCH_INCLUDE} ${tutti_nccl_dirs})
    set(CMAKE_REQUIRED_DEFINITIONS -DUSE_C10D_NCCL)
    set(CMAKE_REQUIRED_LIBRARIES -Wl,--no-as-needed ${TUTTI_TORCH_CUDA_LIBRARY} -Wl,--as-needed
        ${TUTTI_TORCH_CPU_LIBRARY} ${TUTTI_C10_LIBRARY} ${TUTTI_C10_CUDA_LIBRARY})
    check_cxx_source_compiles("
      #include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
      void end(c10d::ProcessGroupNCCL& group) { group.abort(); group.shutdown(); }
      int main() { auto o = c10d::ProcessGroupNCCL::Options::create(); o->config.blocking = 0; return 0; }"
      TUTTI_NCCL_COMPILES)
    unset(CMAKE_REQUIRED_INCLUDES)
    unset(CMAKE_REQUIRED_DEFINITIONS)
    unset(CMAKE_REQUIRED_LIBRARIES)
  endif()
endif()
tutti_optional(NCCL "${TUTTI_NCCL_COMPILES}")
if(TUTTI_HAVE_NCCL)
  add_library(tutti_nccl INTERFACE)
  target_include_directories(tutti_nccl SYSTEM INTERFACE ${tutti_nccl_dirs})
  target_link_libraries(tutti_nccl INTERFACE ${TUTTI_C10_CUDA_LIBRARY})
endif()

# gRPC's CMake files are not used: they require the development packages of all libraries that gRPC is made of. The headers
# use one library of Abseil.
find_path(TUTTI_GRPC_INCLUDE grpcpp/grpcpp.h)
set(tutti_grpc_found ${TUTTI_GRPC_INCLUDE})
set(tutti_grpc_libraries)
foreach(library grpc++ grpc gpr absl_synchronization)
  string(MAKE_C_IDENTIFIER "TUTTI_LIBRARY_${library}" variable)
  find_library(${variable} ${library})
  list(APPEND tutti_grpc_libraries ${${variable}})
  if(NOT ${variable})
    set(tutti_grpc_found OFF)
  endif()
endforeach()
tutti_optional(GRPC "${tutti_grpc_found}")
if(TUTTI_HAVE_GRPC)
  add_library(tutti_grpc INTERFACE)
  target_include_directories(tutti_grpc SYSTEM INTERFACE ${TUTTI_GRPC_INCLUDE})
  target_link_libraries(tutti_grpc INTERFACE ${tutti_grpc_libraries})
endif()
