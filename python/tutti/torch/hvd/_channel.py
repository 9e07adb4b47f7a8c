"""The ranks of a process set, which tell each other what they are about to do.

Each operation begins with an announcement: a row of a few integers, which all ranks gather. It costs as much as a small
all_gather, 10 to 20 microseconds between the ranks of a host. It serves three purposes: a rank that has joined
(`hvd.join`) learns of the operations that it has to take part in, ranks learn the sizes of each other's tensors, and
calls that do not fit together are an error. Only operations that need the rows wait for them.
"""

from __future__ import annotations

import ctypes
import enum
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from ...communicator import Communicator, Type, Work
from ...errors import Error, InvalidArgument, Unimplemented
from .._tensors import TYPES

_FIELDS = 7  # of a row: joined, kind, type, op, count, details, size
_JOINED, _KIND, _TYPE, _COUNT, _SIZE = 0, 1, 2, 4, 6
_EQUAL = slice(1, 6)  # the fields that are the same on all ranks


class Kind(enum.IntEnum):
    """What is announced."""

    JOIN = 0
    ALLREDUCE = 1
    BARRIER = 2
    ALLGATHER = 3
    BROADCAST = 4
    ALLTOALL = 5
    REDUCESCATTER = 6


_DTYPES = {int(kind): dtype for dtype, kind in TYPES.items()}
_WITH_JOINED = (Kind.JOIN, Kind.ALLREDUCE, Kind.BARRIER)  # what ranks that have joined take part in


class Row:
    """What one rank has announced."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.joined: int | None = None if numbers[_JOINED] < 0 else numbers[_JOINED]
        self.kind = Kind(numbers[_KIND])
        self.type, self.op, self.count = numbers[_TYPE : _COUNT + 1]
        self.equal = tuple(numbers[_EQUAL])
        self.size = numbers[_SIZE]

    def __str__(self) -> str:
        text = self.kind.name.lower()
        if self.kind in (Kind.JOIN, Kind.BARRIER):
            return text
        number = f"{self.count} elements" if self.count else "elements"
        return f"{text} of {number} of the type {Type(self.type).name.lower()}"


class Announcement:
    """The rows of all ranks, once they are there."""

    def __init__(self, ranks: Sequence[int], own: int, rows: Any, work: Work | None) -> None:
        self._ranks, self._own, self._rows, self._work = ranks, own, rows, work
        self._sizes: list[int] | None = None

    def done(self) -> bool:
        return self._work is None or self._work.done()

    def rows(self) -> list[Row]:
        """Waits for all ranks."""
        if self._work is not None:
            self._work.wait()
        numbers = list(self._rows)
        return [Row(numbers[at : at + _FIELDS]) for at in range(0, len(numbers), _FIELDS)]

    def check(self) -> list[int]:
        """Waits for all ranks; raises an error if they have called different operations, or if one has joined that
        cannot take part. Returns the sizes of all ranks."""
        if self._sizes is None:
            self._sizes = self._checked()
        return self._sizes

    def _checked(self) -> list[int]:
        rows = self.rows()
        own = rows[self._own]
        for rank, row in zip(self._ranks, rows, strict=True):
            if row.joined is not None:
                if own.kind not in _WITH_JOINED:
                    raise Unimplemented(
                        f"{own.kind.name.lower()}: rank {rank} has called join(), after which only allreduce and "
                        "barrier can be called until all ranks have joined"
                    )
            elif row.equal != own.equal:
                same = str(row) == str(own)
                raise InvalidArgument(
                    f"rank {rank} called {row}, and rank {self._ranks[self._own]} called {own}"
                    + (" with another name, shape, factor, operation or root" if same else "")
                    + ": all ranks have to call the same operations in the same order, with the same names and shapes"
                )
        return [row.size for row in rows]


class Channel:
    """The communicator of a process set, with the ranks of its members."""

    def __init__(self, comm: Communicator, ranks: Sequence[int]) -> None:
        self.comm = comm
        self.ranks = list(ranks)
        self.world = comm.world
        self._round = 0  # how many operations were announced

    def announce(
        self,
        kind: Kind,
        type_: int = 0,
        op: int = 0,
        count: int = 0,
        *,
        details: str = "",
        size: int = 0,
        what: str = "",
        joined: int = -1,
        behind: bool = False,
    ) -> Announcement:
        """Tells all ranks of the set about an operation. `details` has what has to be equal besides; `size` may
        differ."""
        self._round += 1
        row = (ctypes.c_int64 * _FIELDS)(joined, kind, type_, op, count, zlib.crc32(details.encode()), size)
        if self.world == 1:
            return Announcement(self.ranks, 0, row, None)
        rows = (ctypes.c_int64 * (_FIELDS * self.world))()
        kept = (row, rows) if behind else None
        work = self.comm.call("tutti_all_gather", row, rows, _FIELDS, Type.INT64, what=what, behind=kept)
        return Announcement(self.ranks, self.comm.rank, rows, work)

    def join(self) -> int:
        """Takes part with zeros in the operations of the others until they have joined, too. Returns the rank that
        was the last."""
        first = self._round
        while True:
            rows = self.announce(Kind.JOIN, joined=first, what="join()").rows()
            working = [row for row in rows if row.joined is None]
            if not working:
                joined = [row.joined or 0 for row in rows]
                return max(zip(joined, self.ranks, strict=True))[1]
            fitting = len({row.equal for row in working}) == 1  # if not, the others have an error
            if fitting and working[0].kind == Kind.ALLREDUCE:
                self._reduce_zeros(working[0])

    def _reduce_zeros(self, row: Row) -> None:
        zeros = torch.zeros(row.count, dtype=_DTYPES[row.type])
        self.comm.call("tutti_all_reduce", zeros.data_ptr(), zeros.data_ptr(), row.count, row.type, row.op)


class Operation:
    """An operation that may still be running: its announcement, its works, and what writes its result."""

    def __init__(self, announced: Announcement, work: Work | None, finish: Any) -> None:
        self._announced, self._work, self._finish = announced, work, finish

    def done(self) -> bool:
        """Returns True if result() does not wait."""
        try:
            return self._announced.done() and (self._work is None or self._work.done())
        except Error:
            return True  # result() raises it

    def result(self) -> Any:
        self._announced.check()
        if self._work is not None:
            self._work.wait()
        return self._finish()


class Together:
    """Several operations as one."""

    def __init__(self, operations: Sequence[Any]) -> None:
        self._operations = operations

    def done(self) -> bool:
        return all(operation.done() for operation in self._operations)

    def result(self) -> tuple[Any, ...]:
        return tuple(operation.result() for operation in self._operations)
