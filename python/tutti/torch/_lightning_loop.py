"""What Lightning's loop iterates, counts and keeps, in a training with lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._lanes import Lanes


class Step(int):
    """The number of a step, which is a batch for Lightning."""


class Loader:
    """The steps of an epoch that are to come."""

    def __init__(self, lanes: Lanes, per_epoch: int) -> None:
        self._lanes, self._per_epoch = lanes, per_epoch

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[Step]:
        step = self._lanes.step
        return map(Step, range(step, step - step % self._per_epoch + self._per_epoch))

    def state_dict(self) -> dict[str, Any]:
        """Empty: the step is that of the optimiser. Lightning asks for it where it goes on inside of an epoch."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class State:
    """The schedules and callbacks, for Tutti's checkpoints and for ranks that join."""

    def __init__(self, strategy: Any, trainer: Any) -> None:
        self._strategy, self._trainer = strategy, trainer

    def state_dict(self) -> dict[str, Any]:
        return {
            "schedules": [each.scheduler.state_dict() for each in self._strategy.lr_scheduler_configs],
            "callbacks": {each.state_key: each.state_dict() for each in self._trainer.callbacks},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for each, saved in zip(self._strategy.lr_scheduler_configs, state["schedules"]):
            each.scheduler.load_state_dict(saved)
        for callback in self._trainer.callbacks:
            callback.load_state_dict(state["callbacks"].get(callback.state_key, {}))


def go_to_step(loop: Any, step: int, per_epoch: int) -> None:
    """Sets Lightning's counters as its own checkpoints do."""
    epoch, batch = divmod(step, per_epoch)
    state = loop.state_dict()
    optimizer = state["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    for progress in (state["epoch_loop.batch_progress"], optimizer["step"], optimizer["zero_grad"]):
        for part, count in (("total", step), ("current", batch)):
            progress[part] = dict.fromkeys(progress[part], count)
    begun = {"ready": epoch + 1, "started": epoch + 1} if batch else {}
    for part in ("total", "current"):
        progress = state["epoch_progress"]
        progress[part] = {**dict.fromkeys(progress[part], epoch), **begun}
    state["epoch_loop.state_dict"]["_batches_that_stepped"] = step
    loop.load_state_dict(state)
    if batch == 0:
        loop.epoch_loop.restarting = False


__all__ = ["Loader", "State", "Step", "go_to_step"]
