"""The gradients and buffers of a model as few vectors, which are summed as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..communicator import Communicator
from ..errors import InvalidArgument
from ..lanes import LaneSum
from ._tensors import TYPES, Tensor


def _view(vector: Tensor, at: int, of: Tensor) -> Tensor:
    """The part of a vector that has the shape of a tensor, and its order in memory if that is dense."""
    part = vector[at : at + of.numel()]
    dense = of.numel() > 0 and of.numel() == 1 + sum((n - 1) * s for n, s in zip(of.size(), of.stride()))
    if not dense:
        return part.view(of.size())
    return torch.as_strided(vector, of.size(), of.stride(), vector.storage_offset() + at)


class Gradients:
    """The gradients of parameters, in one vector for each type of elements: each `grad` is a view of it."""

    def __init__(self, parameters: Sequence[Tensor], comm: Communicator, lanes: int) -> None:
        self.parameters = list(parameters)
        self.vectors: list[Tensor] = []
        self._views: list[Tensor] = [torch.empty(0)] * len(self.parameters)
        for kind in dict.fromkeys(parameter.dtype for parameter in self.parameters):
            of_kind = [i for i, parameter in enumerate(self.parameters) if parameter.dtype == kind]
            vector = torch.zeros(sum(self.parameters[i].numel() for i in of_kind), dtype=kind)
            at = 0
            for i in of_kind:
                self._views[i] = _view(vector, at, self.parameters[i])
                at += self.parameters[i].numel()
            self.vectors.append(vector)
        self.sums = [LaneSum(comm, lanes, v.data_ptr(), v.numel(), TYPES[v.dtype]) for v in self.vectors]

    def begin_lane(self) -> None:
        for vector in self.vectors:
            vector.zero_()
        self.show()

    def collect(self, factor: float) -> None:
        """Takes the gradients of a lane, times a factor, from wherever the backward pass has left them."""
        for parameter, view in zip(self.parameters, self._views):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                view.copy_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
        if factor != 1:
            for vector in self.vectors:
                vector.mul_(factor)

    def show(self) -> None:
        """Makes the vectors the gradients of the parameters again."""
        for parameter, view in zip(self.parameters, self._views):
            parameter.grad = view

    def not_finite(self) -> int | None:
        """The index of the first parameter whose gradient is not finite."""
        if all(bool(torch.isfinite(vector.sum())) or bool(torch.isfinite(vector).all()) for vector in self.vectors):
            return None
        return next(i for i, view in enumerate(self._views) if not bool(torch.isfinite(view).all()))


class Buffers:
    """The buffers of a module, such as running statistics. Each lane begins with those before the step, and after a
    step they are the mean over the lanes: exact in float64, so that equal ones stay as they are."""

    def __init__(self, module: torch.nn.Module | None, comm: Communicator, lanes: int) -> None:
        self._buffers = [] if module is None else [b for _, b in module.named_buffers() if b.numel() > 0]
        if any(buffer.is_complex() for buffer in self._buffers):
            raise InvalidArgument("a buffer has complex numbers, whose mean over lanes is not supported")
        self._vector = torch.zeros(sum(buffer.numel() for buffer in self._buffers), dtype=torch.float64)
        self._before: list[Tensor] = []
        v = self._vector
        self.sum = LaneSum(comm, lanes, v.data_ptr(), v.numel(), TYPES[v.dtype]) if self._buffers else None

    def save(self) -> None:
        self._before = [buffer.clone() for buffer in self._buffers]

    @torch.no_grad()
    def restore(self) -> None:
        for buffer, before in zip(self._buffers, self._before):
            buffer.copy_(before)

    @torch.no_grad()
    def collect(self) -> None:
        if self._buffers:
            torch.cat([buffer.detach().reshape(-1).to(torch.float64) for buffer in self._buffers], out=self._vector)

    @torch.no_grad()
    def take_over(self) -> None:
        sizes = [buffer.numel() for buffer in self._buffers]
        parts = torch.split(self._vector, sizes) if sizes else ()
        for buffer, part in zip(self._buffers, parts):
            buffer.copy_(part.view(buffer.size()))
