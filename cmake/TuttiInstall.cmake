# `cmake --install` and `cpack`: the headers, libtutti.so, the command, a CMake package, a file for pkg-config and an example.
# docs/installing.md describes the files and their places.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
# This is not an argument of project(): it would become the version of a project that includes Tutti.
file(STRINGS ${PROJECT_SOURCE_DIR}/tutti/base/version.h tutti_version REGEX "kVersion = ")
string(REGEX REPLACE ".*\"([0-9]+\\.[0-9]+)(\\.[0-9]+)\".*" "\\1;\\1\\2" tutti_version "${tutti_version}")
list(POP_FRONT tutti_version tutti_interface) # 0.1 of 0.1.0
set(tutti_private_dir ${CMAKE_INSTALL_LIBDIR}/tutti)
set(tutti_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)

# All modules as one shared library. Programs that use it do not need the libraries that only Tutti's sources use.
get_property(tutti_modules GLOBAL PROPERTY TUTTI_MODULES)
list(TRANSFORM tutti_modules REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE tutti_objects)
add_library(tutti_shared SHARED ${tutti_objects})
target_link_libraries(tutti_shared PRIVATE ${tutti_modules})
# GNU's linker, since not all others hide C++ names by a version script.
target_link_options(tutti_shared PRIVATE -Wl,-z,defs -fuse-ld=bfd
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/hidden_symbols.map)
set_property(TARGET tutti_shared APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/hidden_symbols.map)
target_compile_features(tutti_shared INTERFACE cxx_std_20)
set_target_properties(tutti_shared PROPERTIES
  OUTPUT_NAME tutti EXPORT_NAME tutti LINKER_LANGUAGE CXX
  VERSION ${tutti_version} SOVERSION ${tutti_interface}
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
  INSTALL_RPATH "$ORIGIN/tutti")
file(RELATIVE_PATH tutti_bin_to_private /${CMAKE_INSTALL_BINDIR} /${tutti_private_dir})
set_target_properties(tutti_command tutti_torch_command PROPERTIES INSTALL_RPATH "$ORIGIN/${tutti_bin_to_private}")

install(TARGETS tutti_command tutti_torch_command RUNTIME COMPONENT tutti)
install(TARGETS tutti_shared EXPORT tuttiTargets
  LIBRARY COMPONENT tutti NAMELINK_COMPONENT tutti INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# The part without LibTorch, for C and Fortran (tutti/c).
add_dependencies(tutti_shared tutti_comm_shared)
install(TARGETS tutti_comm_shared LIBRARY COMPONENT tutti NAMELINK_COMPONENT tutti)
install(FILES ${PROJECT_SOURCE_DIR}/tutti/c/tutti.f90 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tutti/c COMPONENT tutti)
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${tutti_package_dir} COMPONENT tutti)

# The public headers: tutti/tutti.h and the headers that it includes, as they are at the time of installation.
install(CODE "set(root [[${PROJECT_SOURCE_DIR}]])
set(folder [[${CMAKE_INSTALL_INCLUDEDIR}]])" COMPONENT tutti)
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake COMPONENT tutti)

# An example project. It is not in share/doc, which packages leave out in small container images.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/09_installed/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tutti/examples/linear
  COMPONENT tutti)

# LibTorch, and other libraries that are not the system's: the libraries in lib/tutti, LibTorch's headers in
# lib/tutti/include. An installation has links there, a package has copies.
set(tutti_torch_headers)
if(NOT TUTTI_TORCH_ROOT_INCLUDE IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
  set(tutti_torch_headers ${TUTTI_TORCH_ROOT_INCLUDE})
endif()
foreach(component tutti_links tutti_copies)
  set(unless_asked_for)
  if(component STREQUAL tutti_copies)
    set(unless_asked_for EXCLUDE_FROM_ALL)
  endif()
  install(CODE "set(how ${component})
set(cuda ${TUTTI_HAVE_CUDA})
set(cross ${CMAKE_CROSSCOMPILING})
set(folder [[${tutti_private_dir}]])
set(licenses_folder [[${CMAKE_INSTALL_DOCDIR}]])
set(torch_headers [[${tutti_torch_headers}]])
set(libraries [[$<TARGET_FILE:tutti_shared>]] [[$<TARGET_FILE:tutti_torch_command>]])"
    COMPONENT ${component} ${unless_asked_for})
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_private_libraries.cmake COMPONENT ${component} ${unless_asked_for})
endforeach()

# --- find_package(tutti)
get_filename_component(tutti_fmt_lib_dir "${TUTTI_FMT_LIBRARY}" DIRECTORY)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
  INSTALL_DESTINATION ${tutti_package_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake VERSION ${tutti_version} COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  DESTINATION ${tutti_package_dir} COMPONENT tutti)

# --- pkg-config
file(RELATIVE_PATH tutti_pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /.)
string(REGEX REPLACE "/$" "" tutti_pc_to_prefix ${tutti_pc_to_prefix})
set(tutti_pc_cflags)
set(tutti_pc_libs -ltorch_cpu -lc10)
if(tutti_torch_headers)
  list(APPEND tutti_pc_cflags "-isystem \${libdir}/tutti/include"
    "-isystem \${libdir}/tutti/include/torch/csrc/api/include")
  list(PREPEND tutti_pc_libs "-L\${libdir}/tutti -Wl,-rpath,\${libdir}/tutti")
else()
  list(APPEND tutti_pc_cflags "-isystem ${TUTTI_TORCH_INCLUDE}")
endif()
foreach(dir ${tutti_header_dirs})
  # Where the programs will be compiled, the headers of a cross compiler are the system's.
  if(NOT CMAKE_CROSSCOMPILING AND NOT dir IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    list(APPEND tutti_pc_cflags "-isystem ${dir}")
  endif()
endforeach()
if(TUTTI_FMT_LIBRARY_FITS)
  list(APPEND tutti_pc_libs -lfmt)
else()
  list(APPEND tutti_pc_cflags -DFMT_HEADER_ONLY -DFMT_DEPRECATED_HEAVY_CORE)
endif()
list(JOIN tutti_pc_cflags " " tutti_pc_cflags)
list(JOIN tutti_pc_libs " " tutti_pc_libs)
configure_file(${PROJECT_SOURCE_DIR}/cmake/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT tutti)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT tutti)

# --- cpack: a .deb
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_CONTACT "The maintainers of Tutti <maintainers@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains LibTorch models on many processes")
set(CPACK_PACKAGE_VERSION ${tutti_version})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
# One package of these components.
set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};tutti;tutti;/;${PROJECT_BINARY_DIR};tutti;tutti_copies;/")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_dependencies.cmake)
set(CPACK_TUTTI_BUILD ${PROJECT_BINARY_DIR})
set(CPACK_TUTTI_BINARIES ${PROJECT_BINARY_DIR}/lib/libtutti.so ${PROJECT_BINARY_DIR}/lib/libtutti_comm.so ${PROJECT_BINARY_DIR}/bin/tutti
  ${PROJECT_BINARY_DIR}/bin/tutti-torch)
set(CPACK_TUTTI_PRIVATE_DIRS)
if(CMAKE_CROSSCOMPILING)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64) # cmake/aarch64.cmake
  set(CPACK_TUTTI_SHLIBS ${TUTTI_SHLIBS})
  set(CPACK_TUTTI_OBJDUMP ${CMAKE_OBJDUMP})
endif()
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
# Needed to build programs, but not to run them.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++, cmake, pkg-config, libfmt-dev, nlohmann-json3-dev")
if(NOT tutti_torch_headers)
  string(APPEND CPACK_DEBIAN_PACKAGE_RECOMMENDS ", libtorch-dev")
  # Without it Debian's LibTorch computes with the slow reference BLAS.
  set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0-pthread)
else()
  set(CPACK_TUTTI_PRIVATE_DIRS ${tutti_torch_lib_dir}) # the package has copies of these libraries
endif()
include(CPack)
