# tutti_test(), and the executables that several tests share. Included by the top folder.

if(TUTTI_TESTS)
  enable_testing()

  # The main() of the tests. It gets the folders of the programs, and of the pages and scripts that tests compare.
  add_library(tutti_test_main STATIC ${PROJECT_SOURCE_DIR}/tutti/base/test_main.cc ${PROJECT_SOURCE_DIR}/tutti/base/test_run.cc)
  target_compile_definitions(tutti_test_main
    PRIVATE TUTTI_TEST_BIN="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}" TUTTI_TEST_SOURCES="${PROJECT_SOURCE_DIR}")
  target_include_directories(tutti_test_main PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(tutti_test_main PUBLIC tutti_headers GTest::gmock GTest::gtest Threads::Threads)
  target_precompile_headers(tutti_test_main REUSE_FROM tutti_pch_tests)

  # Builds everything that a set of tests needs: ninja tests_fast.
  foreach(label fast slow soak gpu tsan)
    add_custom_target(tests_${label})
  endforeach()
endif()

# tutti_test_executable(NAME [TORCH|TORCH_NN]): an executable of tests, whose sources come from tutti_test().
function(tutti_test_executable name)
  if(NOT TUTTI_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "TORCH;TORCH_NN" "" "" ${ARGN})
  add_executable(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  target_compile_options(${name} PRIVATE ${TUTTI_TEST_OPTIONS})
  target_link_libraries(${name} PRIVATE tutti_test_main)
  tutti_use_torch(${name})
  if(NOT arg_TORCH AND NOT arg_TORCH_NN)
    target_precompile_headers(${name} REUSE_FROM tutti_pch_tests)
  endif()
  tutti_join(${name})
endfunction()

# tutti_test(NAME [IN EXECUTABLE] [TORCH|TORCH_NN] [LABEL fast|slow|soak|gpu] [SOAK] [TSAN] [SHARDS N] [LOCK RESOURCE]
#   SOURCES ... [DEPENDS LIBRARY...] [NEEDS PROGRAM...] [ENVIRONMENT ...])
# is the entry NAME of ctest, which runs the tests in SOURCES (in those named ..._test.cc, if IN is given).
#   IN          the executable that contains them. Without it they get a separate executable, which has to be linked.
#   SOAK        suites whose names contain Soak are run by a second entry, NAME_soak, with the label soak.
#   TSAN        also belongs to the tests that ./dev test tsan runs with the thread sanitizer.
#   SHARDS      divides NAME into NAME.1 to NAME.N, for tests that take long and mostly wait. They may not start programs
#               of GoogleTest, since these would also run only a part of their tests.
#   LOCK        entries with the same lock run one after the other.
#   NEEDS       programs that the tests start.
function(tutti_test name)
  cmake_parse_arguments(arg "TORCH;TORCH_NN;SOAK;TSAN" "IN;LABEL;SHARDS;LOCK" "SOURCES;DEPENDS;NEEDS;ENVIRONMENT" ${ARGN})
  if(NOT TUTTI_TESTS)
    return()
  endif()
  if(NOT arg_LABEL)
    set(arg_LABEL fast)
  endif()

  list(TRANSFORM arg_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  if(arg_IN)
    set(executable ${arg_IN})
    set(files ${arg_SOURCES})
    list(FILTER files INCLUDE REGEX "_test\\.cc$")
    string(REPLACE "${PROJECT_SOURCE_DIR}/" "" files "${files}")
    string(REPLACE ";" "," files "${files}")
    set(command ${executable} --of=${files})
    add_custom_target(${name} DEPENDS ${executable})
  else()
    set(executable ${name})
    set(command ${name})
    set(torch)
    if(arg_TORCH_NN)
      set(torch TORCH_NN)
    elseif(arg_TORCH)
      set(torch TORCH)
    endif()
    tutti_test_executable(${name} ${torch})
  endif()
  target_sources(${executable} PRIVATE ${arg_SOURCES})
  target_link_libraries(${executable} PRIVATE ${arg_DEPENDS})
  if(arg_NEEDS)
    add_dependencies(${name} ${arg_NEEDS})
  endif()
  add_dependencies(tests_${arg_LABEL} ${name})
  if(arg_TSAN)
    add_dependencies(tests_tsan ${name})
  endif()

  if(arg_SOAK)
    tutti_test_entry(${name}_soak soak ${command} --soak=only)
    add_dependencies(tests_soak ${name})
    list(APPEND command --soak=none)
  endif()
  if(NOT arg_SHARDS)
    tutti_test_entry(${name} ${arg_LABEL} ${command})
    return()
  endif()
  set(environment ${arg_ENVIRONMENT})
  foreach(shard RANGE 1 ${arg_SHARDS})
    math(EXPR index "${shard} - 1")
    set(arg_ENVIRONMENT ${environment} GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${index})
    tutti_test_entry(${name}.${shard} ${arg_LABEL} ${command})
  endforeach()
endfunction()

# An entry of ctest with the arguments of the tutti_test() that calls this.
function(tutti_test_entry name label)
  add_test(NAME ${name} COMMAND ${ARGN})
  set(labels ${label})
  if(arg_TSAN AND NOT label STREQUAL soak)
    list(APPEND labels tsan)
  endif()
  # A test that takes longer hangs.
  set(timeout_fast 300)
  set(timeout_gpu 300)
  set(timeout_slow 1200)
  set(timeout_soak 1800)
  set(timeout ${timeout_${label}})
  # Keeps the quarantine of freed memory small, since some tests measure how much memory they take.
  set(sanitizer)
  if(TUTTI_SANITIZE)
    math(EXPR timeout "5 * ${timeout}")
    set(sanitizer "ASAN_OPTIONS=quarantine_size_mb=16"
      "TSAN_OPTIONS=ignore_noninstrumented_modules=1")
  endif()
  # Tests that need more than one thread set it themselves. Threads that wait do not take the cores of other tests.
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout}
    ENVIRONMENT "OMP_NUM_THREADS=1;OMP_WAIT_POLICY=passive;${arg_ENVIRONMENT};${sanitizer}")
  # The order until ctest has measured durations: first tests with a lock, then tests that take long.
  if(label STREQUAL slow)
    set_tests_properties(${name} PROPERTIES COST 10)
  endif()
  if(arg_LOCK)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK ${arg_LOCK} COST 100)
  endif()
endfunction()
