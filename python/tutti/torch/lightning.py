"""Lanes for Lightning's Trainer, on CPUs:

    trainer = lightning.Trainer(accelerator="cpu", strategy=tutti.torch.lightning.LanesStrategy(lanes=8), max_epochs=3)

The weights have the same bits on any number of ranks, which `tutti run` or another launcher has started. For Lightning
a batch is a whole step with all its lanes, and `training_step` is called for each lane of this rank. Each rank
evaluates all examples.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from typing import Any

import torch

from ..errors import InvalidArgument, PeerLost
from . import checkpoint
from ._frameworks import Training, arguments_of
from ._lanes import Lane
from ._lightning_loop import Loader, State, Step, go_to_step
from ._tensors import Tensor
from ._world import broadcast, world
from .optimizer import DistributedOptimizer

# Lightning is one package with two names. The classes of one are not those of the other.
_names = ("lightning.pytorch", "pytorch_lightning")
_installed = [name for name in _names if importlib.util.find_spec(name.split(".")[0])]
_name = next((name for name in _names if name in sys.modules), next(iter(_installed), _names[0]))
pl: Any = importlib.import_module(_name)
_is_overridden: Any = importlib.import_module(pl.__name__ + ".utilities.model_helpers").is_overridden
_rank_zero_only: Any = importlib.import_module(pl.__name__ + ".utilities.rank_zero").rank_zero_only
_FINDERS = (pl.callbacks.LearningRateFinder, pl.callbacks.BatchSizeFinder)


class LanesStrategy(pl.strategies.Strategy):
    """Trains with DistributedOptimizer, whose arguments these are; `seed` is that of steps()."""

    strategy_name = "tutti_lanes"

    def __init__(
        self,
        lanes: int,
        *,
        seed: int = 1,
        nan_guard: bool = True,
        folder: str | os.PathLike[str] | None = None,
        save_every: int = 0,
        keep: int = 5,
    ) -> None:
        super().__init__()
        if lanes < 1:
            raise InvalidArgument(f"{lanes} lanes; expected 1 or more")
        self._seed = seed
        self._options = {
            "lanes": lanes,
            "nan_guard": nan_guard,
            "folder": folder,
            "save_every": save_every,
            "keep": keep,
        }
        self._comm = world()
        self._training: Training | None = None
        self._note_rank()

    @property
    def distributed_optimizer(self) -> DistributedOptimizer:
        """The optimiser of the training, once there is one."""
        assert self._training is not None
        return self._training.optimizer

    # Ranks. They may change at each step.

    def _note_rank(self) -> None:
        _rank_zero_only.rank = self._comm.rank

    @property
    def global_rank(self) -> int:
        return self._comm.rank

    @property
    def local_rank(self) -> int:
        return self._comm.local_rank

    @property
    def world_size(self) -> int:
        return self._comm.world

    @property
    def is_global_zero(self) -> bool:
        return self._comm.rank == 0

    @property
    def root_device(self) -> torch.device:
        return torch.device("cpu")

    def model_to_device(self) -> None:
        self.model.to(self.root_device)

    # Lightning's own exchange. A rank that joins a training finds the others inside of a step: none of them takes part in
    # anything but steps, so that ranks exchange nothing else from the first step on.

    @property
    def _is_setting_up(self) -> bool:
        return self._training is None and self._comm.epoch == 0

    def barrier(self, name: str | None = None) -> None:
        if self._is_setting_up:
            with contextlib.suppress(PeerLost):  # the first step finds that out, and may go on without
                self._comm.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if not self._is_setting_up:
            return obj
        packed = checkpoint.packed({"value": obj}) if self._comm.rank == src else None
        return checkpoint.unpacked(broadcast(self._comm, packed, src))["value"]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Nothing to do: all ranks evaluate all examples."""
        return tensor

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        raise InvalidArgument(
            "all_gather() has no meaning with lanes: each rank evaluates all examples, and the lanes of a step are "
            "summed by their gradients alone"
        )

    # The beginning and the end.

    def setup_environment(self) -> None:
        if not isinstance(self.accelerator, pl.accelerators.CPUAccelerator):
            raise InvalidArgument("lanes are computed on CPUs: Trainer(accelerator='cpu', ...)")
        super().setup_environment()

    def setup_optimizers(self, trainer: Any) -> None:
        super().setup_optimizers(trainer)
        self._require_supported(trainer)
        module, optimizer = self.lightning_module, self.optimizers[0]
        # Lightning's hooks before the step, and its clipping, see the gradients of all lanes of all ranks.
        optimizer.register_step_pre_hook(lambda *_: self.precision_plugin._after_closure(module, optimizer))
        self._training = Training(optimizer, State(self, trainer), model=module, comm=self._comm, **self._options)
        self._note_rank()

    def _require_supported(self, trainer: Any) -> None:
        module = self.lightning_module
        flags = trainer._accelerator_connector
        for name in ("devices", "num_nodes"):
            asked = getattr(flags, f"_{name}_flag", "auto")
            if asked not in ("auto", 1, "1", -1, "-1") and asked != [0]:
                raise InvalidArgument(
                    f"Trainer({name}={asked!r}) starts no ranks with lanes: leave it out, and start them by a launcher, such as "
                    "tutti run -n 2 -- python"
                )
        if not module.automatic_optimization or len(self.optimizers) != 1:
            raise InvalidArgument(
                "lanes need Lightning's automatic optimization with one optimizer. For other trainings use "
                "DistributedOptimizer and steps() in a loop of your own"
            )
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise InvalidArgument(
                f"precision '{self.precision_plugin.precision}' scales the loss, which lanes do not: use 'bf16-mixed'"
            )
        # Of this option 1 is one batch, and 1.0 all of them.
        takes_all = trainer.limit_train_batches == 1 and isinstance(trainer.limit_train_batches, float)
        if trainer.overfit_batches or not (takes_all or trainer.fast_dev_run):
            raise InvalidArgument(
                "limit_train_batches= and overfit_batches= would leave steps of an epoch out: give the DataLoader a "
                "torch.utils.data.Subset, or use max_steps="
            )
        if trainer.reload_dataloaders_every_n_epochs:
            raise InvalidArgument("reload_dataloaders_every_n_epochs=: the examples of a training stay the same")
        if "dataloader_iter" in inspect.signature(module.training_step).parameters:
            raise InvalidArgument(
                "training_step(dataloader_iter) draws the batches itself: take a batch, that of a lane"
            )
        if any(isinstance(each, _FINDERS) for each in trainer.callbacks):
            raise InvalidArgument(
                "LearningRateFinder and BatchSizeFinder train before the training: run them in a Trainer without lanes"
            )
        if any(isinstance(each, pl.callbacks.Timer) for each in trainer.callbacks):
            raise InvalidArgument("max_time= and Timer would stop each rank at another step: use max_steps=")
        for each in (module, *trainer.callbacks):
            if _is_overridden("on_save_checkpoint", each) and (each is not module or self._options["folder"]):
                raise InvalidArgument(
                    f"{type(each).__name__} keeps something in on_save_checkpoint(), which Tutti's checkpoints and ranks that "
                    "join do not have: keep it in a buffer of the module, or in the state_dict() of a callback"
                )
        if any(isinstance(each, pl.callbacks.StochasticWeightAveraging) for each in trainer.callbacks):
            raise InvalidArgument(
                "StochasticWeightAveraging does not go on inside of an epoch, and adds one without lanes"
            )
        if any(each and _is_overridden("on_before_batch_transfer", each) for each in (module, trainer.datamodule)):
            raise InvalidArgument(
                "on_before_batch_transfer is called once for all lanes: use on_after_batch_transfer, which is called for each"
            )

    def process_dataloader(self, dataloader: object) -> object:
        """The training's DataLoader becomes one of steps; `batch_size` is the number of examples of a lane."""
        trainer = self.lightning_module.trainer
        if self._training is None or not trainer.training:
            return dataloader
        lanes = self.distributed_optimizer.lanes
        per_epoch = self._training.begin(seed=self._seed, **arguments_of(dataloader))
        if lanes.step == 0:
            lanes.step = trainer.global_step  # of Lightning's own checkpoint
        elif trainer.global_step == 0:
            go_to_step(trainer.fit_loop, lanes.step, per_epoch)
        elif trainer.global_step != lanes.step:
            raise InvalidArgument(
                f"the training goes on at step {lanes.step}, and the checkpoint of fit(ckpt_path=...) is of step "
                f"{trainer.global_step}: leave ckpt_path out where Tutti's folder has a checkpoint or a rank comes back"
            )
        return Loader(lanes, per_epoch)

    def on_train_end(self) -> None:
        assert self._training is not None
        self._training.end()
        super().on_train_end()

    # A step. Lightning calls optimizer_step() with a closure, which calls training_step() and backward().

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        return batch if isinstance(batch, Step) else super().batch_to_device(batch, device, dataloader_idx)

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **_: Any) -> Any:
        return closure()

    def training_step(self, step: int, *arguments: Any) -> Any:
        """Makes a step with all lanes of this rank."""
        assert self._training is not None
        if self.lightning_module.trainer.accumulate_grad_batches != 1:
            raise InvalidArgument("accumulate_grad_batches= is for lanes to do: use more lanes, with the same result")
        if not isinstance(step, Step):
            raise InvalidArgument(
                "the DataLoader was asked for before the optimizer was made, as by trainer.estimated_stepping_batches in "
                "configure_optimizers(): an epoch has ceil(examples / (lanes * batch_size)) steps"
            )
        made = self.distributed_optimizer.lanes.step
        if step != made:
            raise InvalidArgument(f"Lightning is at step {step}, and the lanes are at step {made}: a step was left out")
        trainer = self.lightning_module.trainer
        trainer.fit_loop._restarting = False  # else the epoch in which a training goes on has no ReduceLROnPlateau
        loss = self._training.make_step(
            lambda lane, batch: self._compute(lane, batch, *arguments), self.distributed_optimizer.step
        )
        trainer._results.batch, trainer._results.batch_size = None, 1  # what is logged after it has equal steps
        self._note_rank()
        return {"loss": loss}

    def _compute(self, lane: Lane, batch: Any, *arguments: Any) -> Tensor:
        logged = self.lightning_module.trainer._results
        logged.batch, logged.batch_size = batch, None  # by which self.log() weights
        batch = self.batch_to_device(self.precision_plugin.convert_input(batch))
        output = super().training_step(batch, *arguments)
        loss = output.get("loss") if isinstance(output, dict) else output
        if not isinstance(loss, torch.Tensor):
            raise InvalidArgument(
                f"training_step returned a {type(output).__name__} for lane {lane.number}; expected the mean loss"
            )
        super().backward(loss, self.optimizers[0])
        return loss.detach()

    def backward(self, closure_loss: Tensor, *_: Any, **__: Any) -> Tensor:
        """Does nothing: each lane had its backward pass."""
        return closure_loss


__all__ = ["LanesStrategy"]
