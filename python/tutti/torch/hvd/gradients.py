"""The operations that can be differentiated: the gradient of a result is that of the argument after one more operation,
as in Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._channel import Together
from ._start import (
    Average,
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
from .compression import Compression, Compressor
from .ranks import ProcessSet, channel_of, global_process_set, rank

Tensor = torch.Tensor


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], name: str | None, tensor: Tensor) -> Any:
        ctx.how = how
        return start_allreduce(tensor, like(tensor), name, *how, behind=False).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, _Allreduce.apply(ctx.how, None, gradients[0])


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Returns the average of the tensors of all ranks, or another combination (`op`). Averages of integers are rounded
    towards zero."""
    how = (op_of(op, average), prescale_factor, postscale_factor, process_set)
    compressed, context = compression.compress(tensor)
    return compression.decompress(_Allreduce.apply(how, name, compressed), context)


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], name: str | None, *tensors: Tensor) -> Any:
        ctx.how = how
        return start_allreduces(tensors, [like(each) for each in tensors], name, *how, behind=False).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, *_GroupedAllreduce.apply(ctx.how, None, *gradients)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Like allreduce() of each tensor, but sends all of one type together."""
    how = (op_of(op, average), prescale_factor, postscale_factor, process_set)
    compressed = [compression.compress(each) for each in tensors]
    results = _GroupedAllreduce.apply(how, name, *(each for each, _ in compressed))
    contexts = [context for _, context in compressed]
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> Any:
        ctx.process_set, ctx.rows = process_set, [each.shape[0] if each.dim() else 0 for each in tensors]
        return Together([start_allgather(each, name, process_set, behind=False) for each in tensors]).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (
            None,
            None,
            *(_own_rows(gradient, rows, ctx.process_set) for gradient, rows in zip(gradients, ctx.rows, strict=True)),
        )


def _own_rows(gradient: Tensor, rows: int, process_set: ProcessSet) -> Tensor:
    """The average over the ranks of the gradient of what this rank has contributed."""
    averaged = allreduce(gradient, op=Average, process_set=process_set)
    sizes = allgather(torch.tensor([rows]), process_set=process_set)
    return averaged.narrow(0, int(sizes[: channel_of(process_set).comm.rank].sum()), rows)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Returns the tensors of all ranks, one after the other along their first dimension, which may differ in size."""
    result: Tensor = _Allgather.apply(name, process_set, tensor)[0]
    return result


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Like allgather() of each tensor."""
    return list(_Allgather.apply(name, process_set, *tensors))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return start_broadcast(tensor, like(tensor), root_rank, name, process_set, behind=False).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        averaged = allreduce(gradients[0], op=Average, process_set=ctx.process_set)
        return averaged if rank() == ctx.root_rank else torch.zeros_like(averaged), None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Returns the tensor of the root on all ranks, as a new tensor."""
    result: Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return result


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = start_alltoall(tensor, splits, name, process_set, behind=False).result()
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Alltoall.apply(gradients[0], ctx.received, None, ctx.process_set)[0], None, None, None


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends a part of the tensor to each rank: `splits` are their numbers of rows. Returns the received rows in the
    order of the ranks, and the number of rows from each rank. Without `splits` the parts are equal, and only the rows
    are returned."""
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: tuple[Any, ...], name: str | None, *tensors: Tensor) -> Any:
        ctx.how = how
        return Together([start_reducescatter(each, name, *how, behind=False) for each in tensors]).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        op, process_set, prescale_factor, postscale_factor = ctx.how
        factor = prescale_factor * postscale_factor * (channel_of(process_set).world if op == Sum else 1)
        return None, None, *grouped_allgather([each * factor for each in gradients], process_set=process_set)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Returns this rank's rows of the average of the tensors of all ranks, or of their sum. The first ranks get one row
    more if the rows do not divide equally."""
    how = (op, process_set, prescale_factor, postscale_factor)
    compressed, context = compression.compress(tensor)
    return compression.decompress(_Reducescatter.apply(how, name, compressed)[0], context)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Like reducescatter() of each tensor."""
    how = (op, process_set, prescale_factor, postscale_factor)
    compressed = [compression.compress(each) for each in tensors]
    results = _Reducescatter.apply(how, name, *(each for each, _ in compressed))
    contexts = [context for _, context in compressed]
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]
