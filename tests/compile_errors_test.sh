#!/bin/sh
# compile_errors_test.sh BUILD OBJECT CASES: compiles each case of the source of OBJECT, a target of the Ninja build BUILD. Case
# 0 has to compile; every other one has to fail with a single error, which says what is expected.
set -eu
build=$1
object=$2
cases=$3
failures=0
command=$(ninja -C "$build" -t commands "$object" | tail -n 1)
cd "$build"
for case in $(seq 0 "$cases"); do
  errors=$(sh -c "$command -fsyntax-only -DCASE=$case" 2>&1 | grep -E 'error: ' || true)
  if [ "$case" = 0 ]; then
    [ -z "$errors" ] || { echo "FAILED: case 0 does not compile: $errors" && failures=$((failures + 1)); }
  elif [ "$(printf '%s\n' "$errors" | wc -l)" != 1 ] || ! echo "$errors" | grep -qE 'the (loss|net) has to be'; then
    echo "FAILED: case $case gives another error than the one expected: $errors"
    failures=$((failures + 1))
  fi
done
[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
