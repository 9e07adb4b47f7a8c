"""The examples of lanes, at every step the same on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from ..errors import InvalidArgument
from ..lanes import Sampler, lane_seed
from ._lanes import Lane, Lanes
from ._random import seeded

_Place = tuple[int, int]


class _Batches(torch.utils.data.Dataset[Any]):
    """The batches of lanes, by step and lane. Random numbers in the dataset depend on both."""

    def __init__(self, dataset: Any, sampler: Sampler, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self._dataset, self._sampler, self._collate, self._seed = dataset, sampler, collate, seed

    def __getitem__(self, place: _Place) -> tuple[int, Any]:
        examples = self._sampler.examples(*place)
        if not examples:
            return 0, None
        with seeded(lane_seed(~self._seed, *place)):
            if hasattr(self._dataset, "__getitems__"):
                chosen = self._dataset.__getitems__(examples)
            else:
                chosen = [self._dataset[i] for i in examples]
            return len(examples), self._collate(chosen)


class _Places:
    """The lanes of this rank in all steps that are to come."""

    def __init__(self, lanes: Lanes, end: int) -> None:
        self._lanes, self._end = lanes, end

    def __iter__(self) -> Iterator[_Place]:
        here = self._lanes.here
        return ((step, lane) for step in range(self._lanes.step, self._end) for lane in here)


class Steps:
    """The result of steps(): pairs of a step and of this rank's lanes with their batches. Its length is the number of
    steps of all epochs."""

    def __init__(self, batches: _Batches, lanes: Lanes, per_epoch: int, epochs: int, seed: int, workers: int) -> None:
        self.per_epoch = per_epoch
        """The number of steps of an epoch: `step // per_epoch` is the epoch of a step."""
        self._batches, self._lanes, self._end = batches, lanes, epochs * per_epoch
        self._seed, self._workers = seed, workers

    def __len__(self) -> int:
        return self._end

    def __iter__(self) -> Iterator[tuple[int, Iterator[tuple[Lane, Any]]]]:
        lanes = self._lanes
        if lanes.tries > 0 and lanes.step >= self._end:
            raise InvalidArgument(
                f"all {self._end} steps have been made: `epochs` counts from the beginning of the training. Use one loop over "
                "steps(), in which step // per_epoch is the epoch"
            )
        with lanes.optimizer.stop_signals:
            while lanes.step < self._end:
                yield from self._of_ranks()
            if lanes.optimizer.folder is not None:
                lanes.optimizer.save()

    def _of_ranks(self) -> Iterator[tuple[int, Iterator[tuple[Lane, Any]]]]:
        """The steps until the lanes of this rank change, a step has to be made again, or the end."""
        lanes, here = self._lanes, self._lanes.here
        places = _Places(lanes, self._end)
        loader = iter(DataLoader(self._batches, batch_size=None, sampler=places, num_workers=self._workers))
        while lanes.step < self._end and lanes.here == here:
            step, left, tries = lanes.step, list(here), lanes.tries
            try:
                yield step, self._lanes_of(step, left, loader)
            except GeneratorExit:  # the loop was left by a break
                if lanes.tries > tries:
                    lanes.optimizer.save_if_due()
                raise
            if lanes.tries == tries:
                raise InvalidArgument(f"step {step} has not been made: call step() of the optimiser after its lanes")
            lanes.optimizer.between_steps()
            if lanes.step != step + 1 or left:
                return

    def _lanes_of(self, step: int, left: list[int], loader: Iterator[Any]) -> Iterator[tuple[Lane, Any]]:
        while left:
            number = left.pop(0)
            examples, batch = next(loader)
            lane = Lane(number, step, examples, self._seed)
            if examples:
                yield lane, batch
            else:
                self._lanes.optimizer.skip(lane)


def steps(
    dataset: Any,
    *,
    lanes: Lanes,
    batch: int,
    seed: int = 1,
    epochs: int = 1,
    shuffle: bool = True,
    drop_remainder: bool = False,
    collate: Callable[[list[Any]], Any] = default_collate,
    workers: int = 0,
) -> Steps:
    """Returns each step with this rank's lanes and their batches, beginning with the next step of the optimiser.

    `dataset` has a length and examples by number, as a torch.utils.data.Dataset or a dataset of Hugging Face has;
    `batch` is the number of examples of a lane; `lanes` are those of a `DistributedOptimizer`; `epochs` counts from the
    beginning of the training. A step that failed because a rank was lost is repeated. `workers` processes read ahead,
    as those of a DataLoader do. After the last step a checkpoint is saved, if the optimiser has a folder.
    """
    if not isinstance(lanes, Lanes):
        raise InvalidArgument(f"lanes is {lanes!r}, but has to be that of an optimiser: lanes=opt.lanes")
    if isinstance(dataset, DataLoader) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InvalidArgument(
            f"the dataset is a {type(dataset).__name__}; steps() needs the examples themselves, with a length and by number. "
            "It batches them, and workers= reads ahead"
        )
    sampling = {
        "examples": len(dataset),
        "batch": batch,
        "seed": seed,
        "shuffle": shuffle,
        "drop_remainder": drop_remainder,
    }
    before = lanes.optimizer.sampling
    if before is not None and before != sampling:
        other = next(name for name, value in sampling.items() if before.get(name) != value)
        raise InvalidArgument(
            f"the training has begun with {other}={before.get(other)}, and would go on with {sampling[other]}, so that examples "
            "were left out or repeated. Give it another folder, or the same numbers"
        )
    lanes.optimizer.sampling = sampling
    sampler = Sampler(
        len(dataset), lanes=lanes.count, batch=batch, seed=seed, shuffle=shuffle, drop_remainder=drop_remainder
    )
    if sampler.steps_per_epoch == 0:
        raise InvalidArgument(
            f"the {len(dataset)} examples do not fill one step of {lanes.count} lanes with {batch} examples each"
        )
    lanes.optimizer.ends_at = epochs * sampler.steps_per_epoch
    batches = _Batches(dataset, sampler, collate, seed)
    return Steps(batches, lanes, sampler.steps_per_epoch, epochs, seed, workers)


__all__ = ["Steps", "steps"]
