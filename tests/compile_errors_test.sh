#!/bin/sh
# compile_errors_test.sh BUILD OBJECT CASES: compiles the source of OBJECT, a target of the Ninja build BUILD. With WRONG it has to
# fail with one error for each of CASES places in it, each of which says what is expected. What is right has no error then.
set -eu
build=$1
object=$2
cases=$3
failures=0
command=$(ninja -C "$build" -t commands "$object" | tail -n 1)
cd "$build"

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

said=$(sh -c "$command -fsyntax-only -DWRONG" 2>&1 || true)
errors=$(printf '%s\n' "$said" | grep 'error: ' || true)
[ "$(printf '%s\n' "$errors" | grep -cE 'the (loss|net) has to be')" = "$cases" ] || fail "other errors than those expected: $errors"
[ "$(printf '%s\n' "$errors" | wc -l)" = "$cases" ] || fail "more errors than those expected: $errors"
places=$(printf '%s\n' "$said" | sed -nE 's/.*wrong_loss\.cc:([0-9]+):[0-9]+: +required from here/\1/p' | sort -u | wc -l)
[ "$places" = "$cases" ] || fail "errors in $places places: $said"
[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
