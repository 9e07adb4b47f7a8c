#!/bin/sh
# scripts/check-snippets on a small tree: pages that show what there is pass, and each that does not is named with its line.
# shellcheck disable=SC2016  # the pages have backticks
set -eu
check=$(cd "$(dirname "$0")/.." && pwd)/scripts/check-snippets
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0
mkdir -p "$tree/tutti/c" "$tree/tutti/comm" "$tree/tools" "$tree/examples" "$tree/bench" "$tree/tests/consumers" "$tree/docs/start" "$tree/docs/benchmarks"
touch "$tree/tutti/c/tutti.h" "$tree/tutti/comm/hosts.h" "$tree/tutti/comm/timeline_file.h"
echo 'foreach(page one two)' >"$tree/tests/consumers/CMakeLists.txt"
echo '#include "tutti/trainer.h"' >"$tree/tutti/tutti.h"
echo 'namespace tutti { class Trainer; }' >"$tree/tutti/trainer.h"
echo 'namespace tutti { class Hidden; }' >"$tree/tutti/hidden.h"
echo 'set.add("--log_every", every);' >"$tree/tools/flags.cc"
echo 'const char* text = "--only-in-a-test";' >"$tree/tools/flags_test.cc"

expect() { # exit code, text that must be printed, page, lines...
  wanted=$1 text=$2 page=$tree/$3
  shift 3
  printf '%s\n' '```cpp' 'tutti::Trainer trainer;' '```' >"$tree/README.md"
  printf '%s\n' "$@" >"$page"
  status=0
  printed=$("$check" "$tree" 2>&1) || status=$?
  rm "$page"
  if [ "$status" -ne "$wanted" ] || ! printf '%s\n' "$printed" | grep -qF -- "$text"; then
    echo "FAILED: wanted exit code $wanted and '$text', got $status and:"
    printf '%s\n' "$printed"
    failures=$((failures + 1))
  fi
}

expect 0 '' docs/page.md 'The `tutti::Trainer` has `--log-every 5` and `--no-log-every`.' '```' 'docker run --rm tutti run --log_every=5' '```'
expect 0 '' docs/start/two.md '```cpp train.cc' 'tutti::Trainer trainer;' '```'
expect 0 '' docs/page.md 'Other programs: `git log --oneline`' '```cpp' 'flags.add("--own", own);' '```' '`--own 3`'
expect 1 'docs/page.md:2: the installed headers have no tutti::Trainers' docs/page.md '' 'The `tutti::Trainers`'
expect 1 'the installed headers have no tutti::Hidden' docs/page.md '```cpp' 'tutti::Hidden hidden;' '```'
expect 0 '' docs/page.md '[`Trainer`](../tutti/trainer.h) and [the headers `there`](../tutti/trainer.h)'
expect 1 'docs/page.md:1: the installed headers have no Trainers' docs/page.md '[`Trainers`](../tutti/trainer.h)'
expect 1 'docs/page.md:1: no program has the flag --log' docs/page.md '`--log 3`'
expect 1 'docs/page.md:2: no program has the flag --lanez' docs/page.md '```sh' 'build/bin/mnist --lanez 3' '```'
expect 1 'no program has the flag --only-in-a-test' docs/page.md '`tutti run --only-in-a-test`'
expect 1 'docs/page.md:2: no test compiles this block' docs/page.md '- in a list' '  ```cpp' '  int i;' '  ```'
expect 1 'no test compiles this block' docs/benchmarks/page.md '```cpp' 'int i;' '```'
expect 1 'does not list this page, so no test compiles train.cc' docs/start/three.md '```cpp train.cc' 'int i;' '```'
expect 1 'no page has a block of C++' README.md 'Nothing.'

mkdir -p "$tree/docs/site" "$tree/examples/01"
printf '%s\n' 'int first;' 'int second;' >"$tree/examples/01/main.cc"
expect 0 '' docs/site/reference.dox '\dontinclude 01/main.cc' '\skip first' '\until second'
expect 1 'docs/site/reference.dox:3: examples/01/main.cc has no line with first after line 2' docs/site/reference.dox '\dontinclude 01/main.cc' '\skip second' '\until first'
expect 1 'examples/01/main.cc has no line with third' docs/site/reference.dox '\dontinclude 01/main.cc' '\skip third' '\until second'

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
