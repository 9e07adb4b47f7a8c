"""How operations on tensors begin.

An allreduce begins without waiting for the other ranks. allgather, alltoall, broadcast and reducescatter wait for their
announcements first: sizes are not known before, and these operations are not possible once a rank has joined.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from ...communicator import Op, Type
from ...errors import InvalidArgument, Unimplemented
from .._tensors import TYPES, After, addresses_of, counts_of, read, type_of, written
from ._channel import Kind, Operation, Together
from .ranks import ProcessSet, channel_of

Tensor = torch.Tensor


class ReduceOp(enum.IntEnum):
    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average, Sum, Adasum, Min, Max, Product = ReduceOp
"""How the tensors of all ranks are combined: the `op` of operations. The sum of booleans means "any", and their product
"all". `Adasum` is there as a name; operations refuse it."""

_OPS = {Average: Op.AVERAGE, Sum: Op.SUM, Min: Op.MIN, Max: Op.MAX, Product: Op.PRODUCT}


def like(tensor: Tensor) -> Tensor:
    """A contiguous tensor of the same shape and type, for a result."""
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def op_of(op: int | None, average: bool | None) -> ReduceOp:
    """The operation of the arguments `op` and `average`, of which the latter is the old form."""
    if op is not None:
        if average is not None:
            raise InvalidArgument("op and average were given; only op is needed")
        return ReduceOp(op)
    if average is None:
        return Average
    warnings.warn("the argument 'average' is deprecated; use op=hvd.Average or op=hvd.Sum", DeprecationWarning, 3)
    return Average if average else Sum


class _Sum:
    """How the tensors of one operation are combined: scaled, summed in the library, and scaled again."""

    def __init__(self, dtype: torch.dtype, op: ReduceOp, before: float, after: float, world: int) -> None:
        if op == Adasum:
            raise Unimplemented("Adasum is not there; use op=hvd.Average")
        if dtype not in TYPES:
            raise InvalidArgument(f"tensors of {dtype} cannot be combined; the types are {_names(TYPES)}")
        self._divisor = 1
        self.op, self.before, self._after = _OPS[op], before, after
        if dtype == torch.bool and (op == Average or (before, after) != (1, 1)):
            raise InvalidArgument('booleans have no average and no factors: their Sum means "any", Product "all"')
        if dtype.is_complex and op in (Min, Max):
            raise InvalidArgument("complex numbers have no minimum and no maximum")
        if op == Average and not (dtype.is_floating_point or dtype.is_complex):
            self.op, self._divisor = Op.SUM, world

    def finish(self, tensor: Tensor) -> None:
        if self._divisor == 1:
            _scale(tensor, self._after)
        elif self._after == 1:
            tensor.copy_(tensor.div(self._divisor, rounding_mode="trunc"))  # the average of integers
        else:
            _scale(tensor, self._after / self._divisor)


def _names(dtypes: Any) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _scale(tensor: Tensor, factor: float) -> None:
    if factor != 1:
        floating = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        tensor.copy_((tensor if floating else tensor.double()) * factor)


def _plain(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"a tensor is on {tensor.device}; tutti.torch.hvd moves tensors on CPUs")
    return read(tensor.detach())


def start_allreduce(
    tensor: Tensor,
    output: Tensor,
    name: str | None,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    *,
    behind: bool,
    details: str = "",
) -> Operation:
    """`details` has what has to be the same on all ranks besides the other arguments."""
    channel = channel_of(process_set)
    how = _Sum(tensor.dtype, op, prescale_factor, postscale_factor, channel.world)
    source, after = _plain(tensor), After()
    if how.before != 1:
        source = source.clone()
        _scale(source, how.before)
    target = written(output.detach(), after)
    count, kind = source.numel(), TYPES[tensor.dtype]
    what = f"allreduce {name}" if name else ""
    announced = channel.announce(
        Kind.ALLREDUCE,
        kind,
        how.op,
        count,
        details=f"{name} {tuple(tensor.shape)} {op} {prescale_factor} {postscale_factor} {details}",
        what=what,
        behind=behind,
    )
    if not behind:
        announced.check()
    kept = (source, target) if behind else None
    work = channel.comm.call(
        "tutti_all_reduce", source.data_ptr(), target.data_ptr(), count, kind, how.op, what=what, behind=kept
    )

    def finish() -> Tensor:
        with torch.no_grad():
            how.finish(target)
            for call in after:
                call()
        return output

    return Operation(announced, work, finish)


def start_allreduces(
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    name: str | None,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    *,
    behind: bool,
) -> Operation | Together:
    """Tensors of the same type are sent as one."""
    places: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
    flats: list[tuple[Operation, list[int]]] = []
    for same in places.values():
        flat = torch.cat([_plain(tensors[place]).reshape(-1) for place in same])
        shapes = " ".join(str(tuple(tensors[place].shape)) for place in same)
        how = (name, op, prescale_factor, postscale_factor, process_set)
        operation = start_allreduce(flat, flat, *how, behind=behind, details=shapes)
        flats.append((operation, same))
    return _Grouped(flats, outputs)


class _Grouped(Together):
    """Tensors that were sent as one for each type, which are written to their outputs."""

    def __init__(self, flats: Sequence[tuple[Operation, list[int]]], outputs: Sequence[Tensor]) -> None:
        super().__init__([operation for operation, _ in flats])
        self._places = [places for _, places in flats]
        self._outputs = tuple(outputs)

    def result(self) -> tuple[Tensor, ...]:
        with torch.no_grad():
            for flat, places in zip(super().result(), self._places, strict=True):
                outputs = [self._outputs[place] for place in places]
                for output, values in zip(outputs, torch.split(flat, [each.numel() for each in outputs]), strict=True):
                    output.copy_(values.view(output.shape))
        return self._outputs


def _rows_of(tensor: Tensor, what: str) -> int:
    if tensor.dim() == 0:
        raise InvalidArgument(f"{what} needs a tensor with at least one dimension")
    return tensor.shape[0]


def start_allgather(tensor: Tensor, name: str | None, process_set: ProcessSet, *, behind: bool) -> Operation:
    channel, rows, source = channel_of(process_set), _rows_of(tensor, "allgather"), _plain(tensor)
    what = f"allgather {name}" if name else ""
    details = f"{name} {tensor.dtype} {tuple(tensor.shape[1:])}"
    announced = channel.announce(Kind.ALLGATHER, type_of(source)[0], details=details, size=rows, what=what)
    sizes = announced.check()
    output = source.new_empty((sum(sizes), *source.shape[1:]))
    parts = torch.split(output, sizes)
    pointers, counts = addresses_of(parts), counts_of(parts)
    kept = (source, output, pointers, counts) if behind else None
    work = channel.comm.call(
        "tutti_all_gather_v", source.data_ptr(), pointers, counts, type_of(source)[0], what=what, behind=kept
    )
    return Operation(announced, work, lambda: output)


def start_broadcast(
    tensor: Tensor, output: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, behind: bool
) -> Operation:
    channel, after = channel_of(process_set), After()
    if root_rank not in channel.ranks:
        raise InvalidArgument(f"the root of a broadcast is rank {root_rank}, which is not one of {channel.ranks}")
    root = channel.ranks.index(root_rank)
    _plain(tensor)
    target = written(output.detach(), after, reads=True)
    if root == channel.comm.rank and output is not tensor:
        target.copy_(tensor.detach())
    kind, count = type_of(target)
    what = f"broadcast {name}" if name else ""
    details = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
    announced = channel.announce(Kind.BROADCAST, kind, root, count, details=details, what=what)
    announced.check()
    kept = target if behind else None
    work = channel.comm.call("tutti_broadcast", target.data_ptr(), count, kind, root, what=what, behind=kept)

    def finish() -> Tensor:
        for call in after:
            call()
        return output

    return Operation(announced, work, finish)


def _splits_of(splits: Tensor | Sequence[int] | None, rows: int, world: int) -> list[int]:
    given = [] if splits is None else [int(each) for each in splits]
    if not given:
        if rows % world:
            raise InvalidArgument(f"alltoall without splits: {rows} rows do not divide equally across {world} ranks")
        return [rows // world] * world
    if len(given) != world or min(given) < 0 or sum(given) > rows:
        raise InvalidArgument(f"alltoall: the splits {given} are not those of {rows} rows for {world} ranks")
    return given


def start_alltoall(
    tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet, *, behind: bool
) -> Operation:
    channel, rows, source = channel_of(process_set), _rows_of(tensor, "alltoall"), _plain(tensor)
    sent = torch.tensor(_splits_of(splits, rows, channel.world))
    what = f"alltoall {name}" if name else ""
    details = f"{name} {tensor.dtype} {tuple(tensor.shape[1:])}"
    announced = channel.announce(Kind.ALLTOALL, type_of(source)[0], details=details, what=what)
    announced.check()
    received = torch.empty_like(sent)
    channel.comm.call("tutti_all_to_all", sent.data_ptr(), received.data_ptr(), 1, Type.INT64, what=what)
    output = source.new_empty((int(received.sum()), *source.shape[1:]))
    inputs = torch.split(source[: int(sent.sum())], sent.tolist())
    outputs = torch.split(output, received.tolist())
    arrays = (addresses_of(inputs), counts_of(inputs), addresses_of(outputs), counts_of(outputs))
    kept = (source, output, arrays) if behind else None
    work = channel.comm.call("tutti_all_to_all_v", *arrays, type_of(source)[0], what=what, behind=kept)
    received = received.to(splits.dtype if isinstance(splits, Tensor) else torch.int32)
    return Operation(announced, work, lambda: (output, received))


def start_reducescatter(
    tensor: Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
    *,
    behind: bool,
) -> Operation:
    channel, rows = channel_of(process_set), _rows_of(tensor, "reducescatter")
    if op not in (Average, Sum):
        raise Unimplemented("reducescatter is there for hvd.Average and hvd.Sum")
    how = _Sum(tensor.dtype, ReduceOp(op), prescale_factor, postscale_factor, channel.world)
    source = _plain(tensor)
    if how.before != 1:
        source = source.clone()
        _scale(source, how.before)
    each, more = divmod(rows, channel.world)
    parts = torch.split(source, [each + (rank < more) for rank in range(channel.world)])
    output = torch.empty_like(parts[channel.comm.rank])
    counts, kind = counts_of(parts), TYPES[tensor.dtype]
    what = f"reducescatter {name}" if name else ""
    details = f"{name} {tuple(tensor.shape)} {prescale_factor} {postscale_factor}"
    announced = channel.announce(Kind.REDUCESCATTER, kind, how.op, source.numel(), details=details, what=what)
    announced.check()
    kept = (source, output, counts) if behind else None
    work = channel.comm.call(
        "tutti_reduce_scatter_v", source.data_ptr(), output.data_ptr(), counts, kind, how.op, what=what, behind=kept
    )

    def finish() -> Tensor:
        how.finish(output)
        return output

    return Operation(announced, work, finish)
