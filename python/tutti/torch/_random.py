"""Random numbers that depend on a seed alone, and leave those of the program as they were."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within it PyTorch's generator of the CPU, Python's and NumPy's begin with this seed of 64 bits."""
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy else None
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy:
        numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        if numpy:
            numpy.random.set_state(of_numpy)
