#!/bin/sh
# scripts/check-layers on small trees: what is in order passes, and each way out of order is named with file and line.
set -eu
check=$(cd "$(dirname "$0")/.." && pwd)/scripts/check-layers
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

write() { # file, line of text...
  mkdir -p "$tree/$(dirname "$1")"
  file=$1
  shift
  printf '%s\n' "$@" >"$tree/$file"
}

expect() { # exit code, text that must be printed
  status=0
  printed=$("$check" "$tree" 2>&1) || status=$?
  if [ "$status" -ne "$1" ] || ! printf '%s\n' "$printed" | grep -qF -- "$2"; then
    echo "FAILED: wanted exit code $1 and '$2', got $status and:"
    printf '%s\n' "$printed"
    failures=$((failures + 1))
  fi
}

good_tree() {
  rm -rf "${tree:?}"/*
  write tutti/base/error.h '#pragma once' '#include <string>'
  write tutti/data/feed.cc '#include "tutti/data/feed.h"' '#include <vector>' '#include "tutti/base/error.h"'
  write tutti/data/feed.h '#include <torch/types.h>'
  write tutti/tutti.h '#include "tutti/data/feed.h"' '#include "tutti/base/error.h"'
  write tools/run.cc '#include "tools/launch/launcher.h"' '#include "tutti/data/feed.h"'
  write examples/01_mnist/main.cc '#include <tutti/tutti.h>' '#include "examples/common/digits.h"'
  write bench/feed.cc '#include "examples/common/digits.h"'
  write tests/program.cc '#include "examples/common/digits.h"'
}

good_tree
expect 0 ''

good_tree
write tutti/base/up.cc '#include <string>' '' '  #  include "tutti/data/feed.h"'
expect 1 'tutti/base/up.cc:3: module base may not include tutti/data/feed.h: data comes after base'

good_tree
write tutti/base/angle.h '#include <tutti/data/feed.h>'
expect 1 'tutti/base/angle.h:1:'

good_tree
write tutti/cellar/wine.h '#pragma once'
expect 1 'tutti/cellar/wine.h:1: unknown module cellar'

good_tree
write tutti/data/x.cc '#include "tutti/cellar/wine.h"'
expect 1 'tutti/data/x.cc:1: unknown module cellar in tutti/cellar/wine.h'

good_tree
write tutti/data/x.cc '#include "tools/run.h"'
expect 1 'tutti/data/x.cc:1: tutti may not include tools/run.h'

good_tree
write tutti/data/x_test.cc '#include <examples/01_mnist/net.h>'
expect 1 'tutti/data/x_test.cc:1: tutti may not include examples/01_mnist/net.h'

good_tree
write tutti/data/x.cc '#include "tutti/tutti.h"'
expect 1 'tutti/data/x.cc:1: module data may not include tutti/tutti.h'

good_tree
write tutti/data/x.cc '#include "feed.h"'
expect 1 'tutti/data/x.cc:1: "feed.h" is not a path from the root'

good_tree
write tutti/data/x.cc '#include "tutti/base/../data/feed.h"'
expect 1 'tutti/data/x.cc:1:'

good_tree
write tools/x.cc '#include "examples/01_mnist/net.h"'
expect 1 'tools/x.cc:1: tools may not include examples/01_mnist/net.h'

good_tree
write tests/x.cc '#include "examples/01_mnist/net.h"'
expect 1 'tests/x.cc:1: tests may not include examples/01_mnist/net.h'

good_tree
write tutti/data/x.cc '#include "examples/common/digits.h"'
expect 1 'tutti/data/x.cc:1: tutti may not include examples/common/digits.h'

# Two mistakes are both named.
good_tree
write tutti/base/a.cc '#include "tutti/data/feed.h"'
write tutti/base/b.cc '// #include "tutti/data/feed.h" in a comment is fine' '#include "tutti/train/trainer.h"'
expect 1 'tutti/base/a.cc:1:'
expect 1 'tutti/base/b.cc:2:'

[ "$failures" -eq 0 ] || exit 1
echo "all as expected"
