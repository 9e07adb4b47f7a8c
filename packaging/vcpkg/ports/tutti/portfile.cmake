# Builds the tree that this port is in, for an overlay: vcpkg install tutti --overlay-ports=packaging/vcpkg/ports.
# LibTorch is the user's, by VCPKG_CMAKE_CONFIGURE_OPTIONS of the triplet (docs/installing.md).
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." ABSOLUTE)
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)

# vcpkg sets CMAKE_INSTALL_BINDIR itself; the options of one configuration come later and are the ones that hold. Programs
# find lib/tutti from there.
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DTUTTI_TESTS=OFF
    -DTUTTI_BENCH=OFF
    # Not what happens to be installed on the machine that builds the port.
    -DTUTTI_WITH_MPI=OFF
    -DTUTTI_WITH_GRPC=OFF
    -DTUTTI_WITH_GLOO=OFF
    -DTUTTI_WITH_PARQUET=OFF
    # The examples are not installed, so they are not built either.
    -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON
  OPTIONS_RELEASE
    -DCMAKE_INSTALL_BINDIR=tools/${PORT}
  OPTIONS_DEBUG
    -DCMAKE_INSTALL_BINDIR=tools/${PORT}
)
vcpkg_cmake_build(TARGET tutti_command)
vcpkg_cmake_build(TARGET tutti_shared)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/tutti)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share"
  "${CURRENT_PACKAGES_DIR}/debug/tools")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
