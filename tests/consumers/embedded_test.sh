#!/bin/sh
# embedded_test.sh CMAKE BUILD: Tutti inside another project whose default is C++17 and whose warnings are errors. Configures
# such a project, with the libraries of the folder BUILD, and looks at what Ninja would do; of the sources compiles one, which
# is all C++ in README.md and docs/. embedded_program_test.sh compiles the rest.
set -eu
cmake=$1
build=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

failed() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

has() { # text, what it is, pattern...
  text=$1
  what=$2
  shift 2
  for pattern in "$@"; do
    printf '%s\n' "$text" | grep -qE -e "$pattern" || failed "no '$pattern' in $what: $text"
  done
}

has_none() { # text, what it is, pattern...
  text=$1
  what=$2
  shift 2
  for pattern in "$@"; do
    found=$(printf '%s\n' "$text" | grep -E -e "$pattern" | head -n 3)
    [ -z "$found" ] || failed "'$pattern' in $what: $found"
  done
}

configure() { # argument...
  "$cmake" -G Ninja -C "$folder/found.cmake" -S "$folder" -B "$folder/build" "-DTUTTI=$root" "$@" >"$folder/log" 2>&1 || {
    cat "$folder/log"
    exit 1
  }
}

# Where the compiler and the libraries are, as they were found for BUILD.
sed -nE 's/^((TUTTI_|CMAKE_CXX_COMPILER)[A-Za-z0-9_]*):((FILE)?PATH)=(.*)/set(\1 "\5" CACHE \3 "")/p' "$build/CMakeCache.txt" \
  >"$folder/found.cmake"
(cd "$root" && awk -f tests/docs_program.awk README.md docs/*.md docs/start/*.md) >"$folder/docs.cc"
echo 'int main() {}' >"$folder/plain.cc"
cat >"$folder/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.24)
project(parent LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
add_compile_options(-Wall -Wextra -Werror)
if(FETCHED)
  include(FetchContent)
  FetchContent_Declare(tutti SOURCE_DIR ${TUTTI})
  FetchContent_MakeAvailable(tutti)
else()
  add_subdirectory(${TUTTI} tutti)
endif()
# Names that a program of Tutti's own has, too.
add_executable(mnist plain.cc)
add_executable(tutti plain.cc)
add_executable(docs docs.cc)
target_link_libraries(docs PRIVATE tutti::tutti)
# The blocks in the docs use some values in sight of the reader alone.
target_compile_options(docs PRIVATE -O0 -Wno-unused -Wno-shadow)
END

for fetched in OFF ON; do
  configure "-DFETCHED=$fetched"
  where="the build with FETCHED=$fetched"

  steps=$(ninja -C "$folder/build" -n -v)
  count=$(printf '%s\n' "$steps" | grep -c '^\[')
  [ "$count" -le 84 ] || failed "$count steps in $where"
  has_none "$steps" "$where" 'examples/' 'tests/[a-z]*_test' 'bench/' 'tools/' '_test\.cc' 'gtest' '/bin/tutti'
  has "$(ninja -C "$folder/build" -t targets all)" "the targets of $where" '^tutti_command: ' '^tutti_torch_command: '

  # What the parent compiles for itself is as if Tutti were not there; what uses Tutti is told C++20 and where it is.
  plain=$(ninja -C "$folder/build" -t commands CMakeFiles/mnist.dir/plain.cc.o | grep plain.cc)
  has "$plain" "what compiles plain.cc in $where" '-std=(gnu|c)\+\+17 '
  has_none "$plain" "what compiles plain.cc in $where" 'ffp-contract' 'fPIC' '-O2' "$root" 'ccache'
  docs=$(ninja -C "$folder/build" -t commands CMakeFiles/docs.dir/docs.cc.o | grep 'docs\.cc$')
  has "$docs" "what compiles docs.cc in $where" '-std=(gnu|c)\+\+20 ' "-isystem $root"
  has_none "$docs" "what compiles docs.cc in $where" 'ffp-contract' '-O2' "-I *$root" 'ccache'

  own=$(printf '%s\n' "$steps" | grep 'tutti_params.dir/tutti_params/joined_0.cc.o ')
  has "$own" "what compiles Tutti in $where" '-O2' '-ffp-contract=off' '-Werror.* -w ' '-std=c\+\+20'

  has_none "$(grep -E '^CMAKE_(CXX_STANDARD|CXX_FLAGS|BUILD_TYPE|RUNTIME_OUTPUT_DIRECTORY|PROJECT_VERSION)' "$folder/build/CMakeCache.txt")" \
    "the cache of $where" '^CMAKE_BUILD_TYPE:.*=.+' '^CMAKE_CXX_STANDARD' '^CMAKE_RUNTIME' '^CMAKE_PROJECT_VERSION:.*=[0-9]' \
    '^CMAKE_CXX_FLAGS:.*=.+' '^CMAKE_CXX_FLAGS_RELEASE:.*g1'
done

(cd "$folder/build" && sh -c "$docs -fsyntax-only") >"$folder/log" 2>&1 || {
  failed "the C++ in README.md and docs/ does not compile against tutti.h alone; tests/test_docs_prelude.h has what it takes for granted:"
  grep -E 'error|note' "$folder/log" | head -n 40
}

if "$cmake" -S "$folder" -B "$folder/build" -DTUTTI_TESTS=ON >"$folder/log" 2>&1; then
  failed "TUTTI_TESTS=ON inside another project is accepted"
fi
has "$(tr -s '\n ' '  ' <"$folder/log")" "the error" 'TUTTI_TESTS and TUTTI_BENCH need the examples'

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
