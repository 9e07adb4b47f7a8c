#!/bin/sh
# Usage: pytorch_test.sh LIBRARY_DIR SOURCES: the program of docs/start/pytorch.md, trainings of all kinds, and PyTorch's own tests of
# torch.distributed on the backend "tutti".
set -eu
python=${TUTTI_TEST_TORCH_PYTHON-}
if [ -z "$python" ]; then
  echo "no Python with PyTorch (scripts/peer-python BUILD_DIR torch)"
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export LD_LIBRARY_PATH="$1" PYTHONPATH="$2/python" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1

awk '/^```python train.py/ { on = 1; next } /^```/ { on = 0 } on' "$2/docs/start/pytorch.md" >"$scratch/train.py"
for run in 1 2; do
  "$python" -m torch.distributed.run --nproc-per-node 2 "$scratch/train.py" >"$scratch/$run"
done
grep -q '^loss ' "$scratch/1" && cmp "$scratch/1" "$scratch/2"

for world in 1 2 4; do
  "$python" -m torch.distributed.run --nproc-per-node "$world" "$2/tests/python/pytorch_program.py" | grep 'all is well'
done
TUTTI_COMM=tcp "$python" -m torch.distributed.run --nproc-per-node 3 "$2/tests/python/pytorch_program.py" | grep 'all is well'

for arguments in "--world 2" "--world 3" "--world 4 --as-gloo" "--world 2 --as-gloo --transport tcp"; do
  echo "distributed_suite.py $arguments"
  # shellcheck disable=SC2086  # several words
  "$python" "$2/tests/python/distributed_suite.py" $arguments >"$scratch/suite" 2>&1 || {
    cat "$scratch/suite"
    exit 1
  }
  sed -n '/^passed/,$p' "$scratch/suite"
done
