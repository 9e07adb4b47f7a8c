# What can be switched, and the flags that every target is compiled with.

option(TUTTI_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TUTTI_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
if(NOT PROJECT_IS_TOP_LEVEL AND (TUTTI_TESTS OR TUTTI_BENCH))
  message(FATAL_ERROR "TUTTI_TESTS and TUTTI_BENCH need the examples, which are not built inside another project. "
    "Switch both off here, and configure ${PROJECT_SOURCE_DIR} by itself for the tests and benchmarks.")
endif()
option(TUTTI_WERROR "Warnings are errors (CI switches it on)" OFF)
set(TUTTI_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them: 'address,undefined', 'thread', or with Clang 'fuzzer-no-link,address'")
# AUTO uses the part where it is found, ON stops the configure where it is not, OFF leaves it out.
set(TUTTI_WITH_CUDA AUTO CACHE STRING "LibTorch's CUDA half: AUTO, ON or OFF")
set(TUTTI_WITH_ZLIB AUTO CACHE STRING "Read .gz files: AUTO, ON or OFF")
set(TUTTI_WITH_PARQUET AUTO CACHE STRING "Tables of Parquet, by Arrow: AUTO, ON or OFF")
set(TUTTI_WITH_GLOO AUTO CACHE STRING "The Gloo inside LibTorch, for benchmarks and tests: AUTO, ON or OFF")
set(TUTTI_WITH_NCCL AUTO CACHE STRING "NCCL between GPUs, by the c10d inside LibTorch: AUTO, ON or OFF")
set(TUTTI_WITH_GRPC AUTO CACHE STRING "A peer that the benchmarks measure beside parameter servers: AUTO, ON or OFF")
set(TUTTI_WITH_MPI AUTO CACHE STRING "Open MPI between machines: AUTO, ON or OFF")

# All that is set here without CACHE, and all options that are added, apply to Tutti's own folders alone. A project that
# adds Tutti as a subdirectory keeps its settings; tutti_library() gives it what it needs to use the library.
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
  # Settings of the surrounding project that Tutti's sources are not written for: TUTTI_JOIN joins them already.
  set(CMAKE_UNITY_BUILD OFF)
  set(CMAKE_CXX_CLANG_TIDY)
endif()
# -g1 keeps function names and lines for perf and for sanitizer reports at a third of the size.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -fno-omit-frame-pointer")
# What is tested is optimised, the tests need not be: a fifth of their compile time. A later GCC takes no header that was
# precompiled at another level.
set(TUTTI_TEST_OPTIONS)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(TUTTI_TEST_OPTIONS $<$<CONFIG:Release>:-O1> $<$<CONFIG:Release>:-g0>)
endif()

# Contraction would let the compiler fuse a*b+c where it likes; where bits must agree it may not.
add_compile_options(-ffp-contract=off)
# -fPIC for all alike: the precompiled header serves libraries and programs.
add_compile_options(-Wall -Wextra -fPIC)
if(NOT PROJECT_IS_TOP_LEVEL)
  # Warnings about Tutti are not the user's business, least of all where the surrounding project makes them errors.
  add_compile_options(-w)
endif()
# With LibTorch's headers each compilation instantiates some 15,000 templates for 5 to 10 seconds, however short the source is. Joined
# sources do so once.
set(TUTTI_JOIN 24 CACHE STRING "Compile so many sources of a target as one; 0: each by itself")
if(TUTTI_JOIN GREATER 1 AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(-Wno-subobject-linkage)
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
    # This check reads type information of LibTorch that LibTorch does not export.
    add_compile_options(-fno-sanitize=vptr)
  endif()
  if(TUTTI_SANITIZE STREQUAL thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # LibTorch's headers have fences, which this sanitizer does not know.
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
