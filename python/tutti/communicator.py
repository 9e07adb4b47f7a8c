"""Communicators: what the processes of a job do together, with buffers in memory."""

from __future__ import annotations

import ctypes
import enum
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from . import _interrupts
from ._library import DONE, GET, SET, InitOptions, Options, Store, library
from .errors import InvalidArgument, check

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
    """How values of all ranks become one. Of booleans the sum means "any" and the product "all"; the last three combine
    the bits of integers and booleans."""

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class KeyValueStore(Protocol):
    """A store at which ranks can meet: every rank sees what any rank has set."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str, timeout: float) -> str:
        """Waits until the key is set."""
        ...


class Work:
    """An operation that may still be running. It keeps `buffers` alive until it has ended."""

    def __init__(self, handle: ctypes.c_void_p, buffers: Any, comm: Communicator) -> None:
        self._handle = handle
        self._buffers = buffers
        self._comm = comm

    def wait(self) -> None:
        """Waits until the operation has ended; raises its error."""
        self._comm.waits += 1
        try:
            check(library.tutti_wait(self._handle))
        finally:
            self._comm.waits -= 1

    def done(self) -> bool:
        """Returns True if it has ended; raises its error."""
        ended = ctypes.c_int()
        check(library.tutti_test(self._handle, ctypes.byref(ended)))
        return ended.value != 0

    def then(self, call: Callable[[], None]) -> None:
        """Calls the function once the operation has ended, well or not: from another thread, or at once."""
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

    All ranks call the same operations in the same order. Buffers are addresses in memory with a number of elements
    and a `Type`; `tutti.numpy` takes arrays. With `behind`, an object that the operation
    keeps alive, a call returns a `Work` at once.
    """

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self._free = weakref.finalize(self, library.tutti_free, handle)
        self.rank: int = library.tutti_rank(handle)
        self.world: int = library.tutti_world(handle)
        self.local_rank: int = library.tutti_local_rank(handle)
        self.local_world: int = library.tutti_local_world(handle)
        self.waits = 0  # how many calls wait for other ranks now
        _interrupts.watch(self)

    @property
    def transport(self) -> str:
        """ "shm", "tcp", "shm+tcp"..."""
        name: bytes = library.tutti_transport(self._handle)
        return name.decode()

    @property
    def epoch(self) -> int:
        """The number of times that the ranks have changed (`tutti run --min`)."""
        number: int = library.tutti_epoch(self._handle)
        return number

    def __repr__(self) -> str:
        if not self._handle:
            return "a closed communicator"
        return f"rank {self.rank} of {self.world} over {self.transport}"

    def close(self) -> None:
        """Leaves the other ranks in good order, after all operations. Later calls are errors."""
        self._free()
        self._handle = ctypes.c_void_p()

    def forget(self) -> None:
        """In a process that was forked: the communicator is the parent's."""
        self._free.detach()
        self._handle = ctypes.c_void_p()

    def abort(self, why: str = "a rank has given up") -> None:
        """Makes all ranks fail with this text. From any thread."""
        library.tutti_abort(self._handle, why.encode())

    def change_is_due(self) -> bool:
        """Returns True if the launcher wants the epoch to end, which all ranks have to agree on."""
        due = ctypes.c_int()
        check(library.tutti_change_is_due(self._handle, ctypes.byref(due)))
        return due.value != 0

    def reconfigure(self) -> None:
        """Connects with the ranks of the next epoch, after a failure or if a change is due."""
        check(library.tutti_reconfigure(self._handle))
        self.rank = library.tutti_rank(self._handle)
        self.world = library.tutti_world(self._handle)

    def group(self, ranks: Sequence[int], name: str) -> Communicator:
        """A communicator of these ranks, who alone call it, with a name that no other group has had."""
        handle = ctypes.c_void_p()
        members = (ctypes.c_int * len(ranks))(*ranks)
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
        """Calls a function of the C interface, such as `tutti_all_reduce`, with all arguments between the
        communicator and the options."""
        function = getattr(library, name)
        if behind is None and not (timeout or what or any_order):
            self._wait_in(function, *arguments, None)
            return None
        options = Options(size=_OPTIONS_SIZE, timeout_seconds=timeout, any_order=any_order)
        text = what.encode()
        if what:
            options.what = text
        if behind is None:
            self._wait_in(function, *arguments, ctypes.byref(options))
            return None
        handle = ctypes.c_void_p()
        options.work = ctypes.pointer(handle)
        check(function(self._handle, *arguments, ctypes.byref(options)))
        return Work(handle, (behind, text), self)

    def require_open(self, what: str) -> None:
        """Raises InvalidArgument after close()."""
        if not self._handle:
            raise InvalidArgument(f"{what}: the communicator was closed")

    def make(self, name: str, *arguments: Any) -> None:
        """Calls a function of the C interface that makes something of this communicator, without options."""
        check(getattr(library, name)(self._handle, *arguments))

    def _wait_in(self, function: Any, *arguments: Any) -> None:
        self.waits += 1
        try:
            check(function(self._handle, *arguments))
        finally:
            self.waits -= 1

    def barrier(self, timeout: float = 0) -> None:
        """Waits for all ranks."""
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
    a process without a launcher is alone. `timeout` is in seconds, for connecting and for each operation.
    """
    options = InitOptions(size=ctypes.sizeof(InitOptions), timeout_seconds=timeout, name=name.encode())
    if transport is not None:
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
        options.rank, options.world = rank, world
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
