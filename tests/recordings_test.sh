#!/bin/sh
# The recordings of terminals in docs/recordings: each is one that scripts/record makes, is small and draws without scripts, and a page shows
# it with a text for those who do not see it.
set -eu
cd "$(dirname "$0")/.."
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
most=200000
count=0
for file in docs/recordings/*.svg; do
  count=$((count + 1))
  name=$(basename "$file" .svg)
  grep -q "^    \"$name\": Recording(" scripts/record || fail "scripts/record does not make $file"
  [ "$(wc -c <"$file")" -le $most ] || fail "$file has more than $most bytes"
  grep -q '<title>..*</title>' "$file" || fail "$file has no title"
  if grep -q '<script' "$file"; then fail "$file has a script"; fi
  grep -Eq "!\[[^]]+\]\((docs/)?recordings/$name\.svg\)" README.md docs/*.md || fail "no page shows $file with a text"
done
made=$(grep -c '^    "[a-z-]*": Recording($' scripts/record)
[ "$made" -eq $count ] || fail "scripts/record makes $made recordings, and $count are there"
[ $failures -eq 0 ]
