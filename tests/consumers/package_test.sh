#!/bin/sh
# package_test.sh WAY CMAKE BUILD: makes the .deb of the folder BUILD, and installs it with dpkg in a copy of this system in
# which the clone and the user's caches are empty folders. If overlays cannot be mounted (that takes root), the package is only
# extracted. There:
#   doctor    `tutti doctor` must be content, and all libraries must be found
#   program   the example in the package is built, and trains
set -eu
way=$1
cmake=$2
build=$3
. "$(dirname "$0")/program.sh"

check_package() { # where its usr/ is
  case $way in
    doctor)
      quietly "$1/bin/tutti" doctor
      if grep '^bad' "$scratch/log"; then fail "tutti doctor"; fi
      check_libraries "$1/bin/tutti" "$1/bin/tutti-torch" "$1/lib/libtutti.so"
      ;;
    program) find_package "$cmake" "$1" "$scratch/found" ;;
    *) fail "no way '$way'" ;;
  esac
}

if [ -n "${CONSUMERS_SCRATCH-}" ]; then # in the copy
  [ ! -e "$build" ] || fail "$build is not hidden"
  quietly dpkg -i "$scratch"/package/*.deb
  check_package /usr
  exit
fi

command -v dpkg-deb >/dev/null || { echo "NOT TESTED: there is no dpkg-deb" && exit 77; }
quietly "$(dirname "$cmake")/cpack" -G DEB --config "$build/CPackConfig.cmake" -B "$scratch/package"
rm -r "$scratch/package/_CPack_Packages"
cp -r "$here" "$scratch/consumers"
root=$(cd "$here/../.." && pwd)
in_a_copy() { # command...
  unshare -m "$scratch/consumers/in_a_copy.sh" "$scratch" "$root" "$build" "${XDG_CACHE_HOME:-$HOME/.cache}" -- "$@"
}
if in_a_copy "$cmake" --version >/dev/null 2>&1; then
  in_a_copy env "CONSUMERS_SCRATCH=$scratch" "$scratch/consumers/package_test.sh" "$way" "$cmake" "$build"
else
  echo "NOT TESTED: dpkg -i, since overlays cannot be mounted here"
  dpkg-deb -x "$scratch"/package/*.deb "$scratch/root"
  check_package "$scratch/root/usr"
fi
echo "all as expected"
