#!/bin/sh
# Usage: lanes_test.sh LIBRARY_DIR COMMAND PROGRAMS_DIR SOURCES: the same weights on any number of ranks, after kills and resumes, and as
# those of the C++ program.
set -eu
python=${TUTTI_TEST_TORCH_PYTHON-}
if [ -z "$python" ]; then
  echo "no Python with PyTorch (scripts/peer-python BUILD_DIR torch)"
  exit 77
fi
tutti=$2
twin=$3/twin_program
sources=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export LD_LIBRARY_PATH="$1" PYTHONPATH="$sources/python" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1

# Runs a program on so many ranks and prints the hash that all of them have printed.
hash_on() { # WORLD PROGRAM ARGUMENTS...
  world=$1
  shift
  "$tutti" run -n "$world" --min 1 --restarts 2 -- "$python" "$sources/tests/python/$1" $2 >"$scratch/out" 2>"$scratch/err" || {
    cat "$scratch/out" "$scratch/err" >&2
    exit 1
  }
  sed -n 's/.*hash \([0-9a-f]*\) .*/\1/p' "$scratch/out" | sort | uniq -c | {
    read -r count hash
    [ "$count" = "$world" ] && echo "$hash"
  }
}
same() { # WHAT HASH HASH
  [ -n "$2" ] && [ "$2" = "$3" ] || {
    echo "$1: $3, expected $2" >&2
    exit 1
  }
  echo "$1: $2"
}

for optimizer in adamw sgd; do
  alone=$("$python" "$sources/tests/python/lanes_program.py" --optimizer $optimizer --epochs 4 | cut -d' ' -f2)
  for world in 2 3 4 6; do
    same "$optimizer on $world" "$alone" "$(hash_on $world lanes_program.py "--optimizer $optimizer --epochs 4")"
  done
  for rank in 0 1; do
    same "$optimizer, rank $rank killed and back" "$alone" \
      "$(hash_on 3 lanes_program.py "--optimizer $optimizer --epochs 4 --kill $rank@8 --mark $scratch/$optimizer$rank --wait-for 3")"
  done
  hash_on 2 lanes_program.py "--optimizer $optimizer --epochs 2 --folder $scratch/$optimizer" >/dev/null
  same "$optimizer, resumed on 3" "$alone" \
    "$(hash_on 3 lanes_program.py "--optimizer $optimizer --epochs 4 --folder $scratch/$optimizer --workers 1")"
done

# SIGTERM: after the step all save and end, or under --min the one that got it, so that nothing is made again.
program=$sources/tests/python/lanes_program.py
for rank in 0 1; do
  "$tutti" run -n 2 -- "$python" "$program" --folder "$scratch/stopped$rank" --stop $rank@8 >"$scratch/out" 2>&1 && exit 1
  [ -d "$scratch/stopped$rank/ckpt-9" ] && grep -q 'exit code 143 (SIGTERM)' "$scratch/out"
  same "rank $rank of 2 stopped, resumed on 3" "$("$python" "$program" | cut -d' ' -f2)" \
    "$(hash_on 3 lanes_program.py "--folder $scratch/stopped$rank")"
  "$tutti" run -n 3 --min 1 -- "$python" "$program" --stop $rank@8 >"$scratch/out" 2>"$scratch/err"
  same "rank $rank of 3 stopped, the others go on" "2 $("$python" "$program" | cut -d' ' -f2)" \
    "$(sed -n 's/.*hash \([0-9a-f]*\) .*/\1/p' "$scratch/out" | sort | uniq -c | sed 's/^ *//')"
  grep -q 'the other 2 go on' "$scratch/err"
done

# One that comes when the last step has been made ends the program once that is saved.
code=0
"$python" "$program" --folder "$scratch/late" --stop late >"$scratch/out" 2>&1 || code=$?
[ $code = 143 ] && [ -d "$scratch/late/ckpt-18" ] && ! grep -q hash "$scratch/out"

"$python" "$sources/tests/python/lanes_mistakes_program.py" "$scratch/mistakes"

# What differs is an error, since nothing else would tell.
for what in rate decay clip_norm seed epochs; do
  if "$tutti" run -n 2 -- "$python" "$sources/tests/python/lanes_program.py" --differ $what >"$scratch/out" 2>&1; then
    echo "no error with another $what" >&2
    exit 1
  fi
  grep -qE 'the ranks (have different learning rates|train with different settings) at step 0' "$scratch/out"
done

# The program of docs/start/pytorch.md.
awk '/^```python same.py/ { on = 1; next } /^```/ { on = 0 } on' "$sources/docs/start/pytorch.md" >"$scratch/same.py"
page_on() { # WORLD
  rm -rf "$scratch/run"
  (cd "$scratch" && "$tutti" run -n "$1" -- "$python" same.py) | sed 's/^\[[^]]*\] //' | sort -u
}
alone=$(cd "$scratch" && "$python" same.py)
same "the page on 2" "$alone" "$(page_on 2)"
same "the page on 4" "$alone" "$(page_on 4)"

# In Python and in C++, with LibTorch's kernels.
program=$sources/tests/python/twin_program.py
"$python" "$program" begin "$scratch/first"
of_python=$("$python" "$program" train "$scratch/first" "$scratch/python" 3 | cut -d' ' -f2)
"$twin" --weights "$scratch/first/ckpt-0" --lanes 4 --batch 4 --epochs 3 --seed 3 --no-drop-remainder --kernels libtorch --threads 1 --logdir "$scratch/cpp" --report "$scratch/report.json" >/dev/null
of_cpp=$(sed -n 's/.*"weights_sha256": *"\([0-9a-f]*\)".*/\1/p' "$scratch/report.json")
same "C++ and Python" "$of_cpp" "$of_python"
"$tutti" inspect "$scratch/python/latest" | grep -q "$of_python"
same "C++'s checkpoint in Python" "21 $of_cpp" "$("$python" "$program" read "$scratch/cpp")"
# Python goes on where C++ has stopped.
"$twin" --weights "$scratch/first/ckpt-0" --lanes 4 --batch 4 --epochs 2 --seed 3 --no-drop-remainder --kernels libtorch --threads 1 --logdir "$scratch/half" >/dev/null
same "begun in C++ and ended in Python" "21 $of_cpp" "$("$python" "$program" train "$scratch/first" "$scratch/half" 3)"
