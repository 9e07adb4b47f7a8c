"""An optimiser whose gradients are those of all ranks.

Its parameters are divided into buckets in the reverse order of their registration, which is about the order in which a
backward pass computes their gradients. A bucket is sent once all of its gradients are there and all buckets before it
were sent, so that all ranks send them in the same order. step() sends what is left, with zeros for gradients that were
not computed, and waits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...errors import InvalidArgument, Unimplemented
from ._channel import Operation
from ._start import Adasum, Average, ReduceOp, start_allreduce
from .compression import Compression, Compressor
from .operations import sparse_allreduce_async
from .ranks import ProcessSet, global_process_set, size

Tensor = torch.Tensor
Groups = int | Sequence[Sequence[Tensor]] | None

_BUCKET_BYTES = 16 << 20


def _buckets_of(parameters: Sequence[Tensor], groups: Groups) -> list[list[Tensor]]:
    """Parameters that are sent together, in the order in which they are sent. Those of a bucket have one type."""
    order = list(reversed(parameters))
    if groups is None:
        return [bucket for same in _by_type(order) for bucket in _by_size(same)]
    if isinstance(groups, int):
        each, more = divmod(len(order), groups)
        ends = [index * each + min(index, more) for index in range(groups + 1)]
        parts = [order[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
    else:
        places = {id(parameter): place for place, parameter in enumerate(order)}
        parts = [sorted((p for p in group if id(p) in places), key=lambda p: places[id(p)]) for group in groups]
        grouped = {id(parameter) for part in parts for parameter in part}
        parts += [[parameter] for parameter in order if id(parameter) not in grouped]
        parts = sorted(filter(None, parts), key=lambda part: places[id(part[-1])])
    return [bucket for part in parts for bucket in _by_type(part)]


def _by_type(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    buckets: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        buckets.setdefault(parameter.dtype, []).append(parameter)
    return list(buckets.values())


def _by_size(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    buckets: list[list[Tensor]] = []
    room = 0
    for parameter in parameters:
        room -= parameter.numel() * parameter.element_size()
        if room < 0:
            buckets.append([])
            room = _BUCKET_BYTES - parameter.numel() * parameter.element_size()
        buckets[-1].append(parameter)
    return buckets


class _Bucket:
    """Gradients that are sent together, in a flat tensor that stays."""

    def __init__(self, parameters: Sequence[Tensor], names: Sequence[str]) -> None:
        self.parameters = parameters
        self.name = f"of {len(names)} gradients, {names[0]} to {names[-1]}"
        self._details = " ".join(f"{name} {tuple(p.shape)}" for name, p in zip(names, parameters, strict=True))
        self.missing = len(parameters)
        self._flat: Tensor | None = None
        self._sent: Operation | None = None
        self._dense: list[tuple[Tensor, torch.Size, Any]] = []  # parameters, with what restores their gradients
        self._sparse: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def send(self, optimizer: _DistributedOptimizer) -> None:
        self._dense, self._sparse = [], []
        values: list[Tensor] = []
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)  # other ranks may have one
            gradient = parameter.grad
            if gradient.is_sparse:
                if not optimizer.sparse_as_dense:
                    work = sparse_allreduce_async(gradient, self.name, optimizer.op, optimizer.process_set)
                    self._sparse.append((parameter, work))
                    continue
                gradient = gradient.to_dense()
            compressed, context = optimizer._compression.compress(gradient)
            self._dense.append((parameter, compressed.shape, context))
            values.append(compressed.reshape(-1))
        if values:
            self._fill(values)
            self._sent = self._start(optimizer)

    def _fill(self, values: list[Tensor]) -> None:
        count, dtype = sum(each.numel() for each in values), values[0].dtype
        if self._flat is None or (self._flat.numel(), self._flat.dtype) != (count, dtype):
            self._flat = torch.empty(count, dtype=dtype)
        torch.cat(values, out=self._flat)

    def _start(self, optimizer: _DistributedOptimizer) -> Operation:
        assert self._flat is not None
        factor = optimizer.gradient_predivide_factor
        how = (self.name, optimizer.op, 1 / factor, factor, optimizer.process_set)
        return start_allreduce(self._flat, self._flat, *how, behind=True, details=self._details)

    def collect(self, optimizer: _DistributedOptimizer) -> None:
        """Waits, and writes the gradients."""
        if self._sent is not None:
            flat = self._sent.result()
            self._sent = None
            parts = torch.split(flat, [shape.numel() for _, shape, _ in self._dense])
            for (parameter, shape, context), part in zip(self._dense, parts, strict=True):
                gradient = optimizer._compression.decompress(part.view(shape), context)
                if parameter.grad is None:
                    parameter.grad = gradient.clone()
                elif parameter.grad.is_sparse:
                    parameter.grad = gradient.to_sparse(parameter.grad.sparse_dim())
                else:
                    parameter.grad.copy_(gradient)
        for parameter, finish in self._sparse:
            parameter.grad = finish()
        self._dense, self._sparse = [], []


class _DistributedOptimizer(torch.optim.Optimizer):
    """What DistributedOptimizer() puts before the class of an optimiser."""

    _compression: type[Compressor]
    backward_passes_per_step: int
    op: ReduceOp
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    _names: dict[Tensor, str]
    _groups: Groups

    def _begin(self) -> None:
        """Divides the parameters into buckets, and listens to their gradients."""
        self._buckets: list[_Bucket] = []
        self._listeners: list[Any] = []
        self._synchronized = False
        self._should_synchronize = True
        if self.process_set.included() and size() > 1:
            parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
            for bucket in _buckets_of(parameters, self._groups):
                self._listen(_Bucket(bucket, [self._names.get(p, "a parameter that was added") for p in bucket]))
        self._restart()

    def _listen(self, bucket: _Bucket) -> None:
        self._buckets.append(bucket)
        parameters: Sequence[Any] = bucket.parameters
        for parameter in parameters:
            listener = parameter.register_post_accumulate_grad_hook(lambda p: self._accumulated(p, bucket))
            self._listeners.append(listener)

    def _restart(self) -> None:
        """Nothing was sent in this step."""
        self._passes_left = {p: self.backward_passes_per_step for bucket in self._buckets for p in bucket.parameters}
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
        self._next = 0  # the bucket that is sent next
        self._in_step = False  # whether a gradient was computed

    def _accumulated(self, parameter: Tensor, bucket: _Bucket) -> None:
        if self._passes_left[parameter] == 0:
            raise InvalidArgument(
                f"the gradient of {self._names.get(parameter)} was computed more than "
                f"{self.backward_passes_per_step} times before step() or synchronize(); to accumulate gradients, set "
                "backward_passes_per_step"
            )
        self._in_step = True
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            bucket.missing -= 1
            while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
                self._send_next()

    @torch.no_grad()
    def _send_next(self) -> None:
        self._next += 1
        self._buckets[self._next - 1].send(self)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Waits until all gradients are those of all ranks. For what changes them before step(), in
        skip_synchronize()."""
        try:
            while self._next < len(self._buckets):
                self._send_next()
            for bucket in self._buckets:
                bucket.collect(self)
        finally:
            self._restart()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """step() inside of it takes the gradients as they are, after synchronize()."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """Waits for the gradients of all ranks and makes a step. A closure that computes gradients is followed by
        synchronize()."""
        if not self._should_synchronize:
            self._synchronized = False
            return super().step(closure)
        if closure is not None:

            def synchronized() -> Any:
                with torch.enable_grad():
                    loss = closure()
                self.synchronize()
                return loss

            result = super().step(synchronized)
            self._synchronized = False
            return result
        if self._synchronized:
            warnings.warn(
                "step() after synchronize() sends the gradients again; call step() in skip_synchronize()", stacklevel=2
            )
        self.synchronize()
        self._synchronized = False
        return super().step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._in_step:
            raise InvalidArgument(
                "zero_grad() after backward() and before step() or synchronize(), while gradients may be on their way"
            )
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        self._restart()
        self._synchronized, self._should_synchronize = False, True
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for listener in self._listeners:
            listener.remove()
        self._begin()

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.backward_passes_per_step = passes
        self._restart()


def _names_of(optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None) -> dict[Tensor, str]:
    own = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        return {p: f"parameter {number}" for number, p in enumerate(own)}
    named = list(named_parameters)
    if any(not isinstance(each, tuple) for each in named):
        raise InvalidArgument("named_parameters are pairs of a name and a parameter: model.named_parameters()")
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidArgument(f"parameters have the same name: {', '.join(twice)}")
    result = {p: name for name, p in named}
    unnamed = sum(p not in result for p in own)
    if unnamed:
        raise InvalidArgument(f"{unnamed} parameters of the optimiser are not in named_parameters")
    return result


def _check_groups(groups: Groups) -> None:
    if groups is None:
        return
    if isinstance(groups, int):
        if groups <= 0:
            raise InvalidArgument(f"groups is a positive number, or a list of lists of parameters; got {groups}")
        return
    tensors = [parameter for group in groups for parameter in group]
    if any(not isinstance(parameter, Tensor) for parameter in tensors):
        raise InvalidArgument("groups is a list of lists of parameters")
    if len({id(parameter) for parameter in tensors}) < len(tensors):
        raise InvalidArgument("a parameter is twice in the groups")


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the optimiser, as an object of its class with its state, whose step() uses the average gradients of all
    ranks (or another combination, `op`).

    Gradients are sent during the backward pass, from the last parameter to the first; all ranks have the same
    parameters in the same order. With `backward_passes_per_step`, each rank adds up the gradients of this many passes
    before. `groups` says which parameters are sent together.

    To change the gradients of all ranks, such as by clipping, call `optimizer.synchronize()`, which waits for them,
    change them, and call step() inside of `with optimizer.skip_synchronize()`.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgument("gradient_predivide_factor is for op=hvd.Average")
    if backward_passes_per_step <= 0:
        raise InvalidArgument(f"backward_passes_per_step is {backward_passes_per_step}; expected a positive number")
    if op == Adasum and size() > 1:
        raise Unimplemented("Adasum is not there; use op=hvd.Average")
    if num_groups:
        warnings.warn("the argument 'num_groups' is deprecated; use 'groups'", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    _check_groups(groups)
    base = type(optimizer)
    result: Any = object.__new__(type(base.__name__, (_DistributedOptimizer, base), {}))
    # Options and state are shared with the optimiser that was given, for schedules that hold that one.
    result.__dict__.update(
        {key: value for key, value in optimizer.__dict__.items() if key not in ("step", "zero_grad")}
    )
    result._names = _names_of(optimizer, named_parameters)
    result._compression = compression
    result.backward_passes_per_step = backward_passes_per_step
    result.op = ReduceOp(op)
    result.gradient_predivide_factor = gradient_predivide_factor
    result.sparse_as_dense = sparse_as_dense
    result.process_set = process_set
    result._groups = groups
    result._begin()
    return result
