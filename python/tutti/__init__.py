"""Sums, collectives and messages between processes, with the same bits in each run.

    import tutti

    comm = tutti.init()  # connects the processes of: tutti run -n 4 -- python train.py
    tutti.numpy.all_reduce(comm, array)

Programs of PyTorch call `torch.distributed.init_process_group("tutti")`; before PyTorch 2.14 they import `tutti.torch`
first.
"""

from . import numpy as numpy
from ._library import library as _library
from .communicator import Communicator, KeyValueStore, Op, Type, Work, init
from .errors import (
    Bug,
    DataLoss,
    Error,
    InvalidArgument,
    Overloaded,
    PeerLost,
    Timeout,
    Unimplemented,
)

__version__: str = _library.tutti_version().decode()

__all__ = [
    "Bug",
    "Communicator",
    "DataLoss",
    "Error",
    "InvalidArgument",
    "KeyValueStore",
    "Op",
    "Overloaded",
    "PeerLost",
    "Timeout",
    "Type",
    "Unimplemented",
    "Work",
    "init",
    "numpy",
]
