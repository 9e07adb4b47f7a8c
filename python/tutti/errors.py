"""The exceptions. Each has the text of the library: one line, which names the rank at fault."""

from __future__ import annotations

from ._library import library


class Error(RuntimeError):
    """Every error of Tutti."""


class InvalidArgument(Error, ValueError):
    """Change what was asked for."""


class PeerLost(Error, ConnectionError):
    """Another rank is gone."""


class Timeout(Error, TimeoutError):
    """A rank is late."""


class DataLoss(Error):
    """Bytes are missing or wrong."""


class Overloaded(Error):
    """Memory, descriptors or the like ran out."""


class Unimplemented(Error, NotImplementedError):
    """This build does not support it."""


class Bug(Error):
    """A bug in Tutti: report it."""


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
