#!/bin/sh
# Usage: horovod_test.sh LIBRARY_DIR COMMAND SOURCES: programs of Horovod over Tutti, with their import line changed.
set -eu
python=${TUTTI_TEST_TORCH_PYTHON-}
if [ -z "$python" ]; then
  echo "no Python with PyTorch (scripts/peer-python BUILD_DIR torch)"
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export LD_LIBRARY_PATH="$1" PYTHONPATH="$3/python" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
command=$2

# Every name of the interface.
program=$3/tests/python/horovod_program.py
"$python" "$program" # alone, without a launcher
for world in 1 2 3 4; do
  count=$("$command" run -n "$world" -- "$python" "$program" | grep -c 'all is well')
  [ "$count" = "$world" ] || { echo "$world ranks: $count have ended well" >&2; exit 1; }
done
count=$("$command" run -n 3 -- env TUTTI_COMM=tcp "$python" "$program" | grep -c 'all is well')
[ "$count" = 3 ] || { echo "3 ranks over tcp: $count have ended well" >&2; exit 1; }
"$python" -m torch.distributed.run --nproc-per-node 2 "$program" | grep 'all is well'

over_tutti() {
  sed -e 's/^import horovod.torch as hvd$/import tutti.torch.hvd as hvd/' -e '/^import horovod$/d' "$1"
}

# The program of the page for people who come from Horovod, as it is written for Horovod.
awk '/^```python/ && !done { on = done = 1; next } /^```/ { on = 0 } on' "$3/docs/start/horovod.md" >"$scratch/horovod.py"
grep -q '^import horovod.torch as hvd$' "$scratch/horovod.py"
over_tutti "$scratch/horovod.py" >"$scratch/train.py"
for run in 1 2; do
  "$command" run -n 2 -- "$python" "$scratch/train.py" | sed 's/^.*step /step /' >"$scratch/$run"
done
cat "$scratch/1"
[ "$(wc -l <"$scratch/1")" = 3 ] && cmp "$scratch/1" "$scratch/2"
awk '/^step 1500/ { found = $4 < 0.05 } END { exit !found }' "$scratch/1"

# Horovod's own example, from a checkout of its sources (its package on PyPI does not have it).
example=${TUTTI_TEST_HOROVOD-}/examples/pytorch/pytorch_mnist.py
mnist=${TUTTI_TEST_MNIST-}
if [ ! -f "$example" ] || [ ! -d "$mnist" ]; then
  echo "pytorch_mnist.py was left out: TUTTI_TEST_HOROVOD is not a checkout of Horovod, or TUTTI_TEST_MNIST no folder"
  exit 0
fi
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$scratch/vision" torchvision pillow || exit 77
mkdir -p "$scratch/data/MNIST/raw"
for file in "$mnist"/*.gz; do
  gzip -dc "$file" >"$scratch/data/MNIST/raw/$(basename "$file" .gz)"
done
over_tutti "$example" >"$scratch/pytorch_mnist.py"
for options in "" "--fp16-allreduce --gradient-predivide-factor 2"; do
  # shellcheck disable=SC2086  # several words
  "$command" run -n 2 -- env HOME="$scratch" PYTHONPATH="$PYTHONPATH:$scratch/vision" "$python" -W ignore "$scratch/pytorch_mnist.py" \
    --no-cuda --epochs 1 --data-dir "$scratch/data" $options >"$scratch/mnist"
  grep 'Accuracy' "$scratch/mnist"
  # Without training it is 10%.
  sed -n 's/.*Accuracy: \(.*\)%.*/\1/p' "$scratch/mnist" | awk '{ found = $1 > 90 } END { exit !found }'
done
