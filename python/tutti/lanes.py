"""Lanes: a fixed number of shares of every batch, so that a training has the same bits on any number of ranks.

Each rank computes a contiguous block of lanes. The results of the lanes are added along a tree over the lanes, which is
the same on any number of ranks, and examples and random numbers depend on the lane and the step alone.
"""

from __future__ import annotations

import ctypes
import weakref

from ._library import Sampling, library
from .communicator import Communicator
from .errors import check


def lanes_of(rank: int, world: int, lanes: int) -> range:
    """Returns the lanes of a rank."""
    begin, end = ctypes.c_int64(), ctypes.c_int64()
    check(library.tutti_lanes_of(rank, world, lanes, ctypes.byref(begin), ctypes.byref(end)))
    return range(begin.value, end.value)


def lane_seed(seed: int, step: int, lane: int) -> int:
    """Returns the 64-bit seed of the random numbers of a lane in a step."""
    mixed: int = library.tutti_lane_seed(seed, step, lane)
    return mixed


class Sampler:
    """Chooses the examples of each lane at each step. Every epoch has each example once, in its own order.

    `batch` is the number of examples of a lane in a step. With `drop_remainder`, epochs have no step with fewer
    examples.
    """

    def __init__(
        self,
        examples: int,
        *,
        lanes: int,
        batch: int,
        seed: int = 1,
        shuffle: bool = True,
        drop_remainder: bool = False,
    ) -> None:
        self._how = Sampling(
            size=ctypes.sizeof(Sampling),
            examples=examples,
            lanes=lanes,
            batch=batch,
            seed=seed,
            in_order=not shuffle,
            drop_remainder=drop_remainder,
        )
        steps = ctypes.c_int64()
        check(library.tutti_steps_per_epoch(ctypes.byref(self._how), ctypes.byref(steps)))
        self.steps_per_epoch: int = steps.value
        """The number of steps of an epoch."""
        self._batch = batch

    def examples(self, step: int, lane: int) -> list[int]:
        """Returns the numbers of the examples: `batch` of them, or fewer in the last step of an epoch. Steps are
        counted over all epochs."""
        room, count = (ctypes.c_int64 * self._batch)(), ctypes.c_size_t()
        check(library.tutti_lane_examples(ctypes.byref(self._how), step, lane, room, ctypes.byref(count)))
        return room[: count.value]


class LaneSum:
    """Adds values of all lanes of all ranks, in the `count` numbers of the type `kind` (a `Type`) at `address`.

    For each of its lanes, in order, a rank writes the values there and calls add(). finish() then writes the sum there.
    """

    def __init__(self, comm: Communicator, lanes: int, address: int, count: int, kind: int) -> None:
        self._comm = comm
        self._handle = ctypes.c_void_p()
        comm.make("tutti_lane_sum_new", lanes, address, count, kind, ctypes.byref(self._handle))
        weakref.finalize(self, library.tutti_lane_sum_free, self._handle)

    def add(self, *, has_data: bool = True) -> None:
        """Adds the values of the next lane of this rank. A lane without data does not change the sum."""
        self._comm.require_open("the sum of lanes")
        check(library.tutti_lane_sum_add(self._handle, has_data))

    def finish(self, divisor: float = 0) -> None:
        """Writes the sum of all lanes, divided by the divisor unless that is 0. Every rank calls it."""
        self._comm.require_open("the sum of lanes")
        self._comm.waits += 1
        try:
            check(library.tutti_lane_sum_finish(self._handle, divisor, None))
        finally:
            self._comm.waits -= 1

    def reset(self) -> None:
        """Discards the lanes of a step that was not finished."""
        check(library.tutti_lane_sum_reset(self._handle))


def crc32c(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Returns the checksum of the files of a checkpoint, CRC-32C. `before` is the checksum of the bytes before
    these."""
    view = memoryview(data).cast("B")
    if view.readonly:
        buffer: ctypes.Array[ctypes.c_char] = ctypes.create_string_buffer(bytes(view), len(view))
    else:
        buffer = (ctypes.c_char * len(view)).from_buffer(view)
    checksum: int = library.tutti_crc32c(buffer, len(view), before)
    return checksum


__all__ = ["LaneSum", "Sampler", "crc32c", "lane_seed", "lanes_of"]
