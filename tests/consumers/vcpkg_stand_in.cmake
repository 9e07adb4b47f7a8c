# cmake -DPORT_DIR=... -DBUILD=... -DPACKAGES=... -P vcpkg_stand_in.cmake: runs the portfile in PORT_DIR with stand-ins of vcpkg's
# functions, for machines that cannot have vcpkg. They call CMake as vcpkg does, for a release alone, and fail at arguments that
# vcpkg would refuse. The package is then in PACKAGES. VCPKG_CMAKE_CONFIGURE_OPTIONS is what a triplet would set.
cmake_minimum_required(VERSION 3.24)
set(PORT tutti)
set(CURRENT_PACKAGES_DIR ${PACKAGES})
set(VCPKG_BUILD_TYPE release)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(refuse_others)
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "vcpkg does not know these arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
endfunction()

function(vcpkg_check_linkage)
  cmake_parse_arguments(PARSE_ARGV 0 arg "ONLY_STATIC_LIBRARY;ONLY_DYNAMIC_LIBRARY;ONLY_DYNAMIC_CRT;ONLY_STATIC_CRT" "" "")
  refuse_others()
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "DISABLE_PARALLEL_CONFIGURE" "SOURCE_PATH;GENERATOR;LOGFILE_BASE"
    "OPTIONS;OPTIONS_DEBUG;OPTIONS_RELEASE;MAYBE_UNUSED_VARIABLES")
  refuse_others()
  run(${CMAKE_COMMAND} -G Ninja -S ${arg_SOURCE_PATH} -B ${BUILD} ${arg_OPTIONS} -DBUILD_SHARED_LIBS=ON
    -DCMAKE_ERROR_ON_ABSOLUTE_INSTALL_DESTINATION=ON -DCMAKE_EXPORT_NO_PACKAGE_REGISTRY=ON -DCMAKE_INSTALL_LIBDIR:STRING=lib
    -DCMAKE_INSTALL_BINDIR:STRING=bin ${VCPKG_CMAKE_CONFIGURE_OPTIONS} ${arg_OPTIONS_RELEASE}
    -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR})
endfunction()

function(vcpkg_cmake_build)
  cmake_parse_arguments(PARSE_ARGV 0 arg "DISABLE_PARALLEL;ADD_BIN_TO_PATH" "TARGET;LOGFILE_BASE" "")
  refuse_others()
  run(${CMAKE_COMMAND} --build ${BUILD} --config Release --target ${arg_TARGET})
endfunction()

function(vcpkg_cmake_install)
  cmake_parse_arguments(PARSE_ARGV 0 arg "DISABLE_PARALLEL;ADD_BIN_TO_PATH" "" "")
  refuse_others()
  vcpkg_cmake_build(TARGET install)
endfunction()

# Moves the CMake package to share/tutti, which is less deep, and corrects the paths to the prefix in it.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "DO_NOT_DELETE_PARENT_CONFIG_PATH;NO_PREFIX_CORRECTION" "PACKAGE_NAME;CONFIG_PATH" "")
  refuse_others()
  file(GLOB files ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/*.cmake)
  foreach(file IN LISTS files)
    file(READ ${file} text)
    string(REGEX REPLACE "(\nget_filename_component\\(_IMPORT_PREFIX \"\\\${_IMPORT_PREFIX}\" PATH\\))+" "\\1\\1" text "${text}")
    string(REGEX REPLACE "CMAKE_CURRENT_LIST_DIR}/(\\.\\./)+\" ABSOLUTE" "CMAKE_CURRENT_LIST_DIR}/../../\" ABSOLUTE" text "${text}")
    get_filename_component(name ${file} NAME)
    file(WRITE ${CURRENT_PACKAGES_DIR}/share/${PORT}/${name} "${text}")
  endforeach()
  file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/lib/cmake)
endfunction()

function(vcpkg_fixup_pkgconfig)
  cmake_parse_arguments(PARSE_ARGV 0 arg "SKIP_CHECK" "" "")
  refuse_others()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "COMMENT" "FILE_LIST")
  refuse_others()
  file(INSTALL ${arg_FILE_LIST} DESTINATION ${CURRENT_PACKAGES_DIR}/share/${PORT} RENAME copyright)
endfunction()

include(${PORT_DIR}/portfile.cmake)

# After this, vcpkg's checks look for files in places where a package may not have any.
file(GLOB found ${CURRENT_PACKAGES_DIR}/debug/include ${CURRENT_PACKAGES_DIR}/debug/share ${CURRENT_PACKAGES_DIR}/bin
  ${CURRENT_PACKAGES_DIR}/lib/cmake)
if(found)
  message(FATAL_ERROR "a package of vcpkg may not have ${found}")
endif()
