#!/bin/sh
# scripts/kernel-log with a kernel's log of its own: crashes of our programs since the mark are found, and nothing else.
set -eu
tool=$(cd "$(dirname "$0")/.." && pwd)/scripts/kernel-log
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
mkdir -p "$folder/path" "$folder/build/bin" "$folder/build/test"
for program in bin/tutti bin/mnist test/together_program; do
  echo '#!/bin/sh' >"$folder/build/$program"
  chmod +x "$folder/build/$program"
done
# Stands for the real one, and prints the log; fails where there is none.
printf '#!/bin/sh\nexec cat "%s/log"\n' "$folder" >"$folder/path/dmesg"
chmod +x "$folder/path/dmesg"
PATH=$folder/path:$PATH

expect() { # exit code, text that must be printed exactly, arguments...
  wanted=$1
  text=$2
  shift 2
  status=0
  printed=$("$tool" "$@" 2>&1) || status=$?
  if [ "$status" -ne "$wanted" ] || [ "$printed" != "$text" ]; then
    printf "FAILED: kernel-log %s: wanted exit code %s and:\n%s\ngot %s and:\n%s\n" "$*" "$wanted" "$text" "$status" "$printed"
    failures=$((failures + 1))
  fi
}

expect 1 '' mark
expect 2 '' crashes 0 "$folder/build"

: >"$folder/log"
expect 0 0 mark
expect 0 '' crashes 0 "$folder/build"

cat >"$folder/log" <<'END'
[    1.500000] mnist[7]: segfault at 0 ip 0000 sp 0000 error 4 in mnist[1000+2000]
[   99.000001] EXT4-fs (vda): mounted filesystem
END
expect 0 99.000001 mark
expect 0 '' crashes 99.000001 "$folder/build"
before=$(cat "$folder/log")

is_found() { # line
  printf '%s\n%s\n' "$before" "$1" >"$folder/log"
  expect 1 "$1" crashes 99.000001 "$folder/build"
}
is_passed_over() { # line
  printf '%s\n%s\n' "$before" "$1" >"$folder/log"
  expect 0 '' crashes 99.000001 "$folder/build"
}
is_found '[  100.000000] mnist[12]: segfault at 10 ip 00007f sp 00007f error 6 in libtorch_cpu.so[7f+8f] likely on CPU 1'
is_found '[  100.000000] together_progra[12]: segfault at 0 ip 00 sp 00 error 4 in libc.so.6[7f+8f]'
is_found '[  100.000000] a_named_thread[12]: segfault at 0 ip 00 sp 00 error 4 in tutti[7f+8f]'
is_found '[  100.000000] traps: tutti[12] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+8f]'
is_found '[  100.000000] traps: tutti[12] trap invalid opcode ip:7f sp:7f error:0 in tutti[7f+8f]'
is_found '[  100.000000] Memory cgroup out of memory: Killed process 12 (mnist) total-vm:1kB, anon-rss:1kB'
is_found '[10000.000000] Out of memory: Killed process 12 (mnist) total-vm:1kB, anon-rss:1kB'
is_passed_over '[  100.000000] firefox[12]: segfault at 10 ip 00007f sp 00007f error 6 in libc.so.6[7f+8f]'
is_passed_over '[  100.000000] mnist[12] is only mentioned'
is_passed_over '[  100.000000] mnistery[12]: segfault at 10 ip 00007f sp 00007f error 6 in libc.so.6[7f+8f]'
echo 'no times: mnist[12]: segfault at 0' >"$folder/log"
expect 1 '' mark

if [ "$failures" -ne 0 ]; then exit 1; fi
