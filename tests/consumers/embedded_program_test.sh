#!/bin/sh
# embedded_program_test.sh CMAKE BUILD: builds examples/09_installed/linear.cc by FetchContent, which compiles all of Tutti, and runs it. Uses the
# libraries of the folder BUILD, but none of the optional ones, so that their stubs are compiled, and the command of BUILD.
# BUILD/consumers/embedded is kept for the next time.
set -eu
cmake=$1
build=$2
. "$(dirname "$0")/program.sh"
sed -nE 's/^((TUTTI_|CMAKE_CXX_COMPILER)[A-Za-z0-9_]*):((FILE)?PATH)=(.*)/set(\1 "\5" CACHE \3 "")/p' "$build/CMakeCache.txt" \
  >"$scratch/found.cmake"
embedded=$build/consumers/embedded
without="-DTUTTI_WITH_MPI=OFF -DTUTTI_WITH_GLOO=OFF -DTUTTI_WITH_NCCL=OFF -DTUTTI_WITH_ZLIB=OFF
  -DTUTTI_WITH_PARQUET=OFF"
# shellcheck disable=SC2086  # several words
quietly "$cmake" -G Ninja -C "$scratch/found.cmake" -S "$here/embedded" -B "$embedded" "-DTUTTI=$(cd "$here/../.." && pwd)" \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 $without
quietly ninja -C "$embedded"
check_program "$embedded/linear" "$build/bin"
echo "all as expected"
