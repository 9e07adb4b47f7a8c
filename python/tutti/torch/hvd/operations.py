"""The operations that run behind, the operations in place, and what waits for them.

A handle is a number, which `synchronize()` takes once. The tensors of an operation may not be used before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import InvalidArgument
from ._channel import Kind, Operation, Together
from ._start import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    like,
    op_of,
    start_allgather,
    start_allreduce,
    start_allreduces,
    start_alltoall,
    start_broadcast,
    start_reducescatter,
)
from .ranks import ProcessSet, channel_of, global_process_set

Tensor = torch.Tensor

_running: dict[int, Operation | Together] = {}
_numbers = itertools.count()


def _handle(operation: Operation | Together) -> int:
    number = next(_numbers)
    _running[number] = operation
    return number


def poll(handle: int) -> bool:
    """Returns True if synchronize() of this handle would return at once."""
    operation = _running.get(handle)
    if operation is None:
        raise InvalidArgument(f"there is no operation with the handle {handle}; synchronize() takes a handle once")
    return operation.done()


def synchronize(handle: int) -> Any:
    """Waits for an operation and returns its result. Returns None if there is no such handle, or if it was waited for
    already."""
    operation = _running.pop(handle, None)
    return None if operation is None else operation.result()


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins to combine the tensors of all ranks, by default to their average. Returns a handle, whose result is a new
    tensor. Averages of integers are rounded towards zero."""
    how = (name, op_of(op, average), prescale_factor, postscale_factor, process_set)
    return _handle(start_allreduce(tensor, like(tensor), *how, behind=True))


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like allreduce_async(), in place."""
    how = (name, op_of(op, average), prescale_factor, postscale_factor, process_set)
    return _handle(start_allreduce(tensor, tensor, *how, behind=True))


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combines the tensors of all ranks in place, by default to their average. Returns the tensor."""
    how = (name, op_of(op, average), prescale_factor, postscale_factor, process_set)
    result: Tensor = start_allreduce(tensor, tensor, *how, behind=False).result()
    return result


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like allreduce_async() of each tensor, but sends all of one type together."""
    how = (name, op_of(op, average), prescale_factor, postscale_factor, process_set)
    return _handle(start_allreduces(tensors, [like(each) for each in tensors], *how, behind=True))


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like grouped_allreduce_async(), in place."""
    how = (name, op_of(op, average), prescale_factor, postscale_factor, process_set)
    return _handle(start_allreduces(tensors, tensors, *how, behind=True))


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, ...]:
    """Like allreduce_() of each tensor, but sends all of one type together."""
    how = (name, op_of(op, average), prescale_factor, postscale_factor, process_set)
    result: tuple[Tensor, ...] = start_allreduces(tensors, tensors, *how, behind=False).result()
    return result


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Begins to add the elements of a sparse tensor of all ranks. Returns a function that waits for the result."""
    own = tensor.detach().coalesce()
    places = start_allgather(own.indices().t(), f"{name}.indices", process_set, behind=True)
    elements = start_allgather(own.values(), f"{name}.values", process_set, behind=True)
    world = channel_of(process_set).world

    def finish() -> Tensor:
        values = elements.result()
        values = values / world if op == Average else values
        sparse = torch.sparse_coo_tensor(places.result().t(), values, tensor.shape, check_invariants=False)
        return sparse.coalesce()

    return finish


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begins to put the tensors of all ranks together along their first dimension, which may differ in size. Returns a
    handle."""
    return _handle(start_allgather(tensor, name, process_set, behind=True))


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Like allgather_async() of each tensor."""
    return _handle(Together([start_allgather(each, name, process_set, behind=True) for each in tensors]))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begins to send the tensor of the root to all ranks. Returns a handle, whose result is a new tensor."""
    return _handle(start_broadcast(tensor, like(tensor), root_rank, name, process_set, behind=True))


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Like broadcast_async(), in place."""
    return _handle(start_broadcast(tensor, tensor, root_rank, name, process_set, behind=True))


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Replaces the tensors of all ranks by the tensor of the root. Returns the tensor."""
    result: Tensor = start_broadcast(tensor, tensor, root_rank, name, process_set, behind=False).result()
    return result


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins to send a part of the tensor to each rank: `splits` are their numbers of rows, by default equal ones.
    Returns a handle, whose result is a pair: the received rows in the order of the ranks, and the number of rows from
    each rank."""
    return _handle(start_alltoall(tensor, splits, name, process_set, behind=True))


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begins to combine the tensors of all ranks. Each rank gets a part of the rows; the first ranks get one row more
    if the rows do not divide equally. Returns a handle."""
    how = (name, op, process_set, prescale_factor, postscale_factor)
    return _handle(start_reducescatter(tensor, *how, behind=True))


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like reducescatter_async() of each tensor."""
    how = (name, op, process_set, prescale_factor, postscale_factor)
    return _handle(Together([start_reducescatter(each, *how, behind=True) for each in tensors]))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have called it."""
    channel_of(process_set).announce(Kind.BARRIER, what="barrier").check()


def join(device: int = -1) -> int:
    """Tells the other ranks that this rank has no more data, and waits until all ranks have called it. Until then the
    allreduces of the others go on, with zeros from this rank (an average is still divided by the number of all ranks).
    Returns the rank that was the last to join. The operations of process sets do not go on without their members."""
    return channel_of(global_process_set).join()


__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather_async",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "barrier",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
