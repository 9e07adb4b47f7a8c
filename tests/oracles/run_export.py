"""Runs an exported model with PyTorch, without Tutti, on numbers that a test can make, too.

run_export.py FOLDER EXAMPLES
  {"parameters": [name, ...], "buffers": [name, ...], "training": false, "outputs": [[number, ...], ...]}
"""

import json
import os
import sys

import torch


def example_of(spec, examples):
    """Whole numbers count up; others are multiples of 1/16 from -1 on, all of which are exact."""
    shape = [examples if size is None else size for size in spec["shape"]]
    dtype = getattr(torch, spec["dtype"])
    count = 1
    for size in shape:
        count *= size
    numbers = torch.arange(count) % 33
    if dtype.is_floating_point:
        return (numbers.to(dtype) / 16 - 1).view(shape)
    return numbers.to(dtype).view(shape)


def main(folder, examples):
    with open(os.path.join(folder, "signature.json")) as file:
        signature = json.load(file)
    model = torch.jit.load(os.path.join(folder, "model.pt"))
    model.eval()
    inputs = {spec["argument"]: example_of(spec, examples) for spec in signature["inputs"]}
    with torch.no_grad():
        outputs = model(**inputs)
    if torch.is_tensor(outputs):
        outputs = (outputs,)
    assert len(outputs) == len(signature["outputs"])
    print(json.dumps({
        "parameters": [name for name, _ in model.named_parameters()],
        "buffers": [name for name, _ in model.named_buffers()],
        "training": model.training,
        "outputs": [output.flatten().tolist() for output in outputs],
    }))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
