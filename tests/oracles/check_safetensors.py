"""Reads a safetensors file with the `safetensors` package and compares it with what is expected.

check_safetensors.py FILE EXPECTED   where EXPECTED is JSON:
  {"metadata": {...} or null, "tensors": {name: {"dtype": "F32", "shape": [2], "values": [1.0, 2.0]}}}
check_safetensors.py --write FILE    writes a file with tensors of known values, for the other direction.
"""

import json
import sys

import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def bfloat16(raw):
    bits = numpy.frombuffer(raw, dtype="<u2").astype("<u4") << 16
    return bits.view("<f4")


def raw_tensors(path):
    """NumPy has no bfloat16, so that the package's loader cannot be asked for it: its header is read instead."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = file.read()
    return {name: (entry, data[slice(*entry["data_offsets"])]) for name, entry in header.items()
            if name != "__metadata__"}


def check(path, expected):
    with safe_open(path, framework="numpy") as file:
        assert sorted(file.keys()) == sorted(expected["tensors"]), (sorted(file.keys()), sorted(expected["tensors"]))
        assert file.metadata() == expected["metadata"], file.metadata()
        slices = {name: file.get_slice(name) for name in file.keys()}
        for name, want in expected["tensors"].items():
            assert slices[name].get_dtype() == want["dtype"], (name, slices[name].get_dtype())
            assert slices[name].get_shape() == want["shape"], (name, slices[name].get_shape())
    raw = raw_tensors(path)
    whole = {} if any(w["dtype"] == "BF16" for w in expected["tensors"].values()) else load_file(path)
    for name, want in expected["tensors"].items():
        got = bfloat16(raw[name][1]) if want["dtype"] == "BF16" else whole.get(name)
        if got is None:
            continue
        assert got.reshape(-1).tolist() == want["values"], (name, got.reshape(-1).tolist(), want["values"])


def write(path):
    save_file(
        {
            "float": numpy.array([[1.5, -2.5], [0.0, 3e38]], dtype=numpy.float32),
            "long": numpy.array([1, -(2**62)], dtype=numpy.int64),
            "bool": numpy.array([True, False, True]),
            "half": numpy.array(0.5, dtype=numpy.float16),
            "empty": numpy.zeros((0, 3), dtype=numpy.float64),
        },
        path,
        metadata={"from": "python"},
    )


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(sys.argv[2])
    else:
        check(sys.argv[1], json.loads(sys.argv[2]))
