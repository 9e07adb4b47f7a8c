#!/bin/sh
# The parts of ./dev docs that need neither Doxygen nor MkDocs, on small files: check-site finds each link that leads nowhere,
# check-comments each declaration without a comment, and the filters make of headers and pages what the tools read.
# shellcheck disable=SC2016  # the pages have backticks
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

expect() { # exit code, text that must be printed, or "" for nothing at all, command...
  wanted=$1 text=$2
  shift 2
  status=0
  printed=$("$@" 2>&1) || status=$?
  if [ "$status" -ne "$wanted" ] || ! printf '%s\n' "$printed" | grep -qF -- "$text" || { [ -z "$text" ] && [ -n "$printed" ]; }; then
    echo "FAILED: $*: wanted exit code $wanted and '$text', got $status and:"
    printf '%s\n' "$printed"
    failures=$((failures + 1))
  fi
}

site() { # HTML of index.html
  mkdir -p "$tree/site/api"
  echo "$1" >"$tree/site/index.html"
  echo '<h2 id="place">A</h2><a id="x" name="other"></a><a href="../index.html#top">up</a>' >"$tree/site/api/page.html"
}
top='<h1 id="top">Top</h1>'
site "$top<a href=\"api/page.html#place\">a</a><a class=\"b\" href=\"api/page.html#other\">b</a><a href=\"https://example.org\">c</a>"
expect 0 '' "$root/scripts/check-site" "$tree/site"
site "$top<a href=\"api/pages.html\">a</a>"
expect 1 'index.html: there is no api/pages.html' "$root/scripts/check-site" "$tree/site"
site "$top<a href=\"api/page.html#places\">a</a>"
expect 1 'index.html: there is no place for api/page.html#places' "$root/scripts/check-site" "$tree/site"
site "<h1>no place</h1>"
expect 1 'api/page.html: there is no place for ../index.html#top' "$root/scripts/check-site" "$tree/site"
site "$top<script src=\"https://example.org/a.js\"></script>"
expect 1 'index.html: loads https://example.org/a.js from another server' "$root/scripts/check-site" "$tree/site"

header() { # line...
  printf '%s\n' "$@" >"$tree/header.h"
}
header '// Options of a thing.' 'struct ThingOptions {' '  int a = 0;  // first' '  // Second.' '  int b = 0;' '};' '// A thing.' 'class Thing {' ' private:' '  struct Part {};' '};'
expect 0 '' "$root/scripts/check-comments" "$tree/header.h"
header '// Options of a thing.' 'struct ThingOptions {' '  int a = 0;  // first' '  int b = 0;' '};'
expect 1 'header.h:4: no comment for   int b = 0;' "$root/scripts/check-comments" "$tree/header.h"
header '// The file.' '' 'class Thing {' '};'
expect 1 'header.h:3: no comment above: class Thing {' "$root/scripts/check-comments" "$tree/header.h"

filtered() { # line that must be there, lines of a header...
  wanted_line=$1
  shift
  header "$@"
  expect 0 "$wanted_line" awk -f "$root/docs/site/comments.awk" "$tree/header.h"
  [ "$(awk -f "$root/docs/site/comments.awk" "$tree/header.h" | wc -l)" -eq $# ] || {
    echo "FAILED: comments.awk moves lines of: $*"
    failures=$((failures + 1))
  }
}
filtered '/// A thing of a \<name\>, \--flag and `a <b>`.' '// A thing of a <name>, --flag and `a <b>`.' 'class Thing;'
filtered '  int a = 0;  ///< first' 'struct Thing {' '  int a = 0;  // first' '};'
filtered '// The file.' '// The file.' '' 'class Thing;'
filtered '///\code{.cpp} Thing thing; \endcode' '// A thing:' '//   Thing thing;' 'class Thing;'
header 'class Thing {' ' public:' '  void shown();' ' private:' '  void hidden();' '};'
expect 1 '' sh -c "awk -f '$root/docs/site/comments.awk' '$tree/header.h' | grep hidden"

printf 'tutti::Thing\tclassThing.html\ntutti/thing.h\tthing_8h.html\n' >"$tree/names"
mkdir -p "$tree/docs" "$tree/examples/01"
rewritten() { # line that must be there, lines of a page...
  wanted_line=$1
  shift
  printf '%s\n' "$@" >"$tree/docs/page.md"
  expect 0 "$wanted_line" sh -c "cd '$tree' && awk -v page=docs/page.md -f '$root/docs/site/pages.awk' names docs/page.md"
}
rewritten 'see [thing.h](../api/thing_8h.html)' 'see [thing.h](../tutti/thing.h)'
rewritten '[`Thing`](../api/classThing.html)' '[`Thing`](../tutti/thing.h)'
rewritten 'a [`tutti::Thing`](../api/classThing.html) and `tutti::Thing`' 'a `tutti::Thing` and `tutti::Thing`'
rewritten '[one](../examples/01/README.md)' '[one](../examples/01)'
rewritten '```cpp title="a.cc"' '```cpp a.cc' '```'
rewritten '`[](int& i) { return i; }`' '`[](int& i) { return i; }`'

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
