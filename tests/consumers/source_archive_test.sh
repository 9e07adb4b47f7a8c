#!/bin/sh
# source_archive_test.sh WAY CMAKE BUILD: the archive that scripts/source-archive makes of the last commit, unpacked in a folder without
# a repository, where calling git is an error.
#   configure   two archives have the same bytes; CMake configures, and knows the version
#   build       the library and the command are built with the LibTorch of the folder BUILD, installed, and say their version
set -eu
way=$1
cmake=$2
build=$3
. "$(dirname "$0")/program.sh"
tree=$(cd "$here/../.." && pwd)
git -C "$tree" rev-parse --verify --quiet HEAD >/dev/null 2>&1 || { echo "NOT TESTED: this is no clone of git" && exit 77; }

archive=$("$tree/scripts/source-archive" "$scratch/archive")
"$tree/scripts/source-archive" "$scratch/again" >/dev/null
cmp "$archive" "$scratch/again/$(basename "$archive")" || fail "two archives of one commit differ"
tar -xf "$archive" -C "$scratch"
sources=$(basename "$archive" .tar.gz)
version=${sources#tutti-}
sources=$scratch/$sources
[ -f "$sources/CMakeLists.txt" ] && [ ! -e "$sources/.git" ] || fail "the archive has other files: $(ls -A "$sources")"

mkdir "$scratch/bin"
printf '#!/bin/sh\necho "$*" >>"%s"\nexit 1\n' "$scratch/git-was-called" >"$scratch/bin/git"
chmod +x "$scratch/bin/git"
PATH=$scratch/bin:$PATH
export PATH
quietly env "CMAKE_PREFIX_PATH=$(libtorch_of "$build")" "$cmake" -S "$sources" --preset release -B "$sources/build" \
  "$(strictness_of "$build")"
grep -qF "set(CPACK_PACKAGE_VERSION \"$version\")" "$sources/build/CPackConfig.cmake" || fail "CMake has not found the version $version"

case $way in
  configure) ;;
  build)
    quietly "$cmake" --build "$sources/build" --target tutti_command tutti_shared
    quietly "$cmake" --install "$sources/build" --prefix "$scratch/prefix"
    said=$("$scratch/prefix/bin/tutti" --version)
    echo "$said" | grep -qxF "tutti $version" || fail "tutti --version says $said"
    ;;
  *) fail "no way '$way'" ;;
esac
[ ! -e "$scratch/git-was-called" ] || fail "git was called: $(cat "$scratch/git-was-called")"
echo "all as expected"
