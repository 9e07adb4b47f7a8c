"""Communicators, which connect the processes of a job. Operations on arrays are in `tutti.numpy`."""

from __future__ import annotations

import ctypes
import enum
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from . import _interrupts
from ._library import DONE, GET, SET, InitOptions, Options, Store, library
from .errors import InvalidArgument, as_int, check

_TRANSPORTS = ("auto", "shm", "tcp", "shm+tcp", "mpi", "shm+mpi")
_OPTIONS_SIZE = ctypes.sizeof(Options)


class Type(enum.IntEnum):
    """The types of elements."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    FLOAT32 = 6
    FLOAT64 = 7
    COMPLEX64 = 9
    COMPLEX128 = 10
    BOOL = 11
    BFLOAT16 = 15


class Op(enum.IntEnum):
    """How the values of all ranks are combined. The sum of booleans means "any", and their product "all". BAND, BOR and
    BXOR combine the bits of integers and booleans."""

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class KeyValueStore(Protocol):
    """A store by which init() can connect the ranks: every rank can read the values that any rank has set."""

    def set(self, key: str, value: str) -> None:
        """Sets the value of a key for all ranks."""
        ...

    def get(self, key: str, timeout: float) -> str:
        """Returns the value of a key. Waits until it is set, and raises an exception after `timeout` seconds."""
        ...


class Work:
    """An operation that may still be running. It keeps its buffers alive until it has ended."""

    def __init__(self, handle: ctypes.c_void_p, buffers: Any, comm: Communicator) -> None:
        self._handle = handle
        self._buffers = buffers
        self._comm = comm

    def wait(self) -> None:
        """Waits until the operation has ended. Raises its error if it has failed."""
        self._comm.waits += 1
        try:
            check(library.tutti_wait(self._handle))
        finally:
            self._comm.waits -= 1

    def done(self) -> bool:
        """Returns True if the operation has ended. Raises its error if it has failed."""
        ended = ctypes.c_int()
        check(library.tutti_test(self._handle, ctypes.byref(ended)))
        return ended.value != 0

    def then(self, call: Callable[[], None]) -> None:
        """Calls the function once the operation has ended or failed: from a thread of the library, or at once. It must
        not wait for operations."""
        number = next(_numbers)
        _calls[number] = call
        check(library.tutti_then(self._handle, _ended, number))

    def __del__(self) -> None:
        ended = ctypes.c_int()
        if library.tutti_test(self._handle, ctypes.byref(ended)) == 0 and not ended.value:
            # Nobody holds the buffers but this operation, which is still running.
            kept = [self._buffers]
            self.then(kept.clear)
        library.tutti_work_free(self._handle)


_numbers = itertools.count(1)
_calls: dict[int, Callable[[], None]] = {}  # what operations that still run will call


def _call(number: int) -> None:
    _calls.pop(number)()


_ended = DONE(_call)


class Communicator:
    """The connected ranks of a job, or a group of them.

    All ranks call the same operations in the same order, each from one thread at a time. After an operation has failed,
    later ones raise the same error until reconfigure().
    """

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self._free = weakref.finalize(self, library.tutti_free, handle)
        self.rank: int = library.tutti_rank(handle)
        """The number of this process, from 0."""
        self.world: int = library.tutti_world(handle)
        """The number of ranks."""
        self.local_rank: int = library.tutti_local_rank(handle)
        """The number of this process among the ranks of its host."""
        self.local_world: int = library.tutti_local_world(handle)
        """The number of ranks of this host."""
        self.waits = 0  # how many calls wait for other ranks now
        _interrupts.watch(self)

    @property
    def transport(self) -> str:
        """How the ranks are connected: by "shm" (shared memory), "tcp", "shm+tcp" or "mpi"; "inproc" for one alone."""
        name: bytes = library.tutti_transport(self._handle)
        return name.decode()

    @property
    def epoch(self) -> int:
        """How often the ranks have changed, under `tutti run --min`."""
        number: int = library.tutti_epoch(self._handle)
        return number

    def __repr__(self) -> str:
        if not self._handle:
            return "a closed communicator"
        return f"rank {self.rank} of {self.world} over {self.transport}"

    def close(self) -> None:
        """Disconnects from the other ranks once all operations have ended. Later calls raise an error."""
        self._free()
        self._handle = ctypes.c_void_p()

    def forget(self) -> None:
        """Closes the communicator in a forked process, and leaves it connected in the parent."""
        self._free.detach()
        self._handle = ctypes.c_void_p()

    def abort(self, why: str = "a rank has given up") -> None:
        """Makes the operations of all ranks fail with this text. May be called from any thread."""
        library.tutti_abort(self._handle, why.encode())

    def change_is_due(self) -> bool:
        """Returns True if the launcher wants the ranks to change. Not all ranks know it at the same time: they have to
        agree, by an all_reduce(), before they call reconfigure()."""
        due = ctypes.c_int()
        check(library.tutti_change_is_due(self._handle, ctypes.byref(due)))
        return due.value != 0

    def reconfigure(self) -> None:
        """Connects the ranks that there are now, all of which call it, after a failure or if a change is due. `rank`
        and `world` may be other ones afterwards."""
        check(library.tutti_reconfigure(self._handle))
        self.rank = library.tutti_rank(self._handle)
        self.world = library.tutti_world(self._handle)

    def group(self, ranks: Sequence[int], name: str) -> Communicator:
        """Returns a communicator of these ranks, in this order. Only they call it, with a name that no earlier group
        had."""
        handle = ctypes.c_void_p()
        members = (ctypes.c_int * len(ranks))(*(as_int(rank, "a rank of the group") for rank in ranks))
        check(library.tutti_group(self._handle, members, len(ranks), name.encode(), ctypes.byref(handle)))
        return Communicator(handle)

    def call(
        self,
        name: str,
        *arguments: Any,
        timeout: float = 0,
        what: str = "",
        any_order: bool = False,
        behind: Any = None,
    ) -> Work | None:
        """Calls a function of the C interface, such as `tutti_all_reduce`.

        `arguments` are all between the communicator and the options; buffers are addresses. `timeout` is in seconds,
        and 0 means that of init(). `what` names the operation in error texts. With `any_order`, sums may be faster and
        have other bits. With `behind`, an object that the operation keeps alive, the call returns a `Work` at once.
        """
        function = getattr(library, name)
        options = None
        if behind is False:
            behind = None
        if timeout or what or any_order or behind is not None:
            options = Options(size=_OPTIONS_SIZE, timeout_seconds=timeout, any_order=any_order)
            if what:
                options.what = what.encode()
            if behind is not None:
                handle = ctypes.c_void_p()
                options.work = ctypes.pointer(handle)
                check(function(self._handle, *arguments, options))
                return Work(handle, (behind, options), self)
        self.waits += 1
        try:
            status = function(self._handle, *arguments, options)
        finally:
            self.waits -= 1
        if status:
            check(status)
        return None

    def require_open(self, what: str) -> None:
        """Raises InvalidArgument if the communicator was closed."""
        if not self._handle:
            raise InvalidArgument(f"{what}: the communicator was closed")

    def make(self, name: str, *arguments: Any) -> None:
        """Calls a function of the C interface that has no options, such as `tutti_lane_sum_new`."""
        check(getattr(library, name)(self._handle, *arguments))

    def barrier(self, timeout: float = 0) -> None:
        """Waits until all ranks have called it."""
        self.call("tutti_barrier", timeout=timeout)


def init(
    *,
    store: KeyValueStore | None = None,
    rank: int = 0,
    world: int = 1,
    timeout: float = 0,
    transport: str | None = None,
    name: str = "worker",
) -> Communicator:
    """Connects the ranks of this job: every process of it calls this.

    Without a store, rank and world come from the launcher's environment (tutti run, torchrun, mpirun, srun, TF_CONFIG);
    a process without a launcher is alone. `timeout` is in seconds, for connecting and for each operation; 0 means that
    of the variable TUTTI_TIMEOUT, or 60. `transport` is "auto", "shm", "tcp", "shm+tcp" or "mpi"; None means that of
    TUTTI_COMM, or "auto". `name` names the ranks of a store in error texts; a launcher has names of its own.
    """
    options = InitOptions(size=ctypes.sizeof(InitOptions), timeout_seconds=timeout, name=name.encode())
    if transport is not None:
        if transport not in _TRANSPORTS:
            raise InvalidArgument(f"there is no transport {transport!r}: {', '.join(_TRANSPORTS)}")
        options.transport = transport.encode()
    failure: list[BaseException] = []
    kept: list[Any] = []
    if store is not None:
        given = store

        def put(_: Any, key: bytes, value: bytes) -> int:
            try:
                given.set(key.decode(), value.decode())
            except BaseException as error:  # noqa: BLE001 - raised below, not through the library
                failure.append(error)
                return 1
            return 0

        def find(_: Any, key: bytes, seconds: float, found: Any, result: Any) -> int:
            if failure and not isinstance(failure[-1], Exception):
                return 1  # an interrupt: the library may still look for another key
            try:
                found(result, given.get(key.decode(), seconds).encode())
            except BaseException as error:  # noqa: BLE001
                failure.append(error)
                return 1
            failure.clear()  # a key that was only looked for
            return 0

        kept = [SET(put), GET(find)]
        meeting = Store(size=ctypes.sizeof(Store), set=kept[0], get=kept[1])
        options.store = ctypes.pointer(meeting)
        options.rank, options.world = as_int(rank, "rank"), as_int(world, "world")
    handle = ctypes.c_void_p()
    status = library.tutti_init(ctypes.byref(options), ctypes.byref(handle))
    if failure and not isinstance(failure[-1], Exception):
        raise failure[-1]
    try:
        check(status)
    except Exception as error:
        raise error from (failure[-1] if failure else None)
    return Communicator(handle)


__all__ = ["Communicator", "KeyValueStore", "Op", "Type", "Work", "init"]
