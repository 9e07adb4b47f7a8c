"""The exceptions. The text of each is one line, which names the rank at fault."""

from __future__ import annotations

import operator

from ._library import library


class Error(RuntimeError):
    """The base of all errors of Tutti."""


class InvalidArgument(Error, ValueError):
    """An argument is wrong, or the call is not possible now."""


class PeerLost(Error, ConnectionError):
    """Another rank has ended, or cannot be reached any more."""


class Timeout(Error, TimeoutError):
    """Another rank did not take part before the timeout."""


class DataLoss(Error):
    """Bytes of a file or a message are missing or wrong."""


class Overloaded(Error):
    """Memory, file descriptors or another resource ran out."""


class Unimplemented(Error, NotImplementedError):
    """This build of Tutti does not support the call."""


class Bug(Error):
    """A bug in Tutti. Please report it."""


_KINDS: tuple[type[Error], ...] = (
    Error,
    InvalidArgument,
    PeerLost,
    Timeout,
    DataLoss,
    Overloaded,
    Unimplemented,
    Bug,
)


def check(status: int) -> None:
    """Raises the error of a status of the C interface."""
    if status:
        raise _KINDS[status](library.tutti_error_text().decode(errors="replace"))


def as_int(value: int, name: str) -> int:
    """Returns the value if the C interface can have it. ctypes would drop the bits that an int does not have."""
    try:
        value = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}; expected a whole number") from None
    if not -(2**31) <= value < 2**31:
        raise InvalidArgument(f"{name} is {value}; it must fit into 32 bits")
    return value


__all__ = ["Bug", "DataLoss", "Error", "InvalidArgument", "Overloaded", "PeerLost", "Timeout", "Unimplemented"]
