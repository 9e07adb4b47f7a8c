#!/bin/sh
# installed_test.sh WAY CMAKE BUILD: the installed copy of examples/09_installed is built against an installed Tutti, and trains.
#   install        installs the folder BUILD into BUILD/consumers/prefix, for the other two
#   find_package   builds the program with CMake
#   pkg_config     builds it with one command of the compiler
set -eu
way=$1
cmake=$2
build=$3
prefix=$build/consumers/prefix
. "$(dirname "$0")/program.sh"

case $way in
  install)
    rm -rf "$prefix"
    quietly "$cmake" --install "$build" --prefix "$prefix"
    check_libraries "$prefix/bin/tutti" "$prefix/bin/tutti-torch" "$(find "$prefix" -name libtutti.so)"
    quietly "$prefix/bin/tutti" version
    ;;
  find_package) find_package "$cmake" "$prefix" ;;
  pkg_config)
    command -v pkg-config >/dev/null || { echo "NOT TESTED: there is no pkg-config" && exit 77; }
    flags=$(PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name tutti.pc)") pkg-config --cflags --libs tutti)
    # shellcheck disable=SC2086  # several words
    quietly c++ -std=c++20 -Wall -Wextra -Wconversion -Werror "$(example_in "$prefix")/linear.cc" $flags -o "$scratch/linear"
    check_program "$scratch/linear" "$prefix/bin"
    ;;
  *) fail "no way '$way'" ;;
esac
echo "all as expected"
