#!/bin/sh
# Usage: c_interface_test.sh LIBRARY CHECK COMMAND SOURCES: what libtutti_comm.so needs and exports, the program of C on
# worlds of several sizes over each transport, and that of Fortran.
set -eu
library=$1
check=$2
command=$3
sources=$4
header=$sources/tutti/c/tutti.h

fail() {
  echo "$*" >&2
  exit 1
}

# Of other libraries, those of the system alone.
needed=$(objdump -p "$library" | awk '/NEEDED/ { print $2 }')
for name in $needed; do
  case $name in
    libstdc++.so.* | libm.so.* | libgcc_s.so.* | libc.so.* | ld-linux*.so.* | libcrypto.so.* | libssl.so.* | libfmt.so.* | libmpi.so.* | libasan.so.* | libubsan.so.* | libtsan.so.*) ;;
    *) fail "$library needs $name" ;;
  esac
done

# It exports the functions of the header, and nothing else.
declared=$(sed 's|/\*.*\*/||' "$header" | grep -o 'tutti_[a-z_0-9]*(' | tr -d '(' | sort -u)
exported=$(objdump -T "$library" | awk '$2 ~ /g/ && $4 == ".text" { print $NF }' | sort -u)
[ "$declared" = "$exported" ] || fail "$library exports other functions than $header declares:
$exported"
objdump -T "$library" | awk '$2 ~ /g/ && $4 == ".text" && !/TUTTI_[0-9]/ { print; bad = 1 } END { exit bad }' ||
  fail "a function without a version"

for transport in auto tcp; do
  for world in 1 2 3 4; do
    timeout 300 "$check" "$world" "$transport" || fail "$check $world $transport failed"
  done
done
timeout 300 "$check" 8

if ! command -v gfortran >/dev/null; then
  echo "no gfortran: the module of Fortran is not tried"
  exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
folder=$(dirname "$library")
(cd "$scratch" && gfortran -std=f2018 -Wall "$sources/tutti/c/tutti.f90" "$sources/tests/c/sums.f90" -L"$folder" -ltutti_comm \
  -Wl,-rpath,"$folder" -o sums)
for world in 1 3; do
  count=$("$command" run -n "$world" -- "$scratch/sums" | grep -c 'all is well')
  [ "$count" = "$world" ] || fail "$world ranks of Fortran: $count have ended well"
done
