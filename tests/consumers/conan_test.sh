#!/bin/sh
# conan_test.sh CMAKE BUILD: `conan create` of packaging/conan, with the LibTorch of the folder BUILD and the distribution's other
# libraries, and its test_package. Conan is in BUILD/conan, from PyPI; everything that it writes is lost.
set -eu
cmake=$1
build=$2
. "$(dirname "$0")/program.sh"
tree=$(cd "$here/../.." && pwd)
conan=$build/conan/bin/conan

if [ ! -x "$conan" ]; then
  rm -rf "$build/conan"
  if ! { python3 -m venv "$build/conan" && "$build/conan/bin/pip" install --quiet --disable-pip-version-check --retries 1 \
    --timeout 30 'conan>=2,<3'; } >/dev/null 2>&1; then
    rm -rf "$build/conan"
    echo "NOT TESTED: pip has no Conan"
    exit 77
  fi
fi
export CONAN_HOME="$scratch/conan"
# Conan calls cmake by its name.
PATH=$(dirname "$cmake"):$PATH
export PATH
quietly "$conan" profile detect
# Without the block that adds -m64, and as strict as BUILD, ccache finds what BUILD has compiled.
blocks="['generic_system', 'compilers', 'libcxx', 'cppstd', 'parallel', 'cmake_flags_init', 'extra_variables', 'find_paths', 'variables']"
quietly "$conan" create "$tree/packaging/conan" --no-remote --build=missing -c tools.cmake.cmaketoolchain:generator=Ninja \
  -c "tutti/*:tools.cmake.cmaketoolchain:enabled_blocks=$blocks" \
  -c "tutti/*:tools.cmake.cmaketoolchain:extra_variables={'TUTTI_WERROR': '$(strictness_of "$build" | sed 's/.*=//')'}" \
  -c tools.cmake.cmake_layout:test_folder='$TMP' -o 'tutti/*:system_dependencies=True' -o "tutti/*:libtorch=$(libtorch_of "$build")"
grep -q 'tutti/.*(test package): Running test()' "$scratch/log" || fail "test_package was not run: $(tail -n 20 "$scratch/log")"
echo "all as expected"
