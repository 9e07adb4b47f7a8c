# What can be switched, and the flags that every target is compiled with.

option(TUTTI_TESTS "Build the tests" ON)
option(TUTTI_BENCH "Build the benchmarks" ON)
option(TUTTI_WERROR "Warnings are errors (CI switches it on)" OFF)
set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them: 'address,undefined' or 'thread'")
# AUTO uses the part where it is found, ON stops the configure where it is not, OFF leaves it out.
set(TUTTI_WITH_CUDA AUTO CACHE STRING "LibTorch's CUDA half: AUTO, ON or OFF")
set(TUTTI_WITH_ZLIB AUTO CACHE STRING "Read .gz files: AUTO, ON or OFF")
set(TUTTI_WITH_PARQUET AUTO CACHE STRING "Tables of Parquet, by Arrow: AUTO, ON or OFF")
set(TUTTI_WITH_GLOO AUTO CACHE STRING "TCP between machines, by the Gloo inside LibTorch: AUTO, ON or OFF")
set(TUTTI_WITH_NCCL AUTO CACHE STRING "NCCL between GPUs, by the c10d inside LibTorch: AUTO, ON or OFF")
set(TUTTI_WITH_GRPC AUTO CACHE STRING "Parameter servers and remote workers, over gRPC: AUTO, ON or OFF")
set(TUTTI_WITH_MPI AUTO CACHE STRING "Open MPI between machines: AUTO, ON or OFF")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -g1 keeps function names and lines for perf and for sanitizer reports at a third of the size.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -fno-omit-frame-pointer")
# What is tested is optimised, the tests need not be: a fifth of their compile time. A later GCC takes no header that was
# precompiled at another level.
set(TUTTI_TEST_OPTIONS)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(TUTTI_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)
endif()

# Contraction would let the compiler fuse a*b+c where it likes; where bits must agree it may not (DESIGN 3).
add_compile_options(-ffp-contract=off)
# -fPIC for all alike: the precompiled header serves libraries and programs.
add_compile_options(-Wall -Wextra -fPIC)
# Reading LibTorch's headers takes four seconds of each compilation. To the compiler a source is then something included.
set(TUTTI_JOIN 0 CACHE STRING "Compile so many sources of a target as one (the presets: 8)")
if(TUTTI_JOIN GREATER 1)
  add_compile_options(-Wno-subobject-linkage)
endif()
if(TUTTI_WERROR)
  add_compile_options(-Werror)
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TUTTI_SANITIZE})
endif()

include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=mold TUTTI_MOLD_WORKS)
if(TUTTI_MOLD_WORKS)
  add_link_options(-fuse-ld=mold)
endif()

find_program(TUTTI_CCACHE ccache)
if(TUTTI_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/scripts/compile ${PROJECT_SOURCE_DIR} ${TUTTI_CCACHE})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(-fpch-preprocess)
endif()
