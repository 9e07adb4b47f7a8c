"""The ranks of this job, connected once in a process."""

from __future__ import annotations

from ..communicator import Communicator, init

_connected: Communicator | None = None


def world() -> Communicator:
    """The communicator of all ranks of this job (`tutti.init()`), which every rank has to ask for. Connects at the
    first call; a process without a launcher is alone."""
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
