"""The backend "tutti" of torch.distributed."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.torch_version import TorchVersion

from ..communicator import Communicator, init
from ..errors import Unimplemented
from ._operations import Operations

_CPU = torch.device("cpu")


class _Store:
    """The store of a process group, at which the ranks meet."""

    def __init__(self, store: c10d.Store) -> None:
        self._store = store

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> str:
        self._store.wait([key], timedelta(seconds=max(timeout, 0.001)))
        value: bytes = self._store.get(key)
        return value.decode()


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
        supports_splitting = supports_coalescing = supports_shrinking = False
        supports_reconfigure = supports_window = supports_abort_hooks = _supports_time_estimate = False

        def getBackendName(self) -> str:
            return "tutti"

        def abort(self) -> None:
            self._comm.abort()

        def shutdown(self) -> None:
            self._comm.close()

    Backend = _Backend


class ProcessGroup(Operations, dist.ProcessGroup):  # type: ignore[misc] # its overloads for tensors are in C++
    """A process group whose only backend is tutti. Calls from Python come here without a way through C++."""

    def __init__(self, store: c10d.Store, rank: int, world: int, timeout: timedelta) -> None:
        dist.ProcessGroup.__init__(self, rank, world)
        self._begin(_connect(store, rank, world, timeout), store, timeout)
        self._name = self._description = ""
        if Backend is not None:
            # For those who ask the group for the backend of a device.
            self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
            self._register_backend(_CPU, dist.ProcessGroup.BackendType.CUSTOM, Backend(self._comm, store, timeout))

    def getBackendName(self) -> str:
        return "tutti"

    @property
    def group_name(self) -> Any:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

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
    if not _has_others(sys._getframe(1)):
        return ProcessGroup(options.store, rank, world, options.timeout)
    if Backend is None:
        raise Unimplemented("tutti beside other backends needs PyTorch 2.14 or later")
    return Backend(_connect(options.store, rank, world, options.timeout), options.store, options.timeout)


def register() -> None:
    """Makes "tutti" known to torch.distributed: its entry point."""
    if "tutti" not in dist.Backend.backend_list:
        dist.Backend.register_backend("tutti", _create, extended_api=True, devices=["cpu"])
