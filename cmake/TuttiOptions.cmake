# The options, and the flags with which every target is compiled.

option(TUTTI_COMM_ONLY "Only libtutti_comm and the command, without LibTorch: what the Python package needs" OFF)
if(PROJECT_IS_TOP_LEVEL AND NOT TUTTI_COMM_ONLY)
  set(tutti_all ON)
else()
  set(tutti_all OFF)
endif()
option(TUTTI_TESTS "Build the tests" ${tutti_all})
option(TUTTI_BENCH "Build the benchmarks" ${tutti_all})
if(NOT PROJECT_IS_TOP_LEVEL AND (TUTTI_TESTS OR TUTTI_BENCH))
  message(FATAL_ERROR "TUTTI_TESTS and TUTTI_BENCH need the examples, which are not built inside another project. "
    "Switch both off here, and configure ${PROJECT_SOURCE_DIR} by itself for the tests and benchmarks.")
endif()
option(TUTTI_WERROR "Warnings are errors (CI switches it on)" OFF)
set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them: 'address,undefined', 'thread', or with Clang 'fuzzer-no-link,address'")
# AUTO uses the part if it is found, ON makes it an error if the part is not found, OFF leaves it out.
set(TUTTI_WITH_CUDA AUTO CACHE STRING "LibTorch's CUDA half: AUTO, ON or OFF")
set(TUTTI_WITH_ZLIB AUTO CACHE STRING "Read .gz files: AUTO, ON or OFF")
set(TUTTI_WITH_PARQUET AUTO CACHE STRING "Tables of Parquet, by Arrow: AUTO, ON or OFF")
set(TUTTI_WITH_GLOO AUTO CACHE STRING "The Gloo inside LibTorch, for benchmarks and tests: AUTO, ON or OFF")
set(TUTTI_WITH_NCCL AUTO CACHE STRING "NCCL between GPUs, by the c10d inside LibTorch: AUTO, ON or OFF")
set(TUTTI_WITH_GRPC AUTO CACHE STRING "A peer that the benchmarks measure beside parameter servers: AUTO, ON or OFF")
set(TUTTI_WITH_MPI AUTO CACHE STRING "Open MPI between machines: AUTO, ON or OFF")

# Variables that are set here without CACHE, and options that are added, apply only to Tutti's folders. A project that
# adds Tutti as a subdirectory keeps its settings; tutti_library() passes on what it needs to use the library.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
# Imported targets that the library links (Threads::Threads, MPI::MPI_C, ZLIB::ZLIB) must be visible where a program links it.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
get_property(tutti_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT tutti_multi_config)
  if(PROJECT_IS_TOP_LEVEL)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  else()
    set(CMAKE_BUILD_TYPE Release) # for Tutti's own folders
  endif()
endif()
if(NOT PROJECT_IS_TOP_LEVEL)
  # Turns off settings of the surrounding project for which Tutti's sources are not written: TUTTI_JOIN joins them already.
  set(CMAKE_UNITY_BUILD OFF)
  set(CMAKE_CXX_CLANG_TIDY)
endif()
# -g1 keeps function names and lines for perf and for sanitizer reports at a third of the size.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -fno-omit-frame-pointer")
# The library is optimised, but its tests need not be: that saves a fifth of their compile time. Later versions of GCC do
# not accept a header that was precompiled at another optimisation level.
set(TUTTI_TEST_OPTIONS)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(TUTTI_TEST_OPTIONS $<$<CONFIG:Release>:-O1> $<$<CONFIG:Release>:-g0>)
endif()

# With contraction the compiler may fuse a*b+c in one place and not in another, so that bits that must agree would differ.
add_compile_options(-ffp-contract=off)
# -fPIC for all targets: libraries and programs use the same precompiled header.
add_compile_options(-Wall -Wextra -fPIC)
if(NOT PROJECT_IS_TOP_LEVEL)
  # Users of Tutti should not see warnings about Tutti's sources, in particular if their project makes warnings errors.
  add_compile_options(-w)
endif()
# With LibTorch's headers each compilation instantiates some 15,000 templates for 5 to 10 seconds, however short the source is. Joined
# sources do so once.
set(TUTTI_JOIN 24 CACHE STRING "Compile so many sources of a target as one; 0: each by itself")
if(TUTTI_JOIN GREATER 1 AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC collects garbage less often: an eighth of the time, for a twentieth more memory.
  add_compile_options("SHELL:--param ggc-min-expand=200")
endif()
if(TUTTI_WERROR)
  add_compile_options(-Werror)
endif()
if(TUTTI_SANITIZE)
  add_compile_options(-fsanitize=${TUTTI_SANITIZE} -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Its documentation says that sanitizers cause false warnings of this kind.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  if(TUTTI_SANITIZE MATCHES undefined)
    # This check needs type information that LibTorch does not export.
    add_compile_options(-fno-sanitize=vptr)
  endif()
  if(TUTTI_SANITIZE STREQUAL thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # LibTorch's headers use memory fences, which this sanitizer does not support.
    add_compile_options(-Wno-tsan)
  endif()
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
