"""The backend "tutti" of torch.distributed."""

from __future__ import annotations

import os
import socket
import sys
import zlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.torch_version import TorchVersion

from ..communicator import Communicator, init
from ..errors import InvalidArgument, Unimplemented
from ._operations import Operations

_CPU = torch.device("cpu")


class _Store:
    """The store of a process group, at which the ranks meet."""

    def __init__(self, store: c10d.Store) -> None:
        self._store = store

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> str:
        if timeout < 0.01 and not self._store.check([key]):  # wait() would print a warning
            raise TimeoutError(f"the store has no '{key}'")
        self._store.wait([key], timedelta(seconds=max(timeout, 0.001)))
        value: bytes = self._store.get(key)
        return value.decode()


def _own_keys(store: c10d.Store, rank: int) -> c10d.Store:
    """A part of the store for one connection: a group that is made again after destroy_process_group() may have the
    same store, with the keys of the one before."""
    own = f"process {os.getpid()} on {socket.gethostname()}"
    first = store.compare_set(f"tutti/rank/{rank}", "", own).decode()
    if first != own:
        raise InvalidArgument(f"two processes are rank {rank}: {first} and {own}. Give each process a rank of its own")
    return c10d.PrefixStore(f"tutti/{store.add(f'tutti/connections/{rank}', 1)}", store)


def _connect(store: c10d.Store, rank: int, world: int, timeout: timedelta) -> Communicator:
    return init(store=_Store(store), rank=rank, world=world, timeout=timeout.total_seconds(), name="rank")


Backend: Any = None
if TorchVersion(torch.__version__) >= "2.14":  # before, Python cannot derive from it

    class _Backend(Operations, c10d.Backend):
        """The backend of CPUs in a process group, beside others such as in "cpu:tutti,cuda:nccl"."""

        def __init__(self, comm: Communicator, store: c10d.Store, timeout: timedelta) -> None:
            c10d.Backend.__init__(self, comm.rank, comm.world)
            self._begin(comm, store, timeout)

        # Asked of the base class, each of these would ask this one again.
        supports_splitting = supports_coalescing = supports_shrinking = False  # pyright: ignore
        supports_reconfigure = supports_window = supports_abort_hooks = False  # pyright: ignore
        _supports_time_estimate = False  # pyright: ignore

        def getBackendName(self) -> str:
            return "tutti"

        def abort(self) -> None:
            self._comm.abort()

        def shutdown(self) -> None:
            self._comm.close()

    class _OnlyBackend(_Backend):
        """The backend of a ProcessGroup, which splits itself."""

        supports_splitting = True  # pyright: ignore

    Backend = _Backend


class ProcessGroup(Operations, dist.ProcessGroup):  # type: ignore[misc] # its overloads for tensors are in C++
    """A process group of torch.distributed whose only backend is "tutti", with the methods of that base class. Calls
    from Python reach it directly, not through C++."""

    def __init__(self, store: c10d.Store, rank: int, world: int, timeout: timedelta) -> None:
        dist.ProcessGroup.__init__(self, rank, world)
        store = _own_keys(store, rank)
        self._begin(_connect(store, rank, world, timeout), store, timeout)
        self._name = self._description = ""
        if Backend is not None:
            # For those who ask the group for the backend of a device.
            self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
            self._register_backend(_CPU, dist.ProcessGroup.BackendType.CUSTOM, _OnlyBackend(self._comm, store, timeout))

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """Returns a group of these ranks, or None on a rank that is not among them. All ranks call it."""
        if self._comm.rank not in new_ranks:
            return None
        store = c10d.PrefixStore(f"{group_name}/", self._store)
        rank, usual = new_ranks.index(self._comm.rank), timedelta(seconds=self._timeout)
        group = ProcessGroup(store, rank, len(new_ranks), timeout or usual)
        group._set_group_name(group_name or "")
        group._set_group_desc(group_desc or "")
        return group

    def get_group_store(self) -> c10d.Store:
        return self._store

    def getBackendName(self) -> str:
        return "tutti"

    @property
    def group_name(self) -> Any:
        """The name that torch.distributed has given to the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """The description that torch.distributed has given to the group."""
        return self._description

    def _set_group_desc(self, desc: str) -> None:
        self._description = desc

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    def getRank(self) -> int:
        return self._comm.rank

    def getSize(self) -> int:
        return self._comm.world

    def abort(self) -> None:
        self._comm.abort()

    def shutdown(self) -> None:
        self._comm.close()


def _has_others(caller: Any) -> bool:
    """Whether the group that is being made has other backends, too: PyTorch does not tell, but its caller knows."""
    config = caller.f_locals.get("backend_config")
    return config is not None and len(set(config.get_device_backend_map().values())) > 1


def _create(options: Any, _: Any = None) -> Any:
    rank, world = options.group_rank, options.group_size
    # PyTorch may give a group the name of one that was destroyed, with other ranks.
    members = zlib.crc32(repr(list(options.global_ranks_in_group)).encode())
    store: c10d.Store = c10d.PrefixStore(f"tutti/{world}/{members:x}", options.store)
    if not _has_others(sys._getframe(1)):
        return ProcessGroup(store, rank, world, options.timeout)
    if Backend is None:
        raise Unimplemented("tutti beside other backends needs PyTorch 2.14 or later")
    store = _own_keys(store, rank)
    return Backend(_connect(store, rank, world, options.timeout), store, options.timeout)


def register() -> None:
    """Registers the backend "tutti" with torch.distributed. `import tutti.torch` calls it, and PyTorch itself since
    2.14."""
    if "tutti" not in dist.Backend.backend_list:
        dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu"])
