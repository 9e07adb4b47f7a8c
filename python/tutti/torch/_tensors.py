"""Tensors on CPUs as the memory that the library moves."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..communicator import Op, Type
from ..errors import InvalidArgument, Unimplemented

TYPES = {
    torch.uint8: Type.UINT8,
    torch.int8: Type.INT8,
    torch.int16: Type.INT16,
    torch.int32: Type.INT32,
    torch.int64: Type.INT64,
    torch.float16: Type.FLOAT16,
    torch.float32: Type.FLOAT32,
    torch.float64: Type.FLOAT64,
    torch.complex64: Type.COMPLEX64,
    torch.complex128: Type.COMPLEX128,
    torch.bool: Type.BOOL,
    torch.bfloat16: Type.BFLOAT16,
}

_OPS = {
    dist.ReduceOp.SUM: Op.SUM,
    dist.ReduceOp.AVG: Op.AVERAGE,
    dist.ReduceOp.MIN: Op.MIN,
    dist.ReduceOp.MAX: Op.MAX,
    dist.ReduceOp.PRODUCT: Op.PRODUCT,
    dist.ReduceOp.BAND: Op.BAND,
    dist.ReduceOp.BOR: Op.BOR,
    dist.ReduceOp.BXOR: Op.BXOR,
    dist.ReduceOp.PREMUL_SUM: Op.SUM,  # of what premultiplied() returns
}

Tensor = torch.Tensor
After = list[Callable[[], None]]


def op_of(given: Any) -> Op:
    for theirs, ours in _OPS.items():
        if given == theirs:
            return ours
    names = ", ".join(op.name for op in _OPS)
    raise Unimplemented(f"tutti has no {getattr(given, 'op', given)}: there are {names}")


def premultiplied(tensor: Tensor, given: Any) -> Tensor:
    """The tensor, or for PREMUL_SUM a copy that is multiplied by its factor."""
    if given is None or given != dist.ReduceOp.PREMUL_SUM:
        return tensor
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise InvalidArgument(f"PREMUL_SUM is for floating-point tensors, not for {tensor.dtype}")
    factor = given.__getstate__()[1]
    with torch.no_grad():
        product: Tensor = (tensor * factor).to(tensor.dtype)
    return product


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def _check(tensor: Tensor) -> None:
    if tensor.device.type != "cpu":
        raise InvalidArgument(
            f"a tensor is on {tensor.device}; the backend 'tutti' moves tensors on CPUs. For both: 'cpu:tutti,cuda:nccl'"
        )
    if tensor.layout != torch.strided:
        raise InvalidArgument("a tensor is sparse; pass the result of its to_dense()")


def read(tensor: Tensor) -> Tensor:
    """The tensor as plain memory: itself, or a copy."""
    _check(tensor)
    return tensor if _is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def written(tensor: Tensor, after: After, *, reads: bool = False) -> Tensor:
    """Plain memory that is written, and copied to the tensor afterwards if that is not plain."""
    _check(tensor)
    if _is_plain(tensor):
        return tensor
    plain = read(tensor) if reads else torch.empty(tensor.shape, dtype=tensor.dtype)
    after.append(lambda: _copy(tensor, plain))
    return plain


def _copy(target: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        target.copy_(values.view_as(target))


def type_of(tensor: Tensor) -> tuple[int, int]:
    """The type of its elements, and their number. Types that are only moved are bytes."""
    kind = TYPES.get(tensor.dtype)
    if kind is None:
        return Type.UINT8, tensor.numel() * tensor.element_size()
    return kind, tensor.numel()


def sum_type(tensor: Tensor) -> int:
    kind = TYPES.get(tensor.dtype)
    if kind is None:
        raise InvalidArgument(f"tensors of {tensor.dtype} cannot be combined")
    return kind


def addresses_of(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def counts_of(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_size_t * len(tensors))(*(type_of(tensor)[1] for tensor in tensors))


def only(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) != 1:
        raise InvalidArgument(f"{len(tensors)} tensors were given; expected one")
    return tensors[0]
