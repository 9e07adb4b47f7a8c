# One folder, one library: tutti_library(), tutti_program(). For tests, see TuttiTests.cmake.

# Headers that are slow to compile are precompiled: only tensors for the library (TORCH), all of torch/torch.h for targets
# that build networks (TORCH_NN; GCC instantiates its templates again in every file, which takes four seconds), and the
# test framework for targets without tensors.
function(tutti_precompile name)
  add_library(tutti_pch_${name} OBJECT ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/pch.cc)
  target_link_libraries(tutti_pch_${name} PUBLIC tutti_headers)
  target_precompile_headers(tutti_pch_${name} PRIVATE ${ARGN})
endfunction()

if(NOT TUTTI_COMM_ONLY)
  set(tutti_tensor_headers <torch/types.h> <torch/utils.h> <torch/nn/module.h> <torch/nn/pimpl.h> <fmt/format.h>
      <nlohmann/json.hpp>)
  tutti_precompile(torch ${tutti_tensor_headers})
  tutti_precompile(torch_nn <torch/torch.h> <fmt/format.h> <nlohmann/json.hpp>)
  target_link_libraries(tutti_pch_torch PUBLIC tutti_torch)
  target_link_libraries(tutti_pch_torch_nn PUBLIC tutti_torch)
endif()
if(TUTTI_TESTS)
  tutti_precompile(tests <gmock/gmock.h> <fmt/format.h> <nlohmann/json.hpp>)
  target_link_libraries(tutti_pch_tests PUBLIC GTest::gmock GTest::gtest Threads::Threads)
endif()

# Links the target to LibTorch and sets its precompiled header, as `arg_TORCH` or `arg_TORCH_NN` says.
macro(tutti_use_torch target)
  if(arg_TORCH OR arg_TORCH_NN)
    target_link_libraries(${target} PUBLIC tutti_torch)
    if(arg_TORCH_NN)
      target_precompile_headers(${target} REUSE_FROM tutti_pch_torch_nn)
    else()
      target_precompile_headers(${target} REUSE_FROM tutti_pch_torch)
    endif()
  endif()
endmacro()

# With TUTTI_JOIN, joins up to that many sources of the target into one after all folders have added their sources, so that
# shared headers are read once. Sources with individual flags or the property TUTTI_ALONE are not joined. CMake's
# UNITY_BUILD does the same but names the sources by the path of the clone, so that ccache could not use the results of
# another clone.
function(tutti_join target)
  if(TUTTI_JOIN GREATER 1)
    cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY [[${PROJECT_SOURCE_DIR}]] CALL tutti_join_now ${target})")
  endif()
endfunction()

function(tutti_join_now target)
  set(apart)
  set(together)
  get_target_property(sources ${target} SOURCES)
  get_target_property(source_dir ${target} SOURCE_DIR)
  get_target_property(binary_dir ${target} BINARY_DIR)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${source_dir} NORMALIZE)
    get_source_file_property(options ${source} TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} TARGET_DIRECTORY ${target} COMPILE_DEFINITIONS)
    get_source_file_property(alone ${source} TARGET_DIRECTORY ${target} TUTTI_ALONE)
    if(options OR definitions OR alone)
      list(APPEND apart ${source})
    else()
      list(APPEND together ${source})
    endif()
  endforeach()

  list(LENGTH together count)
  math(EXPR parts "(${count} + ${TUTTI_JOIN} - 1) / ${TUTTI_JOIN}")
  if(parts EQUAL count)
    return()
  endif()
  math(EXPR size "(${count} + ${parts} - 1) / ${parts}") # all parts have nearly the same size
  math(EXPR last "${count} - 1")
  foreach(begin RANGE 0 ${last} ${size})
    list(SUBLIST together ${begin} ${size} sources)
    set(text)
    foreach(source IN LISTS sources)
      file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
      string(APPEND text "#include \"${path}\"\n")
    endforeach()
    set(joined ${binary_dir}/${target}/joined_${begin}.cc)
    file(CONFIGURE OUTPUT ${joined} CONTENT "${text}" @ONLY)
    list(APPEND apart ${joined})
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${apart}")
endfunction()

# Libraries below this folder are installed, as parts of libtutti.so (TuttiInstall.cmake).
set(tutti_modules_dir ${PROJECT_SOURCE_DIR}/tutti)

# Sources whose loops over elements are worth more optimisation. With a sanitizer, GCC 12 crashes on it.
function(tutti_loops)
  set_source_files_properties(${ARGN} PROPERTIES TUTTI_ALONE ON)
  if(NOT TUTTI_SANITIZE)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O3)
  endif()
endfunction()

# tutti_library(NAME [TORCH|TORCH_NN] SOURCES ... [DEPENDS ...]): the library tutti_NAME of the module NAME.
function(tutti_library name)
  cmake_parse_arguments(arg "TORCH;TORCH_NN" "" "SOURCES;DEPENDS" ${ARGN})
  set(target tutti_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  target_compile_features(${target} PUBLIC cxx_std_20)
  if(PROJECT_IS_TOP_LEVEL)
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  else()
    target_include_directories(${target} SYSTEM PUBLIC ${PROJECT_SOURCE_DIR})
  endif()
  target_link_libraries(${target} PUBLIC tutti_headers Threads::Threads ${arg_DEPENDS})
  tutti_use_torch(${target})
  tutti_join(${target})
  cmake_path(IS_PREFIX tutti_modules_dir ${CMAKE_CURRENT_SOURCE_DIR} in_the_library)
  if(in_the_library)
    set_property(GLOBAL APPEND PROPERTY TUTTI_MODULES ${target})
  endif()
endfunction()

# tutti_program(NAME [TORCH|TORCH_NN] SOURCES ... [DEPENDS ...]): a binary in bin/.
function(tutti_program name)
  cmake_parse_arguments(arg "TORCH;TORCH_NN" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE tutti_headers ${arg_DEPENDS})
  tutti_use_torch(${name})
  tutti_join(${name})
endfunction()
