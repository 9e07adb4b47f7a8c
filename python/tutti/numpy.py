"""The operations of a `Communicator` on NumPy arrays.

All ranks make the same calls in the same order; send() and recv() are calls of two ranks. Arrays have to be
C-contiguous, and results are written in place. With `behind=True` every call but recv() returns a `Work` at once, and
the arrays may not be used before its `wait()` has returned. Further options are `timeout`, `what` and `any_order`, as
in `Communicator.call()`. `Array` is `numpy.ndarray`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .communicator import Communicator, Op, Type, Work
from .errors import InvalidArgument, as_int

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_TYPES = {
    "uint8": Type.UINT8,
    "int8": Type.INT8,
    "int16": Type.INT16,
    "int32": Type.INT32,
    "int64": Type.INT64,
    "float16": Type.FLOAT16,
    "float32": Type.FLOAT32,
    "float64": Type.FLOAT64,
    "complex64": Type.COMPLEX64,
    "complex128": Type.COMPLEX128,
    "bool": Type.BOOL,
    "bfloat16": Type.BFLOAT16,  # of the package ml_dtypes
}


def _type(array: Array) -> Type:
    kind = _TYPES.get(array.dtype.name)
    if kind is None or not array.dtype.isnative:
        raise InvalidArgument(f"arrays of the type {array.dtype} cannot be sent; the types are {', '.join(_TYPES)}")
    return kind


def _require_array(array: object) -> None:
    if not hasattr(array, "flags"):
        raise InvalidArgument(f"expected an array of NumPy, not {array!r:.50}")


def _address(array: Array, written: bool = False) -> int:
    _require_array(array)
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            "the array is not C-contiguous, and results are written in place: pass a copy, that of "
            "numpy.ascontiguousarray(), and copy the result back"
        )
    if written and not array.flags.writeable:
        raise InvalidArgument("the array is read-only, but is written")
    return array.ctypes.data


def _op(op: str | Op) -> Op:
    if isinstance(op, Op):
        return op
    try:
        return Op[op.upper()]
    except (KeyError, AttributeError):
        raise InvalidArgument(f"there is no operation {op!r}: {', '.join(Op.__members__).lower()}") from None


def _addresses(arrays: Sequence[Array] | None, comm: Communicator, like: Array, written: bool) -> Any:
    if arrays is None:
        raise InvalidArgument("the root has to pass an array for each rank")
    if len(arrays) != comm.world:
        raise InvalidArgument(f"{len(arrays)} arrays were given for {comm.world} ranks; expected one for each rank")
    for array in arrays:
        _require_array(array)
        if array.dtype != like.dtype:
            raise InvalidArgument(f"arrays of {array.dtype} and of {like.dtype} in one call")
    return (ctypes.c_void_p * comm.world)(*(_address(array, written) for array in arrays))


def _counts(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_size_t * len(arrays))(*(array.size for array in arrays))


def _same_size(one: Array, other: Array, parts: int = 1) -> None:
    _require_array(one)
    _require_array(other)
    if one.dtype != other.dtype or one.size != other.size * parts:
        raise InvalidArgument(
            f"{one.size} elements of {one.dtype} cannot be divided into {parts} parts of {other.size} elements of "
            f"{other.dtype}"
        )


def all_reduce(
    comm: Communicator, array: Array, op: str | Op = "sum", *, behind: bool = False, **options: Any
) -> Work | None:
    """Replaces the array by the sum over all ranks, or by the "average", "min", "max", "product", "band", "bor" or
    "bxor"."""
    address = _address(array, written=True)
    kept = array if behind else None
    return comm.call("tutti_all_reduce", address, address, array.size, _type(array), _op(op), behind=kept, **options)


def reduce(
    comm: Communicator, array: Array, op: str | Op = "sum", root: int = 0, *, behind: bool = False, **options: Any
) -> Work | None:
    """Like all_reduce(), but replaces only the array of the root."""
    address = _address(array, written=comm.rank == root)
    kept = array if behind else None
    return comm.call(
        "tutti_reduce",
        address,
        address,
        array.size,
        _type(array),
        _op(op),
        as_int(root, "root"),
        behind=kept,
        **options,
    )


def broadcast(comm: Communicator, array: Array, root: int = 0, *, behind: bool = False, **options: Any) -> Work | None:
    """Replaces the arrays of all ranks by the array of the root."""
    address = _address(array, written=comm.rank != root)
    kept = array if behind else None
    root = as_int(root, "root")
    return comm.call("tutti_broadcast", address, array.size, _type(array), root, behind=kept, **options)


def all_gather(comm: Communicator, output: Array, array: Array, *, behind: bool = False, **options: Any) -> Work | None:
    """Writes the arrays of all ranks to `output`, one after the other in the order of the ranks."""
    _same_size(output, array, comm.world)
    kept = (output, array) if behind else None
    return comm.call(
        "tutti_all_gather", _address(array), _address(output, True), array.size, _type(array), behind=kept, **options
    )


def all_gather_into(
    comm: Communicator, outputs: Sequence[Array], array: Array, *, behind: bool = False, **options: Any
) -> Work | None:
    """Writes the array of rank r to `outputs[r]`. The arrays may differ in size."""
    pointers = _addresses(outputs, comm, array, written=True)
    counts = _counts(outputs)
    _same_size(outputs[comm.rank], array)
    kept = (list(outputs), array, pointers, counts) if behind else None
    return comm.call("tutti_all_gather_v", _address(array), pointers, counts, _type(array), behind=kept, **options)


def reduce_scatter(
    comm: Communicator, output: Array, array: Array, op: str | Op = "sum", *, behind: bool = False, **options: Any
) -> Work | None:
    """Adds the arrays of all ranks, which have one part for each rank, and writes part r of the sum to the output of
    rank r."""
    _same_size(array, output, comm.world)
    kept = (output, array) if behind else None
    return comm.call(
        "tutti_reduce_scatter",
        _address(array),
        _address(output, True),
        output.size,
        _type(array),
        _op(op),
        behind=kept,
        **options,
    )


def all_to_all(comm: Communicator, output: Array, array: Array, *, behind: bool = False, **options: Any) -> Work | None:
    """Sends part r of the array to rank r, and receives part r of `output` from rank r. All parts have the same
    size."""
    _same_size(output, array)
    if array.size % comm.world:
        raise InvalidArgument(f"{array.size} elements cannot be divided into {comm.world} equal parts")
    kept = (output, array) if behind else None
    return comm.call(
        "tutti_all_to_all",
        _address(array),
        _address(output, True),
        array.size // comm.world,
        _type(array),
        behind=kept,
        **options,
    )


def all_to_all_into(
    comm: Communicator, outputs: Sequence[Array], arrays: Sequence[Array], *, behind: bool = False, **options: Any
) -> Work | None:
    """Sends `arrays[r]` to rank r, and receives `outputs[r]` from rank r. The arrays may differ in size."""
    inputs = _addresses(arrays, comm, outputs[0], written=False)
    targets = _addresses(outputs, comm, arrays[0], written=True)
    kept = (list(outputs), list(arrays)) if behind else None
    return comm.call(
        "tutti_all_to_all_v",
        inputs,
        _counts(arrays),
        targets,
        _counts(outputs),
        _type(arrays[0]),
        behind=kept,
        **options,
    )


def gather(
    comm: Communicator,
    outputs: Sequence[Array] | None,
    array: Array,
    root: int = 0,
    *,
    behind: bool = False,
    **options: Any,
) -> Work | None:
    """Writes the array of rank r to `outputs[r]` of the root. Other ranks pass None for `outputs`."""
    root = as_int(root, "root")
    pointers = _addresses(outputs, comm, array, written=True) if outputs is not None or comm.rank == root else None
    for output in outputs or ():
        _same_size(output, array)
    kept = (outputs, array) if behind else None
    return comm.call("tutti_gather", _address(array), pointers, array.size, _type(array), root, behind=kept, **options)


def scatter(
    comm: Communicator,
    output: Array,
    arrays: Sequence[Array] | None,
    root: int = 0,
    *,
    behind: bool = False,
    **options: Any,
) -> Work | None:
    """Writes `arrays[r]` of the root to the output of rank r. Other ranks pass None for `arrays`."""
    root = as_int(root, "root")
    pointers = _addresses(arrays, comm, output, written=False) if arrays is not None or comm.rank == root else None
    for array in arrays or ():
        _same_size(array, output)
    kept = (output, arrays) if behind else None
    return comm.call(
        "tutti_scatter", pointers, _address(output, True), output.size, _type(output), root, behind=kept, **options
    )


def send(
    comm: Communicator, array: Array, to: int, *, tag: int = 0, behind: bool = False, **options: Any
) -> Work | None:
    """Sends the array to the rank `to`, which receives it by recv() with the same tag."""
    kept = array if behind else None
    place = (as_int(to, "to"), as_int(tag, "tag"))
    return comm.call("tutti_send", _address(array), array.size, _type(array), *place, behind=kept, **options)


def recv(comm: Communicator, array: Array, source: int | None = None, *, tag: int = 0, **options: Any) -> int:
    """Receives an array of this size and type from the rank `source`, or from any rank that has not left. Returns the
    rank of the sender."""
    if options.get("behind"):
        raise InvalidArgument("recv() waits for its message; behind= is for other operations")
    sender = ctypes.c_int(-1)
    place = (-1 if source is None else as_int(source, "source"), as_int(tag, "tag"))
    arguments = (_address(array, True), array.size, _type(array), *place, ctypes.byref(sender))
    comm.call("tutti_recv", *arguments, **options)
    return sender.value


__all__ = [
    "all_gather",
    "all_gather_into",
    "all_reduce",
    "all_to_all",
    "all_to_all_into",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]
