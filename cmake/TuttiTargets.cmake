# One folder, one library: tutti_library(), tutti_test(), tutti_program().

# Compiling torch/torch.h takes ten seconds; it is done once, and everything that includes it starts from there.
add_library(tutti_torch_pch OBJECT ${CMAKE_CURRENT_LIST_DIR}/pch.cc)
target_link_libraries(tutti_torch_pch PUBLIC tutti_torch tutti_headers)
target_precompile_headers(tutti_torch_pch PRIVATE <torch/torch.h> <fmt/format.h>)

function(tutti_use_torch target)
  target_link_libraries(${target} PUBLIC tutti_torch)
  target_precompile_headers(${target} REUSE_FROM tutti_torch_pch)
endfunction()

# tutti_library(NAME [TORCH] SOURCES ... [DEPENDS ...]): the library tutti_NAME of the room NAME.
function(tutti_library name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPENDS" ${ARGN})
  set(target tutti_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PUBLIC tutti_headers Threads::Threads ${arg_DEPENDS})
  if(arg_TORCH)
    tutti_use_torch(${target})
  endif()
endfunction()

# tutti_program(NAME [TORCH] SOURCES ... [DEPENDS ...]): a binary in bin/.
function(tutti_program name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE tutti_headers ${arg_DEPENDS})
  if(arg_TORCH)
    tutti_use_torch(${name})
  endif()
endfunction()

# tutti_test(NAME [TORCH] [LABEL fast|slow|gpu] [TIMEOUT s] SOURCES ... [DEPENDS ...] [ENVIRONMENT ...]): one ctest entry.
function(tutti_test name)
  if(NOT TUTTI_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "TORCH" "LABEL;TIMEOUT" "SOURCES;DEPENDS;ENVIRONMENT" ${ARGN})
  if(NOT arg_LABEL)
    set(arg_LABEL fast)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE tutti_headers ${arg_DEPENDS} GTest::gmock GTest::gtest GTest::gtest_main)
  if(arg_TORCH)
    tutti_use_torch(${name})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # Kernels sum in an order that depends on the number of threads; tests say themselves when they want more than one.
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "OMP_NUM_THREADS=1;TUTTI_TEST_BIN=${CMAKE_BINARY_DIR}/bin;${arg_ENVIRONMENT}")
endfunction()

if(TUTTI_TESTS)
  enable_testing()
endif()
