#!/bin/sh
# Usage: ecosystem_test.sh LIBRARY_DIR COMMAND SOURCES: PyTorch by `tutti run`, and programs of Lightning, Accelerate and Transformers
# over the backend "tutti".
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
