"""The ranks of this job, connected once in a process."""

from __future__ import annotations

import torch

from ..communicator import Communicator, Type, init

_connected: Communicator | None = None


def world() -> Communicator:
    """Returns the communicator of all ranks of this job. The first call connects them by `tutti.init()`, so every rank
    has to make it. A process without a launcher is alone."""
    global _connected
    if _connected is None:
        _connected = init()
    return _connected


def leave() -> None:
    """Closes the communicator of world(), if there is one."""
    global _connected
    if _connected is not None:
        _connected.close()
        _connected = None


def broadcast(comm: Communicator, data: torch.Tensor | None, source: int) -> torch.Tensor:
    """The bytes of the source, whose size the other ranks do not know."""
    given = torch.empty(0, dtype=torch.uint8) if data is None else data
    size = torch.tensor([given.numel()], dtype=torch.int64)
    comm.call("tutti_broadcast", size.data_ptr(), 1, Type.INT64, source, what="the state")
    if data is None:
        given = torch.empty(int(size), dtype=torch.uint8)
    comm.call("tutti_broadcast", given.data_ptr(), given.numel(), Type.UINT8, source, what="the state")
    return given
