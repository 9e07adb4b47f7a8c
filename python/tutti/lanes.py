"""Lanes: a fixed number of shares of every batch, so that a training has the same bits on any number of ranks.

Each rank has a contiguous block of lanes. What lanes compute is added along a tree over the lanes, whoever has them, and
examples and random numbers depend on the lane and the step alone.
"""

from __future__ import annotations

import ctypes
import weakref

from ._library import Sampling, library
from .communicator import Communicator
from .errors import check


def lanes_of(rank: int, world: int, lanes: int) -> range:
    """The lanes of a rank."""
    begin, end = ctypes.c_int64(), ctypes.c_int64()
    check(library.tutti_lanes_of(rank, world, lanes, ctypes.byref(begin), ctypes.byref(end)))
    return range(begin.value, end.value)


def lane_seed(seed: int, step: int, lane: int) -> int:
    """The seed of the random numbers of a lane in a step: 64 bits."""
    mixed: int = library.tutti_lane_seed(seed, step, lane)
    return mixed


class Sampler:
    """Which examples each lane has at each step: every epoch has each example once, in an order of its own."""

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
        self._batch = batch

    def examples(self, step: int, lane: int) -> list[int]:
        """The numbers of the examples: `batch` of them, or fewer in the last step of an epoch."""
        room, count = (ctypes.c_int64 * self._batch)(), ctypes.c_size_t()
        check(library.tutti_lane_examples(ctypes.byref(self._how), step, lane, room, ctypes.byref(count)))
        return room[: count.value]


class LaneSum:
    """The sum over all lanes of all ranks, in memory: each lane of this rank leaves its values there, and is added."""

    def __init__(self, comm: Communicator, lanes: int, address: int, count: int, kind: int) -> None:
        self._comm = comm
        self._handle = ctypes.c_void_p()
        comm.make("tutti_lane_sum_new", lanes, address, count, kind, ctypes.byref(self._handle))
        weakref.finalize(self, library.tutti_lane_sum_free, self._handle)

    def add(self, *, has_data: bool = True) -> None:
        """Adds the next lane of this rank. One without data leaves no trace."""
        self._comm.require_open("the sum of lanes")
        check(library.tutti_lane_sum_add(self._handle, has_data))

    def finish(self, divisor: float = 0) -> None:
        """Leaves the sum of all lanes in memory, divided by the divisor if there is one. Every rank calls it."""
        self._comm.require_open("the sum of lanes")
        self._comm.waits += 1
        try:
            check(library.tutti_lane_sum_finish(self._handle, divisor, None))
        finally:
            self._comm.waits -= 1

    def reset(self) -> None:
        """Forgets the lanes of a step that was broken off."""
        check(library.tutti_lane_sum_reset(self._handle))


def crc32c(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """The checksum of the files of a checkpoint."""
    view = memoryview(data).cast("B")
    if view.readonly:
        buffer: ctypes.Array[ctypes.c_char] = ctypes.create_string_buffer(bytes(view), len(view))
    else:
        buffer = (ctypes.c_char * len(view)).from_buffer(view)
    checksum: int = library.tutti_crc32c(buffer, len(view), before)
    return checksum


__all__ = ["LaneSum", "Sampler", "crc32c", "lane_seed", "lanes_of"]
