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
        self.note()
        self.sums = [LaneSum(comm, lanes, v.data_ptr(), v.numel(), TYPES[v.dtype]) for v in self.vectors]

    def begin_lane(self) -> None:
        for vector in self.vectors:
            vector.zero_()
        self.show()
        self.note()

    def note(self) -> None:
        """Whoever writes into the vectors from now on is noticed, other than the sums."""
        self._seen = self._versions()

    def _versions(self) -> list[int]:
        return [vector._version for vector in self.vectors]

    def were_computed(self) -> bool:
        """Whether a backward pass has written gradients since note()."""
        grads = zip(self.parameters, self._views)
        return self._seen != self._versions() or any(p.grad is not None and p.grad is not view for p, view in grads)

    def are_untouched(self) -> bool:
        """Whether nobody has written into the vectors since note()."""
        return self._seen == self._versions()

    @torch.no_grad()
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
        self.note()

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
    step they are the mean over the lanes, in float64; those that no lane has changed stay as they are."""

    def __init__(self, module: torch.nn.Module | None, comm: Communicator, lanes: int) -> None:
        # By their places, since a module may put another tensor there.
        modules = [] if module is None else list(module.modules())
        places = {id(b): (each, key) for each in modules for key, b in each._buffers.items() if b is not None}
        self._places = [place for place in places.values() if _at(place).numel() > 0]
        if any(buffer.is_complex() for buffer in self._all()):
            raise InvalidArgument("a buffer has complex numbers, whose mean over lanes is not supported")
        self._sizes = [buffer.numel() for buffer in self._all()]
        # At the end, for each buffer whether the lane has changed it.
        self._vector = v = torch.zeros(sum(self._sizes) + len(self._sizes), dtype=torch.float64)
        self._before: list[Tensor] = []
        self.sum = LaneSum(comm, lanes, v.data_ptr(), v.numel(), TYPES[v.dtype]) if self._places else None

    def _all(self) -> list[Tensor]:
        return [_at(place) for place in self._places]

    def save(self) -> None:
        self._before = [buffer.detach().clone() for buffer in self._all()]

    @torch.no_grad()
    def restore(self) -> None:
        for place, before in zip(self._places, self._before):
            _put(place, before)

    @torch.no_grad()
    def collect(self) -> None:
        buffers = self._all()
        if [buffer.numel() for buffer in buffers] != self._sizes:
            raise InvalidArgument("a buffer has another size than before the step, so that lanes have no mean of it")
        if buffers:
            changed = [not torch.equal(now, before) for now, before in zip(buffers, self._before)]
            flat = [buffer.detach().reshape(-1).to(torch.float64) for buffer in buffers]
            torch.cat([*flat, torch.tensor(changed, dtype=torch.float64)], out=self._vector)

    @torch.no_grad()
    def take_over(self) -> None:
        parts = torch.split(self._vector, [*self._sizes, len(self._sizes)])
        for place, before, part, changed in zip(self._places, self._before, parts, parts[-1].tolist()):
            _put(place, part.view(before.size()).to(before.dtype) if changed else before)


_Place = tuple[torch.nn.Module, str]


def _at(place: _Place) -> Tensor:
    buffer = place[0]._buffers[place[1]]
    if buffer is None:
        raise InvalidArgument(f"the buffer '{place[1]}' has become None")
    return buffer


def _put(place: _Place, values: Tensor) -> None:
    now = _at(place)
    if now.shape == values.shape and now.dtype == values.dtype:
        now.copy_(values)
    else:
        place[0]._buffers[place[1]] = values.clone()
