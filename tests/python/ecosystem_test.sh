#!/bin/sh
# Usage: ecosystem_test.sh LIBRARY_DIR COMMAND SOURCES: PyTorch by `tutti run`, programs of Lightning, Accelerate and Transformers
# over the backend "tutti", and lanes in the Trainers of Lightning and Transformers.
set -eu
skip() {
  echo "$1"
  exit 77
}
[ -n "${TUTTI_TEST_TORCH_PYTHON-}" ] || skip "no Python with PyTorch (scripts/peer-python BUILD_DIR torch)"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export LD_LIBRARY_PATH="$1" PYTHONPATH="$3/python" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1 WANDB_MODE=disabled

run() { # what, command...
  what=$1
  shift
  echo "$what"
  "$@" >"$scratch/out" 2>&1 && grep -q 'all is well' "$scratch/out" || {
    cat "$scratch/out"
    exit 1
  }
}
tests=$3/tests/python
for first in tutti torch; do
  run "$first first" "$2" run -n 2 -- "$TUTTI_TEST_TORCH_PYTHON" "$tests/launched_program.py" "$first"
done
run "pytorch_program.py by tutti run" "$2" run -n 2 -- "$TUTTI_TEST_TORCH_PYTHON" "$tests/pytorch_program.py"

# An environment of its own, which finds that PyTorch, so that nothing is installed beside it.
"$TUTTI_TEST_TORCH_PYTHON" -m venv "$scratch/venv"
python=$scratch/venv/bin/python
folder_of_packages='import sysconfig; print(sysconfig.get_path("purelib"))'
"$TUTTI_TEST_TORCH_PYTHON" -c "$folder_of_packages" >"$("$python" -c "$folder_of_packages")/torch.pth"
"$python" -m pip install --quiet --retries 1 --timeout 30 lightning accelerate transformers || skip "pip does not reach Lightning and Accelerate"

run "Lightning starts the ranks" "$python" "$tests/lightning_program.py"
for program in lightning_program.py accelerate_program.py; do
  run "$program by tutti run" "$2" run -n 2 -- "$python" "$tests/$program"
  run "$program by torchrun" "$python" -m torch.distributed.run --nproc-per-node 2 "$tests/$program"
done

# Lanes: each framework has the weights of a loop, on any number of ranks, after kills and resumes.
report_of() { # RANKS COMMAND...: prints what every rank has printed
  ranks=$1
  shift
  "$@" >"$scratch/out" 2>&1 || {
    cat "$scratch/out" >&2
    exit 1
  }
  grep -oE '(hash|numbers) .*' "$scratch/out" | sort | uniq -c >"$scratch/reports"
  awk -v ranks="$ranks" '$1 == ranks { sub(/^ *[0-9]+ /, ""); print }' "$scratch/reports" >"$scratch/report"
  [ "$(wc -l <"$scratch/report")" = 2 ] || {
    echo "the $ranks ranks of $* differ:" >&2
    cat "$scratch/out" >&2
    exit 1
  }
}
same() { # WHAT EXPECTED: compares the first line of the last report, or all of it, with what is expected
  [ "$(head -n "$(echo "$2" | wc -l)" "$scratch/report")" = "$2" ] || {
    echo "$1: $(cat "$scratch/report"), expected $2" >&2
    exit 1
  }
  echo "$1: $(head -n 1 "$scratch/report")"
}
for framework in lightning transformers; do
  program=$tests/${framework}_lanes_program.py
  loop=$("$python" "$program" --loop | grep hash)
  report_of 1 "$python" "$program"
  same "$framework alone" "$loop"
  alone=$(cat "$scratch/report")
  for ranks in 2 3 4 6; do
    report_of $ranks "$2" run -n $ranks -- "$python" "$program"
    same "$framework on $ranks" "$alone"
  done
  report_of 2 "$python" -m torch.distributed.run --nproc-per-node 2 "$program"
  same "$framework by torchrun" "$alone"
  for folder in folder checkpoints; do
    report_of 2 "$2" run -n 2 -- "$python" "$program" --$folder "$scratch/$framework-$folder" --stop-after 8
    again="$program --$folder $scratch/$framework-$folder"
    [ $folder = folder ] || again="$again --resume"
    report_of 3 "$2" run -n 3 -- "$python" $again
    same "$framework, resumed on 3 from its $folder" "$loop"
  done
  for rank in 0 1; do
    report_of 3 "$2" run -n 3 --min 1 --restarts 2 -- "$python" "$program" --kill $rank@8 --mark "$scratch/$framework$rank" --wait-for 3
    same "$framework, rank $rank killed and back" "$loop"
  done
  if "$2" run -n 2 -- "$python" "$program" --stop-after 8 --differ >"$scratch/out" 2>&1; then exit 1; fi
  grep -q 'some ranks have ended the training at step 7, and others go on' "$scratch/out"
  loop=$("$python" "$program" --loop --bf16 | grep hash)
  report_of 2 "$2" run -n 2 -- "$python" "$program" --bf16
  same "$framework in bf16" "$loop"
done

# The programs of docs/start/pytorch.md.
for program in fit.py trainer.py; do
  awk -v name="$program" '/^```python/ { on = $2 == name; next } /^```/ { on = 0 } on' "$3/docs/start/pytorch.md" >"$scratch/$program"
  mkdir "$scratch/alone" "$scratch/two"
  alone=$(cd "$scratch/alone" && "$python" ../$program 2>"$scratch/err" | grep -o 'step .*')
  both=$(cd "$scratch/two" && "$2" run -n 2 -- "$python" ../$program 2>"$scratch/err" | grep -o 'step [0-9]* [0-9a-f]*$' | sort -u)
  [ -n "$alone" ] && [ "$alone" = "$both" ] || {
    cat "$scratch/err"
    echo "$program: $both, expected $alone"
    exit 1
  }
  echo "$program: $alone"
  rm -r "$scratch/alone" "$scratch/two"
done
run "mistakes with frameworks" "$python" "$tests/framework_mistakes_program.py" "$scratch/mistakes"
