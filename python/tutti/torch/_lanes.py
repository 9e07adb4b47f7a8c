"""Lanes of a training, and what is computed in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..communicator import Communicator
from ..errors import InvalidArgument
from ..lanes import lanes_of
from ._tensors import Tensor

if TYPE_CHECKING:
    from .optimizer import DistributedOptimizer


@dataclass(frozen=True)
class Lane:
    """One lane of a step. Its random numbers depend on the seed, the step and the number of the lane."""

    number: int
    step: int
    examples: int
    seed: int = 1


class Lanes:
    """The lanes of a training, and its step."""

    def __init__(self, optimizer: DistributedOptimizer, comm: Communicator, count: int) -> None:
        self._comm = comm
        self.optimizer = optimizer
        self.count = count
        """The number of lanes of all ranks."""
        self.step = 0
        """The number of steps that were made."""
        self.tries = 0
        """How often DistributedOptimizer.step() was called in this process."""

    @property
    def here(self) -> range:
        """The lanes of this rank. They change when ranks are lost or join."""
        return lanes_of(self._comm.rank, self._comm.world, self.count)

    def __index__(self) -> int:
        return self.count


class LaneScope:
    """The `scope` of `with opt.lane(lane) as scope`."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self.was_weighted = False
        self.loss: Tensor | None = None

    def backward(self, loss: Tensor) -> None:
        """Makes the only backward pass of the lane, from the mean loss of its examples. `last_loss` then includes
        it."""
        if loss.numel() != 1:
            raise InvalidArgument(
                f"the loss has the shape {list(loss.shape)}; expected one number, the mean of the lane"
            )
        if self.was_weighted:
            raise InvalidArgument("a lane has one scope.backward(): call it with the sum of the losses")
        self.loss, self.was_weighted = loss.detach(), True
        loss.backward(torch.full_like(loss, self._weight))  # type: ignore[no-untyped-call]
