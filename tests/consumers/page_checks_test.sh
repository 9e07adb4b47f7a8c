#!/bin/sh
# page_checks_test.sh CMAKE BUILD: page_test.sh finds what is wrong on a page, and accepts what may differ.
set -eu
cmake=$1
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Not the folder of other pages; nothing here needs an installation.
build=$scratch/build
failures=0

page() { # name, then the page on standard input
  cat >"$scratch/$1.md"
  "$here/page_test.sh" "$scratch/$1.md" "$cmake" "$build" >"$scratch/$1.log" 2>&1
}

failed() { # name, what is wrong
  echo "FAILED: $1: $2:"
  cat "$scratch/$1.log"
  failures=$((failures + 1))
}

accepted() { # name
  page "$1" || failed "$1" "was refused"
}

refused() { # name, what the log says
  if page "$1"; then failed "$1" "was accepted"; fi
  grep -qF -e "$2" "$scratch/$1.log" || failed "$1" "does not say '$2'"
}

accepted good <<'EOF'
Files are written where the shell is, and the shell goes on from block to block.
```sh
mkdir new && cd new
word=word
```
```python words.py
$word
```
```
rm words.py
```
```sh
cat words.py; echo "$word" >&2; pwd | sed 's#.*/##'
```
```text
$word
word
new
```
EOF

accepted varying <<'EOF'
```sh
echo "12:00:00.123 step 7  9,876 examples/s  0:00 left (pid 17) after 3.2 s"
seq 5
```
```text
10:11:12.987 step 7  1,234 examples/s  1:02 left (pid 4) after 30 s
1
...
4
...
```
EOF

refused other_line "the page shows:  2" <<'EOF'
```sh
seq 1; echo 3
```
```text
1
2
```
EOF

refused missing_line "printed was:     (nothing more)" <<'EOF'
```sh
seq 1
```
```text
...
2
```
EOF

refused further_line "the page does not show:  2" <<'EOF'
```sh
seq 2
```
```text
1
```
EOF

refused nothing_expected "the page does not show:  1" <<'EOF'
```sh
seq 1
```
```text
```
EOF

refused command_that_fails "command_that_fails.md:5" <<'EOF'
```sh
true
```
```sh
echo before
false
echo after
```
EOF

refused without_commands "has no commands" <<'EOF'
```
true
```
EOF

refused text_without_commands "nothing was run before line 1" <<'EOF'
```text
1
```
EOF

refused port_as_it_is "the page shows:  2222" <<'EOF'
```sh
echo localhost:2222
echo localhost:2222 | sed 's/.*://'
```
```text
localhost:2222
2222
```
EOF

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
