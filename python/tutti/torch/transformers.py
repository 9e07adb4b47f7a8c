"""Lanes for the Trainer of Transformers, on CPUs:

    arguments = LanesArguments("out", lanes=8, per_device_train_batch_size=4, use_cpu=True)
    LanesTrainer(model, arguments, train_dataset=examples).train()

The weights have the same bits on any number of ranks, which `tutti run` or another launcher has started. Each rank is for
Transformers a process of its own, which evaluates all examples; rank 0 logs and saves.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..errors import InvalidArgument
from ._frameworks import Training
from ._lanes import Lanes
from ._tensors import Tensor
from ._world import world
from .optimizer import DistributedOptimizer

# By these Accelerate would find the launcher's ranks, and average gradients as DistributedDataParallel does.
_OF_LAUNCHERS = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


@contextlib.contextmanager
def _without_launcher() -> Iterator[None]:
    hidden = {name: os.environ.pop(name) for name in _OF_LAUNCHERS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


@dataclass
class LanesArguments(TrainingArguments):
    """TrainingArguments with lanes. `per_device_train_batch_size` is the number of examples of a lane, and `data_seed` or
    `seed` that of steps()."""

    lanes: int = field(default=0, metadata={"help": "The number of lanes, which each step is divided into."})
    lanes_folder: str | None = field(default=None, metadata={"help": "The folder of Tutti's checkpoints."})
    lanes_save_every: int = field(default=0, metadata={"help": "After how many steps such a checkpoint is saved."})
    lanes_keep: int = field(default=5, metadata={"help": "How many of them are kept."})

    def __post_init__(self) -> None:
        world()  # finds the launcher
        with _without_launcher():
            super().__post_init__()
        if self.lanes < 1:
            raise InvalidArgument(
                f"lanes={self.lanes}: give LanesArguments the number of lanes that each step is divided into, such as lanes=8"
            )
        if self.lanes_save_every and self.lanes_folder is None:
            raise InvalidArgument(f"lanes_save_every={self.lanes_save_every} saves nothing without lanes_folder=")
        if self.device.type != "cpu":
            raise InvalidArgument(f"lanes are computed on CPUs, not on {self.device}: use_cpu=True")
        if self.gradient_accumulation_steps != 1:
            raise InvalidArgument(
                "gradient_accumulation_steps= is for lanes to do: use more lanes, with the same result"
            )
        if self.fp16:
            raise InvalidArgument("fp16=True scales the loss, which lanes do not: use bf16=True")
        if self.train_sampling_strategy not in ("random", "sequential"):
            raise InvalidArgument(
                f"train_sampling_strategy='{self.train_sampling_strategy}': lanes draw the examples, 'random' or 'sequential'"
            )
        if self.auto_find_batch_size:
            raise InvalidArgument("auto_find_batch_size= would give each rank another batch: set the size")
        if self.load_best_model_at_end:
            raise InvalidArgument(
                "load_best_model_at_end= would read what rank 0 may still be writing: load state.best_model_checkpoint after "
                "train()"
            )

    @property
    def process_index(self) -> int:
        return world().rank

    @property
    def local_process_index(self) -> int:
        return world().local_rank

    @property
    def world_size(self) -> int:
        return world().world


class LanesTrainer(Trainer):
    """A Trainer that trains with DistributedOptimizer. For its loop a batch is a whole step, and is empty; compute_loss()
    and data collators have the batches of lanes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if not isinstance(self.args, LanesArguments):
            raise InvalidArgument("LanesTrainer needs args=tutti.torch.transformers.LanesArguments(..., lanes=...)")
        if type(self)._get_train_sampler is not Trainer._get_train_sampler:
            raise InvalidArgument("_get_train_sampler() has no effect with lanes, which draw the examples themselves")
        self._training: Training | None = None
        self._begun_with: dict[str, Any] = {}  # what a checkpoint or another rank has had
        self._steps_per_epoch = 0
        self.add_callback(_Epochs(self))

    @property
    def distributed_optimizer(self) -> DistributedOptimizer:
        """The optimiser of the training, once there is one."""
        assert self._training is not None
        return self._training.optimizer

    # The beginning. train() first asks for the data.

    def get_train_dataloader(self) -> DataLoader[Any]:
        args = self.args
        plain = super().get_train_dataloader()
        self._training, self._begun_with = None, {}
        self._training = Training(
            self.create_optimizer(),
            self,
            lanes=args.lanes,
            model=self.model,
            folder=args.lanes_folder,
            save_every=args.lanes_save_every,
            keep=args.lanes_keep,
        )
        self._steps_per_epoch = self._training.begin(
            plain.dataset,
            batch=args.per_device_train_batch_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
            shuffle=args.train_sampling_strategy == "random",
            drop_remainder=args.dataloader_drop_last,
            collate=plain.collate_fn,
            workers=args.dataloader_num_workers,
        )
        rest = _RestOfEpoch(self.distributed_optimizer.lanes, self._steps_per_epoch)
        return DataLoader(_Nothing(len(plain.dataset)), sampler=rest, collate_fn=_first)

    def get_total_train_batch_size(self, args: Any) -> int:
        return int(args.per_device_train_batch_size * args.lanes)

    def create_scheduler(self, *arguments: Any, **named: Any) -> Any:
        groups = self.create_optimizer().param_groups
        before = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        schedule = super().create_scheduler(*arguments, **named)
        if self._begun_with:
            schedule.load_state_dict(self._begun_with["schedule"])
            for group, values in zip(groups, before):
                group.update(values)  # a new schedule begins with its first rate
        return schedule

    def _init_training_state(self, *arguments: Any, **named: Any) -> tuple[int, int]:
        begin: tuple[int, int] = super()._init_training_state(*arguments, **named)
        if not self._begun_with:
            return begin
        if self.state.global_step != 0:
            raise InvalidArgument(
                f"the training goes on at step {self.distributed_optimizer.lanes.step}, and resume_from_checkpoint= is of step "
                f"{self.state.global_step}: leave it out where Tutti's folder has a checkpoint or a rank comes back"
            )
        for name, value in json.loads(self._begun_with["state"]).items():
            setattr(self.state, name, value)
        for callback, values in zip(self._stateful_callbacks(), json.loads(self._begun_with["callbacks"])):
            vars(callback).update(values)
        return self.state.global_step // self._steps_per_epoch, 0

    def train(self, *arguments: Any, **named: Any) -> Any:
        result = super().train(*arguments, **named)
        assert self._training is not None
        self._training.end()
        return result

    # A step, which the loop clips, applies and counts.

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        assert self._training is not None
        lanes = self.distributed_optimizer.lanes
        if not self._training.has_begun and lanes.step == 0:
            lanes.step = self.state.global_step  # of a checkpoint of Transformers
        if self.state.global_step != lanes.step:
            raise InvalidArgument(
                f"Transformers is at step {self.state.global_step}, and the lanes are at step {lanes.step}: this version "
                "cannot go on from Tutti's checkpoint or join other ranks"
            )
        step = super().training_step
        return self._training.make_step(lambda _, batch: step(model, batch), self.distributed_optimizer.sum_gradients)

    def floating_point_ops(self, inputs: Any) -> int:
        return 0 if not inputs else int(super().floating_point_ops(inputs))

    # For Tutti's checkpoints and for ranks that join.

    def _stateful_callbacks(self) -> list[Any]:
        return [each for each in self.callback_handler.callbacks if isinstance(each, ExportableState)]

    def state_dict(self) -> dict[str, Any]:
        if self._training is None or not self._training.has_begun:
            return self._begun_with
        kept = ("epoch", "global_step", "log_history", "best_metric", "best_global_step", "best_model_checkpoint")
        state = asdict(self.state)
        return {
            "state": json.dumps({name: state[name] for name in kept}),
            "callbacks": json.dumps([each.state()["attributes"] for each in self._stateful_callbacks()]),
            "schedule": self.lr_scheduler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begun_with = state


class _Epochs(TrainerCallback):
    """Counts epochs by steps, since a training may go on inside of one."""

    def __init__(self, trainer: LanesTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.epoch = state.global_step / self._trainer._steps_per_epoch


class _Nothing(Dataset[Any]):
    """As many empty examples as a dataset has."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, _: int) -> dict[str, Any]:
        return {}


class _RestOfEpoch(Sampler[int]):
    """The steps of an epoch that are to come."""

    def __init__(self, lanes: Lanes, per_epoch: int) -> None:
        self._lanes, self._per_epoch = lanes, per_epoch

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._lanes.step % self._per_epoch, self._per_epoch))


def _first(examples: list[Any]) -> Any:
    return examples[0]


__all__ = ["LanesArguments", "LanesTrainer"]
