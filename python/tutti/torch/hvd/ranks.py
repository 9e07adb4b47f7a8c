"""The ranks of the job, and sets of them that run operations among themselves."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from ..._library import library
from ...communicator import Communicator, Type
from ...errors import InvalidArgument, Unimplemented
from .. import _world
from ._channel import Channel

# Horovod's interface has one job in a process, between init() and shutdown().
_comm: Communicator | None = None
_channels: dict[int, Channel] = {}  # of the process sets that this rank is a member of, by their numbers
_sets: dict[int, ProcessSet] = {}
_added = 0  # how many process sets were ever added, the same on all ranks
_places: list[tuple[int, int]] = []  # of all ranks: the rank among those of its host, and their number


class ProcessSet:
    """Some of the ranks. After `hvd.init(process_sets=[...])` or `hvd.add_process_set()`, which all ranks of the job
    call, its members can run operations with `process_set=`. Ranks in calls, such as a root, are those of the job."""

    process_set_id: int | None = None
    """The number of the set; None if it was not added."""
    ranks: list[int] | None = None
    """The ranks of the set, in ascending order."""
    mpi_comm = None

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        try:
            ranks = sorted(ranks_or_comm)
        except TypeError:
            raise InvalidArgument("a ProcessSet is made of a list of ranks") from None
        if any(not isinstance(each, int) for each in ranks):
            raise InvalidArgument(f"a ProcessSet is made of a list of ranks; got {ranks_or_comm}")
        self.ranks = ranks

    def size(self) -> int | None:
        """Returns the number of its ranks; None if it was not added."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """Returns the rank of this process among its members; None if it was not added."""
        return None if self.process_set_id is None else channel_of(self).comm.rank

    def included(self) -> bool:
        """Returns True if this process is a member."""
        return rank() in (self.ranks or ())

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


global_process_set = ProcessSet([])
"""The process set of all ranks."""
global_process_set.process_set_id = 0


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Connects all ranks of the job, which have to call it. Rank and size come from the launcher's environment."""
    global _comm
    if _comm is not None:
        return
    world = _world.world()
    if comm and (not isinstance(comm, Sequence) or list(comm) != list(range(world.world))):
        raise Unimplemented("hvd.init() takes all ranks of the job; add a ProcessSet for some of them")
    places = torch.empty((world.world, 2), dtype=torch.int64)
    own = torch.tensor([world.local_rank, world.local_world])
    world.call("tutti_all_gather", own.data_ptr(), places.data_ptr(), 2, Type.INT64, what="hvd.init()")
    _places[:] = [(int(place[0]), int(place[1])) for place in places]
    _comm = world
    global_process_set.ranks = list(range(world.world))
    _channels[0] = Channel(world, global_process_set.ranks)
    _sets[0] = global_process_set
    if not isinstance(process_sets, str):  # "dynamic": they are added later, which is always possible
        for process_set in process_sets or ():
            add_process_set(process_set)


def shutdown() -> None:
    """Disconnects from the other ranks once all operations have ended. Does nothing if init() was not called."""
    global _comm
    if _comm is None:
        return
    for number, channel in _channels.items():
        if number:
            channel.comm.close()
    for number, process_set in _sets.items():
        if number:
            process_set.process_set_id = None
    _channels.clear()
    _sets.clear()
    global_process_set.ranks = []
    _comm = None
    _world.leave()


def is_initialized() -> bool:
    """Returns True between init() and shutdown()."""
    return _comm is not None


def _connected() -> Communicator:
    if _comm is None:
        raise InvalidArgument("call hvd.init() first")
    return _comm


def channel_of(process_set: ProcessSet) -> Channel:
    """The connection of the members of a process set, of which this process is one."""
    _connected()
    number = process_set.process_set_id
    if number is None or number not in _sets:
        raise InvalidArgument(f"{process_set} is not known: call hvd.add_process_set() on all ranks first")
    if number not in _channels:
        raise InvalidArgument(f"rank {rank()} is not a member of {process_set}")
    return _channels[number]


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a process set usable. All ranks call it, with the same sets in the same order."""
    global _added
    comm = _connected()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = process_set.ranks or []
    if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(comm.world)):
        raise InvalidArgument(f"{process_set}: expected different ranks of 0 to {comm.world - 1}")
    if any(ranks == other.ranks for other in _sets.values()):
        raise InvalidArgument(f"there is already a process set of these ranks: {process_set}")
    _added += 1
    if comm.rank in ranks:
        _channels[_added] = Channel(comm.group(ranks, f"hvd/{_added}"), ranks)
    process_set.process_set_id = _added
    _sets[_added] = process_set
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Closes the connections of a process set. All ranks call it. Returns False if it was not added, and for the set
    of all ranks."""
    number = process_set.process_set_id
    if not number or _sets.pop(number, None) is None:
        return False
    process_set.process_set_id = None
    channel = _channels.pop(number, None)
    if channel is not None:
        channel.comm.close()
    return True


def rank() -> int:
    """Returns the rank of this process."""
    return _connected().rank


def size() -> int:
    """Returns the number of ranks."""
    return _connected().world


def local_rank() -> int:
    """Returns the rank of this process among those of its host."""
    return _connected().local_rank


def local_size() -> int:
    """Returns the number of ranks of this host."""
    return _connected().local_world


def cross_rank() -> int:
    """Returns the rank of this process among the processes with the same local rank on all hosts."""
    comm = _connected()
    return sum(local == comm.local_rank for local, _ in _places[: comm.rank])


def cross_size() -> int:
    """Returns the number of hosts with a process of this local rank."""
    comm = _connected()
    return sum(local == comm.local_rank for local, _ in _places)


def is_homogeneous() -> bool:
    """Returns True if all hosts have the same number of ranks."""
    _connected()
    return len({together for _, together in _places}) == 1


def mpi_enabled() -> bool:
    """Returns True if the ranks are connected by MPI (TUTTI_COMM=mpi)."""
    return _comm is not None and "mpi" in _comm.transport


def mpi_built() -> bool:
    """Returns True if the library is linked to MPI."""
    return hasattr(library, "MPI_Query_thread")


def mpi_threads_supported() -> bool:
    """Returns True if several threads may call MPI at the same time (MPI_THREAD_MULTIPLE)."""
    if not mpi_enabled():
        raise InvalidArgument("the ranks are not connected by MPI (TUTTI_COMM=mpi)")
    level = ctypes.c_int()
    library.MPI_Query_thread(ctypes.byref(level))
    return level.value == 3


def gloo_enabled() -> bool:
    """Returns False: this package does not use Gloo."""
    return False


def gloo_built() -> bool:
    """Returns False: this package does not use Gloo."""
    return False


def nccl_built() -> int:
    """Returns 0: this package does not use NCCL."""
    return 0


def ddl_built() -> bool:
    """Returns False: this package does not use DDL."""
    return False


def ccl_built() -> bool:
    """Returns False: this package does not use oneCCL."""
    return False


def cuda_built() -> bool:
    """Returns False: this package does not use CUDA."""
    return False


def rocm_built() -> bool:
    """Returns False: this package does not use ROCm."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Raises Unimplemented. Use torch.profiler."""
    raise Unimplemented("hvd.start_timeline(): there are no timelines of programs in Python; use torch.profiler")


def stop_timeline() -> None:
    """Raises Unimplemented. Use torch.profiler."""
    raise Unimplemented("hvd.stop_timeline(): there are no timelines of programs in Python; use torch.profiler")
