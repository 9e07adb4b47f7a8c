"""The examples of lanes, at every step the same on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from ..errors import InvalidArgument
from ..lanes import Sampler, lane_seed
from ._random import seeded
from .optimizer import Lane, Lanes

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
) -> Iterator[tuple[int, Iterator[tuple[Lane, Any]]]]:
    """Yields each step with this rank's lanes and their batches, from the step on at which the optimiser is.

    `dataset` has a length and examples by number, as a torch.utils.data.Dataset or a dataset of Hugging Face has; `batch`
    is the number of examples of a lane; `lanes` are those of a DistributedOptimizer. A step that a lost rank has broken
    off is yielded once more. `workers` processes read ahead, as those of a DataLoader do.
    """
    if not isinstance(lanes, Lanes):
        raise InvalidArgument(f"lanes is {lanes!r}, but has to be that of an optimiser: lanes=opt.lanes")
    sampler = Sampler(
        len(dataset), lanes=lanes.count, batch=batch, seed=seed, shuffle=shuffle, drop_remainder=drop_remainder
    )
    if sampler.steps_per_epoch == 0:
        raise InvalidArgument(
            f"the {len(dataset)} examples do not fill one step of {lanes.count} lanes with {batch} examples each"
        )
    end = epochs * sampler.steps_per_epoch
    batches = _Batches(dataset, sampler, collate, seed)
    while lanes.step < end:
        yield from _steps_of_ranks(batches, lanes, end, seed, workers)


def _steps_of_ranks(
    batches: _Batches, lanes: Lanes, end: int, seed: int, workers: int
) -> Iterator[tuple[int, Iterator[tuple[Lane, Any]]]]:
    """Until the lanes of this rank change, a step has to be made again, or the end."""
    here = lanes.here
    loader = iter(DataLoader(batches, batch_size=None, sampler=_Places(lanes, end), num_workers=workers))
    while lanes.step < end and lanes.here == here:
        step = lanes.step
        left = list(here)

        def of_step(step: int, left: list[int]) -> Iterator[tuple[Lane, Any]]:
            while left:
                number = left.pop(0)
                examples, batch = next(loader)
                lane = Lane(number, step, examples, seed)
                if examples:
                    yield lane, batch
                else:
                    lanes.optimizer.skip(lane)

        tries = lanes.tries
        yield step, of_step(step, left)
        if lanes.tries == tries:
            raise InvalidArgument(f"step {step} has not been made: call step() of the optimiser after its lanes")
        lanes.optimizer.between_steps()
        if lanes.step != step + 1 or left:
            return


__all__ = ["steps"]
