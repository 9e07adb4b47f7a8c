"""What the modules for Lightning and Transformers share: a training whose loop belongs to the framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from ..errors import InvalidArgument
from ._lanes import Lane
from ._tensors import Tensor
from .data import steps
from .optimizer import DistributedOptimizer

_WITHOUT_END = 1 << 40  # epochs: the framework knows when to stop


class Training:
    """A DistributedOptimizer and its steps, which the loop of a framework asks for one by one.

    `program` has what the framework keeps besides weights and optimiser, with state_dict() and load_state_dict().
    """

    def __init__(self, optimizer: torch.optim.Optimizer, program: Any, **options: Any) -> None:
        self._program = program
        self._torch = optimizer
        self._groups: list[dict[str, Any]] | None = None
        self._steps: Any = None
        self.optimizer = DistributedOptimizer(optimizer, state={"trainer": self}, **options)

    @property
    def has_begun(self) -> bool:
        """Returns True from the first step on."""
        return self._groups is not None

    def begin(self, dataset: Any, **arguments: Any) -> int:
        """Takes the arguments of steps(). Returns the number of steps of an epoch."""
        if self._steps is not None:
            raise InvalidArgument("the training has asked for several DataLoaders; expected one training DataLoader")
        made = steps(dataset, lanes=self.optimizer.lanes, epochs=_WITHOUT_END, **arguments)
        self._steps = iter(made)
        return made.per_epoch

    def make_step(self, compute: Callable[[Lane, Any], Tensor], finish: Callable[[], int]) -> Tensor:
        """Computes the lanes of this rank and calls `finish`, both again if another rank was lost. `compute` includes the
        backward pass. Returns the mean loss of all examples."""
        opt = self.optimizer
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in self._torch.param_groups]
        step, examples = opt.lanes.step, 0
        while opt.lanes.step == step:
            _, lanes = next(self._steps)
            for lane, batch in lanes:
                with opt.lane(lane) as scope:
                    scope.loss = compute(lane, batch)
            examples = finish()
        if not examples:  # the update of another rank was taken over
            self._torch.zero_grad()
        return torch.tensor(float("nan") if opt.last_loss is None else opt.last_loss)

    def end(self) -> None:
        """Saves a checkpoint of the last step, if there is a folder, and waits until rank 0 has written all of them."""
        if self._steps is not None:
            self._steps.close()
        if self.optimizer.folder is not None:
            self.optimizer.save()
        self.optimizer.agree_on_end()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._program.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._groups is None:
            self._program.load_state_dict(state)
            return
        # This rank takes over a step of another one. Its own loop counts it, and changes the learning rate, after that.
        for group, before in zip(self._torch.param_groups, self._groups):
            group.update(before)


def arguments_of(loader: object) -> dict[str, Any]:
    """Returns the arguments of steps(), from a DataLoader. Raises InvalidArgument if it draws examples in its own way."""
    if not isinstance(loader, DataLoader):
        raise InvalidArgument(
            f"the training's data is a {type(loader).__name__}; expected one torch.utils.data.DataLoader"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise InvalidArgument(
            f"the dataset is the IterableDataset {type(loader.dataset).__name__}; lanes draw the examples, so that it needs a "
            "length, and examples by number"
        )
    sampler: Any = loader.sampler
    is_shuffled = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    if type(loader.batch_sampler) is not BatchSampler or not (is_shuffled or type(sampler) is SequentialSampler):
        raise InvalidArgument(
            "the DataLoader has a sampler of its own, but lanes draw the examples: DataLoader(dataset, batch_size=..., "
            "shuffle=...) without sampler= and batch_sampler="
        )
    return {
        "dataset": loader.dataset,
        "batch": loader.batch_size,
        "shuffle": is_shuffled,
        "drop_remainder": loader.drop_last,
        "collate": loader.collate_fn,
        "workers": loader.num_workers,
    }


__all__ = ["Training", "arguments_of"]
