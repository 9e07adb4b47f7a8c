#!/bin/sh
# scripts/bench on a tree whose builds and programs are stubs: what a program prints replaces its own section, and nothing else.
# shellcheck disable=SC2016  # the stubs expand their own arguments
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

program() { # file, shell commands
  printf '#!/bin/sh\n%s\n' "$2" >"$tree/$1"
  chmod +x "$tree/$1"
}

# The pages and scripts as they are; a build that does nothing; one benchmark, and no GPU.
make_tree() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/build/bin" "$tree/docs" "$tree/path"
  cp -r "$root/scripts" "$root/README.md" "$tree/"
  cp -r "$root/docs/benchmarks" "$root/docs/benchmarks.md" "$root/docs/peers.svg" "$tree/docs/"
  cp -r "$tree/docs" "$tree/README.md" "$tree/build/"
  program dev true
  program path/nvidia-smi 'echo NVIDIA H200'
  program build/bin/tutti 'echo "tutti 0.1.0"; echo "LibTorch 9.8.7"'
  program build/bin/bench_gpu '[ "${1-}" != --here ]'
  program build/bin/bench_audit 'echo "## Audits"; echo; cat table'
  audits 1.444 >"$tree/table"
}

audits() { # CPU time
  printf '| | images/s | to off | CPU time, s | to off |\n|---|---|---|---|---|\n| shm, --audit 10 | 1 | 2 | 3 | %s |\n' "$1"
}

bench() { # name, exit code
  status=0
  PATH="$tree/path:$PATH" "$tree/scripts/bench" "$1" >"$tree/output" 2>&1 || status=$?
  [ "$status" -eq "$2" ] || fail "bench $1 ended with $status in place of $2: $(cat "$tree/output")"
}

contains() { # file, line
  grep -qxF -- "$2" "$tree/$1" || fail "$1 has no line: $2"
}

lacks() { # file, line
  ! grep -qxF -- "$2" "$tree/$1" || fail "$1 has the line: $2"
}

# Everything but the section of the audits, before and now.
others_are_untouched() { # page
  for folder in "$tree" "$tree/build"; do
    awk '/^<!-- .* -->$/ { skip = $2 == "bench_audit" } !skip' "$folder/docs/benchmarks/$1" | sed '${/^$/d;}'
  done | awk '{ ++lines[$0] } END { for (line in lines) if (lines[line] % 2) print line }' >"$tree/difference"
  [ ! -s "$tree/difference" ] || fail "other sections of $1 changed: $(cat "$tree/difference")"
}

sections() { # page
  grep -c '^<!-- bench_audit on .* -->$' "$tree/docs/benchmarks/$1" || true
}

today=$(date -u +%Y-%m-%d)
page=docs/benchmarks/survival.md

# A section of another processor is added, and the first page follows the newest one.
make_tree
before=$(sections survival.md)
sed -i 's/^\(## Audits on\|Measured on\|<!-- bench_audit on\) AMD EPYC/\1 Old Processor/; s/ on 20..-..-.. with / on 2001-02-03 with /' "$tree/$page"
cp "$tree/$page" "$tree/build/$page"
bench audit 0
[ "$(sections survival.md)" -eq $((before + 1)) ] || fail "no section was added"
others_are_untouched survival.md
contains "$page" "<!-- bench_audit on Old Processor -->"
grep -q "^Measured on .* on $today with LibTorch 9.8.7 (" "$tree/$page" || fail "the section does not say when it was measured"
grep -q 'audit 10. takes 1.444 times the CPU time' "$tree/docs/benchmarks.md" || fail "the first page did not follow"

# The same processor again: its section is replaced.
audits 1.555 >"$tree/table"
bench audit 0
[ "$(sections survival.md)" -eq $((before + 1)) ] || fail "a section was doubled"
others_are_untouched survival.md
lacks "$page" "| shm, --audit 10 | 1 | 2 | 3 | 1.444 |"
contains "$page" "| shm, --audit 10 | 1 | 2 | 3 | 1.555 |"
grep -q 'audit 10. takes 1.555 times the CPU time' "$tree/docs/benchmarks.md" || fail "the first page did not follow"
"$tree/scripts/figures" --check || fail "figures --check fails after bench"

# A table that was edited by hand no longer agrees with its picture.
sed -i 's/^| torchrun | 12 | 0 | 7.01 s | [0-9.]* s/| torchrun | 12 | 0 | 7.01 s | 1.23 s/' "$tree/$page"
! "$tree/scripts/figures" --check >"$tree/output" 2>&1 || fail "figures --check misses a table that was changed"
grep -q 'differs from .* docs/benchmarks/survival.svg' "$tree/output" || fail "figures --check does not name the picture"

# A program that fails changes nothing.
make_tree
program build/bin/bench_audit 'echo "## Audits"; exit 1'
bench audit 1
cmp "$tree/$page" "$tree/build/$page" || fail "a program that failed changed its page"

# The page of a new program is the one with its mark.
program build/bin/bench_new 'echo "## New"; echo; echo "A line."'
bench new 1
grep -q 'write <!-- bench_new -->' "$tree/output" || fail "bench does not say where the mark goes"
sed -i 's/^<!-- bench_audit/<!-- bench_new -->\n\n&/' "$tree/$page"
cp "$tree/$page" "$tree/build/$page"
bench new 0
[ "$(grep -c '^A line.$' "$tree/$page")" -eq 1 ] || fail "the new section is not there"
awk '/^<!-- bench_new on / { new = NR } /^<!-- bench_audit on / && !audit { audit = NR } END { exit !(new && new < audit) }' "$tree/$page" ||
  fail "the new section does not follow its mark"

# The section of the GPU bears its name.
program build/bin/bench_gpu 'if [ "${1-}" != --here ]; then echo "## Training with a GPU"; echo; grep "Trainer |" "$0" | sed "s/^# //"; fi
# | Tutti'"'"'s Trainer | 1 (2.00) | 1 (3.00) | 1 (1.50) | 1 (4.00) | 9 |'
bench gpu 0
contains docs/benchmarks/gpu.md "## Training with a GPU on NVIDIA H200"
grep -q '1.50 to 4.00 times as many images' "$tree/docs/benchmarks.md" || fail "the first page did not follow the GPU"

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
