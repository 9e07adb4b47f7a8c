#!/bin/sh
# page_test.sh PAGE CMAKE BUILD: does what a page of docs/start says, from an empty folder, and compares what is printed with what
# the page shows (page.awk says how a page is read). Tutti is where the page has it installed: ~/tutti, here the installation
# BUILD/consumers/prefix. The home folder BUILD/consumers/pages/PAGE is kept until the next time, so that ccache finds the same
# paths again.
set -eu
page=$1
cmake=$2
build=$3
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$page" .md)
home=$build/consumers/pages/$name

if command -v ccache >/dev/null; then
  CCACHE_DIR=$(ccache -k cache_dir)
  export CCACHE_DIR CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
# Nothing that could tell where Tutti is, or what to do with it.
unset CMAKE_PREFIX_PATH PKG_CONFIG_PATH LD_LIBRARY_PATH CXXFLAGS LDFLAGS OMP_NUM_THREADS OMP_WAIT_POLICY
PATH=$(dirname "$cmake"):$PATH
HOME=$home
export PATH HOME

rm -rf "$home"
mkdir -p "$home"
ln -s "$build/consumers/prefix" "$home/tutti"
scratch=$home/.page
mkdir "$scratch"
line=0
printed=$scratch/none

begin() { # line of the page
  line=$1
  printed=$scratch/$line.printed
}

check() { # line of the page
  line=$1
  awk -f "$here/printed.awk" "$scratch/$line.expected" "$printed"
}

ended() { # exit code
  if [ "$1" -ne 0 ]; then
    echo "FAILED: $page:$line"
    if [ -f "$printed" ]; then cat "$printed"; fi
  fi
  for job in $(jobs -p); do kill "$job" 2>/dev/null || true; done
}

awk -v "folder=$scratch" -v "shift=$((3000 + $$ % 20000))" -f "$here/page.awk" "$page" >"$scratch/script"
[ -s "$scratch/script" ] || { echo "FAILED: $page has no commands" && exit 1; }
trap 'ended $?' EXIT
cd "$home"
. "$scratch/script"
echo "all as the page shows"
