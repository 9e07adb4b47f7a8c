#!/bin/sh
# vcpkg_test.sh WAY CMAKE BUILD: the port in packaging/vcpkg. vcpkg is in no package registry, so stand-ins of its functions run the
# portfile (vcpkg_stand_in.cmake).
#   manifest   vcpkg.json has the version of Tutti, and names in the order that vcpkg asks for
#   port       the portfile builds the library and the command with the LibTorch of the folder BUILD, and the example is built
#              against the package, and trains
set -eu
way=$1
cmake=$2
build=$3
. "$(dirname "$0")/program.sh"
tree=$(cd "$here/../.." && pwd)
port=$tree/packaging/vcpkg/ports/tutti

case $way in
  manifest)
    grep -q "\"version\": \"$(version_of "$tree")\"" "$port/vcpkg.json" || fail "vcpkg.json has another version"
    sed -nE 's/^    (\{ "name": )?"([a-z0-9-]+)".*/\2/p' "$port/vcpkg.json" >"$scratch/names"
    [ "$(wc -l <"$scratch/names")" -gt 5 ] || fail "the dependencies are not one a line"
    LC_ALL=C sort -c "$scratch/names" || fail "the dependencies are not in order"
    ;;
  port)
    package=$scratch/packages
    folder=$tree/build-vcpkg # as deep as other folders, so that ccache finds what they have compiled
    rm -rf "$folder"
    trap 'rm -rf "$scratch" "$folder"' EXIT
    quietly "$cmake" "-DPORT_DIR=$port" "-DBUILD=$folder" "-DPACKAGES=$package" \
      "-DVCPKG_CMAKE_CONFIGURE_OPTIONS=-DCMAKE_PREFIX_PATH=$(libtorch_of "$build");$(strictness_of "$build")" \
      -P "$here/vcpkg_stand_in.cmake"
    check_libraries "$package/tools/tutti/tutti" "$package/tools/tutti/tutti-torch" "$package/lib/libtutti.so"
    quietly "$cmake" -S "$(example_in "$package")" -B "$scratch/found" "-DCMAKE_PREFIX_PATH=$package"
    quietly "$cmake" --build "$scratch/found"
    check_program "$scratch/found/linear" "$package/tools/tutti"
    ;;
  *) fail "no way '$way'" ;;
esac
echo "all as expected"
