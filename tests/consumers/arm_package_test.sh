#!/bin/sh
# arm_package_test.sh CMAKE BUILD: makes the .deb of BUILD-arm, where ./dev package arm has built for 64-bit ARM, and looks at its architecture and dependencies.
# The command in it runs under QEMU.
set -eu
cmake=$1
build=$2-arm
. "$(dirname "$0")/program.sh"
tree=$(cd "$here/../.." && pwd)
[ -x "$build/bin/tutti" ] && [ -e "$build/lib/libtutti.so" ] || { echo "NOT TESTED: ./dev package arm was not called" && exit 77; }

quietly "$(dirname "$cmake")/cpack" -G DEB --config "$build/CPackConfig.cmake" -B "$scratch/package"
package=$(ls "$scratch"/package/*_arm64.deb) || fail "the package has another name: $(ls "$scratch/package")"
field() { dpkg-deb --field "$package" "$1"; }
[ "$(field Architecture)" = arm64 ] || fail "the architecture is $(field Architecture)"
for name in libc6 "libstdc[+][+]6" libgcc-s1 libssl3 libhwy1 zlib1g; do
  field Depends | tr ',' '\n' | grep -qE "^ ?$name( |t64|$)" || fail "it does not depend on $name: $(field Depends)"
done

dpkg-deb -x "$package" "$scratch/root"
for file in "$scratch"/root/usr/bin/tutti "$scratch"/root/usr/lib/libtutti.so; do
  readelf -h "$file" | grep -q AArch64 || fail "$file is for another machine"
done
if command -v qemu-aarch64-static >/dev/null; then
  said=$("$tree/scripts/arm" run "$scratch/root/usr/bin/tutti" --version)
  echo "$said" | grep -qxF "tutti $(version_of "$tree")" || fail "tutti --version says $said"
else
  echo "NOT TESTED: running it, since there is no qemu-aarch64-static"
fi
echo "all as expected"
