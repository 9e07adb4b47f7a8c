#!/bin/sh
# installed_test.sh WAY CMAKE BUILD: the installed copy of examples/09_installed is built against an installed Tutti, and trains.
#   install        installs the folder BUILD into BUILD/consumers/prefix, for the other two
#   find_package   builds the program with CMake in BUILD/consumers/found
#   pkg_config     links it with pkg-config's flags. With these the compiler reads the same text as in BUILD/consumers/found, so that
#                  the object is there already.
set -eu
way=$1
cmake=$2
build=$3
prefix=$build/consumers/prefix
found=$build/consumers/found
. "$(dirname "$0")/program.sh"

case $way in
  install)
    rm -rf "$prefix"
    quietly "$cmake" --install "$build" --prefix "$prefix"
    check_libraries "$prefix/bin/tutti" "$prefix/bin/tutti-torch" "$(find "$prefix" -name libtutti.so)"
    quietly "$prefix/bin/tutti" version
    for module in net rpc ps; do
      [ ! -e "$prefix/include/tutti/$module" ] || fail "headers of the module $module are installed, which are not for programs"
      if nm -DC --defined-only "$(find "$prefix" -name libtutti.so)" | grep -E "^[0-9a-f]+ . tutti::$module::"; then
        fail "programs see these symbols of the module $module"
      fi
    done
    ;;
  find_package)
    rm -rf "$found"
    find_package "$cmake" "$prefix" "$found"
    ;;
  pkg_config)
    command -v pkg-config >/dev/null || { echo "NOT TESTED: there is no pkg-config" && exit 77; }
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name tutti.pc)")
    export PKG_CONFIG_PATH
    # The text that the compiler reads, in which only the way to the prefix may differ.
    text_with() { # command of the compiler...
      "$@" -E -P -fno-canonical-system-headers | sed -E "s#[^\" ]*/pkgconfig(/\.\.)+/#PREFIX/#g; s#$prefix/#PREFIX/#g"
    }
    command=$(sed -nE 's/.*"command": "(.*) -o [^ ]+ -c ([^ ]+)".*/\1 \2/p' "$found/compile_commands.json")
    # shellcheck disable=SC2046,SC2086  # several words
    {
      text_with $command >"$scratch/found.text"
      text_with c++ -std=c++20 $(pkg-config --cflags tutti) "$(example_in "$prefix")/linear.cc" >"$scratch/pkg_config.text"
      cmp "$scratch/found.text" "$scratch/pkg_config.text" || fail "the program differs, compiled with pkg-config's flags"
      quietly c++ "$found/CMakeFiles/linear.dir/linear.cc.o" $(pkg-config --libs tutti) -o "$scratch/linear"
    }
    check_program "$scratch/linear" "$prefix/bin"
    ;;
  *) fail "no way '$way'" ;;
esac
echo "all as expected"
