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
    """A share of the batch of a step."""

    number: int
    step: int
    examples: int
    seed: int = 1


class Lanes:
    """The lanes of a training, those of this rank, and the step that is next."""

    def __init__(self, optimizer: DistributedOptimizer, comm: Communicator, count: int) -> None:
        self._comm = comm
        self.optimizer = optimizer
        self.count = count
        """Of all ranks."""
        self.step = 0
        """The number of steps that were made."""
        self.tries = 0
        """How often DistributedOptimizer.step() was called here."""

    @property
    def here(self) -> range:
        """Of this rank. They change when ranks are lost or come."""
        return lanes_of(self._comm.rank, self._comm.world, self.count)

    def __index__(self) -> int:
        return self.count


class LaneScope:
    """What `DistributedOptimizer.lane()` gives."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self.was_weighted = False
        self.loss: Tensor | None = None

    def backward(self, loss: Tensor) -> None:
        """The only backward pass of the lane, from the mean loss of its examples, which `last_loss` will include."""
        if loss.numel() != 1:
            raise InvalidArgument(
                f"the loss has the shape {list(loss.shape)}; expected one number, the mean of the lane"
            )
        if self.was_weighted:
            raise InvalidArgument("a lane has one scope.backward(): call it with the sum of the losses")
        self.loss, self.was_weighted = loss.detach(), True
        loss.backward(torch.full_like(loss, self._weight))  # type: ignore[no-untyped-call]
