#!/bin/sh
# exported_test.sh CMAKE BUILD: a model that the programs of the folder BUILD have trained and exported is read by a program
# that is compiled and linked with LibTorch alone.
set -eu
build=$2
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

found() { # name in CMake's cache
  sed -nE "s/^$1:[A-Z]*=(.*)/\1/p" "$build/CMakeCache.txt"
}

torch_libraries=$(dirname "$(found TUTTI_TORCH_CPU_LIBRARY)")
"$(found CMAKE_CXX_COMPILER)" -std=c++20 -isystem "$(found TUTTI_TORCH_ROOT_INCLUDE)" -isystem "$(found TUTTI_TORCH_INCLUDE)" \
  "$here/exported/reader.cc" -o "$folder/reader" -Wl,-rpath,"$torch_libraries" -L"$torch_libraries" -ltorch_cpu -lc10 -lfmt
if ldd "$folder/reader" | grep libtutti; then
  echo "FAILED: the reader is linked with Tutti"
  exit 1
fi
"$build/bin/mnist" --steps 3 --batch 4 --logdir "$folder/run" --log-level warning
"$build/bin/tutti" export "$folder/run" --program "$build/bin/mnist" --out "$folder/exports"
"$folder/reader" "$folder/exports/1"
echo "all as expected"
