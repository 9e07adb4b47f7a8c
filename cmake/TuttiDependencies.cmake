# Tutti's dependencies. Each becomes one imported target; no other file than this and TuttiTorch.cmake looks for a library.
include(CheckCXXSourceCompiles)
include(CheckCXXSourceRuns)

# --- Header-only: fmt, CLI11, nlohmann-json, xxHash.
foreach(dependency "fmt/core.h" "CLI/CLI.hpp" "nlohmann/json.hpp" "xxhash.h")
  string(MAKE_C_IDENTIFIER "TUTTI_INCLUDE_${dependency}" variable)
  find_path(${variable} ${dependency} REQUIRED)
  list(APPEND tutti_header_dirs ${${variable}})
endforeach()
list(REMOVE_DUPLICATES tutti_header_dirs)
add_library(tutti_headers INTERFACE)
target_include_directories(tutti_headers SYSTEM INTERFACE ${tutti_header_dirs})

# fmt as a library, if there is one that fits the headers: header-only, fmt takes four seconds of every compilation.
find_library(TUTTI_FMT_LIBRARY fmt)
if(TUTTI_FMT_LIBRARY)
  set(CMAKE_REQUIRED_INCLUDES ${tutti_header_dirs})
  set(CMAKE_REQUIRED_LIBRARIES ${TUTTI_FMT_LIBRARY})
  check_cxx_source_compiles("#include <fmt/format.h>
    int main(int count, char**) { return fmt::format(\"{}\", count).empty(); }" TUTTI_FMT_LIBRARY_FITS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()
add_library(tutti_fmt INTERFACE)
if(TUTTI_FMT_LIBRARY_FITS)
  target_link_libraries(tutti_fmt INTERFACE ${TUTTI_FMT_LIBRARY})
else()
  # fmt 12 has fmt::format() in fmt/core.h only with this definition.
  target_compile_definitions(tutti_fmt INTERFACE FMT_HEADER_ONLY FMT_DEPRECATED_HEAVY_CORE)
endif()
target_link_libraries(tutti_headers INTERFACE tutti_fmt)

find_package(Threads REQUIRED)
# libcrypto: SHA-256 and the proofs of the secret.
find_package(OpenSSL REQUIRED)

# --- Optional parts. Each is a source file or its stub and never an #ifdef, so that both can be read and tested as a whole.
function(tutti_optional name found)
  if(TUTTI_WITH_${name} STREQUAL "OFF")
    set(use OFF)
  elseif(found)
    set(use ON)
  elseif(TUTTI_WITH_${name} STREQUAL "ON")
    message(FATAL_ERROR "TUTTI_WITH_${name}=ON, but it was not found. Install it (packages.txt) or set AUTO.")
  else()
    set(use OFF)
  endif()
  set(TUTTI_HAVE_${name} ${use} PARENT_SCOPE)
  message(STATUS "${name}: ${use}")
endfunction()

if(NOT TUTTI_WITH_MPI STREQUAL "OFF")
  # MPI's C interface: the C++ interface would link bindings that are not used.
  enable_language(C)
  find_package(MPI QUIET COMPONENTS C)
endif()
tutti_optional(MPI "${MPI_C_FOUND}")
if(TUTTI_HAVE_MPI)
  add_library(tutti_mpi INTERFACE)
  target_link_libraries(tutti_mpi INTERFACE MPI::MPI_C)
  target_compile_definitions(tutti_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
endif()

if(NOT TUTTI_COMM_ONLY)
  include(TuttiTorch)
endif()

if(TUTTI_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    # Without a package, the sources of Debian's googletest package are used (scripts/bring-along).
    find_path(TUTTI_GTEST_SOURCE googletest/include/gtest/gtest.h HINTS ${CMAKE_PREFIX_PATH}
              PATH_SUFFIXES src/googletest REQUIRED)
    set(INSTALL_GTEST OFF)
    add_subdirectory(${TUTTI_GTEST_SOURCE} ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
    if(NOT TARGET GTest::gmock)
      add_library(GTest::gmock ALIAS gmock)
    endif()
  endif()
endif()
