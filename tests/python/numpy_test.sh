#!/bin/sh
# Usage: numpy_test.sh LIBRARY_DIR COMMAND SOURCES: the package of Python with NumPy, on worlds of several sizes.
set -eu
if [ -z "${TUTTI_TEST_PYTHON-}" ]; then
  echo "no Python with NumPy (scripts/test-python)"
  exit 77
fi
export LD_LIBRARY_PATH="$1" PYTHONPATH="$3/python" PYTHONDONTWRITEBYTECODE=1
program=$3/tests/python/numpy_program.py

"$TUTTI_TEST_PYTHON" "$program" # alone, without a launcher
"$TUTTI_TEST_PYTHON" "$3/tests/python/interrupt_program.py"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
count=$("$2" run -n 3 --min 1 --restarts 2 -- "$TUTTI_TEST_PYTHON" "$3/tests/python/members_program.py" "$scratch/mark" | grep -c 'all is well')
[ "$count" = 3 ] || { echo "after a kill $count of 3 have ended well" >&2; exit 1; }
for transport in auto tcp; do
  for world in 2 3 4; do
    count=$("$2" run -n "$world" -- env TUTTI_COMM="$transport" "$TUTTI_TEST_PYTHON" "$program" | grep -c 'all is well')
    [ "$count" = "$world" ] || { echo "$world ranks over $transport: $count have ended well" >&2; exit 1; }
  done
done
