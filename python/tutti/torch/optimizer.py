"""An optimiser that trains with the same bits on any number of ranks, and goes on when ranks are lost or come."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import signal
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..communicator import Communicator, Op, Type
from ..errors import Error, InvalidArgument, PeerLost, Timeout
from ..lanes import LaneSum, lane_seed
from . import checkpoint
from ._lanes import Lane, Lanes, LaneScope
from ._random import seeded
from ._signals import StopSignals
from ._state import TrainingState
from ._tensors import Tensor
from ._vectors import Buffers, Gradients
from ._world import broadcast
from ._world import world as world_of_job

_LOSS, _EXAMPLES, _LANES, _WITHOUT_LOSS, _NUMBERS = range(5)


class DistributedOptimizer:
    """Trains with the mean gradient of all lanes of all ranks.

        opt = DistributedOptimizer(torch.optim.AdamW(model.parameters(), 3e-4), lanes=8, model=model)
        for step, lanes in steps(dataset, lanes=opt.lanes, batch=32, epochs=3):
            for lane, batch in lanes:
                with opt.lane(lane):
                    loss(model(batch["x"]), batch["y"]).backward()
            opt.step()

    The weights have the same bits on any number of ranks, also if ranks were lost under `tutti run --min`, and after a
    resume. All ranks begin with the weights of rank 0. `lanes=0` means one for each rank; the number of ranks then
    decides the bits. The attribute `lanes` has the `Lanes`, for `steps`.

    With `model`, buffers such as those of batch norm become the mean over the lanes, and checkpoints can be written
    into `folder`, after every `save_every` steps; the newest `keep` stay, and all if it is 0. If the folder has a
    checkpoint, the training goes on from it. `state` has further objects with state_dict() and load_state_dict(), such
    as a schedule of the learning rate, which are saved, and given to ranks that join later.

    `clip_norm` is the greatest norm of the mean gradient. With `nan_guard`, a gradient that is not finite is an error
    on all ranks. `comm` is that of world() unless it is given.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        lanes: int = 0,
        model: torch.nn.Module | None = None,
        clip_norm: float = 0,
        nan_guard: bool = True,
        folder: str | os.PathLike[str] | None = None,
        save_every: int = 0,
        keep: int = 5,
        state: Mapping[str, Any] | None = None,
        comm: Communicator | None = None,
    ) -> None:
        if lanes < 0:
            raise InvalidArgument(f"{lanes} lanes; expected 1 or more, or 0 for one on each rank")
        if save_every < 0 or keep < 0:
            raise InvalidArgument(f"save_every={save_every} and keep={keep}; expected 0 or more")
        if save_every and folder is None:
            raise InvalidArgument(f"save_every={save_every} saves nothing without a folder: folder=...")
        if folder is not None and model is None:
            raise InvalidArgument("checkpoints need the names of the weights: DistributedOptimizer(..., model=model)")
        self._comm = world_of_job() if comm is None else comm
        self.optimizer = optimizer
        self.model = model
        self._state = TrainingState(optimizer, model, dict(state or {}))
        step = inspect.signature(optimizer.step).parameters.get("closure")
        if step is not None and step.default is inspect.Parameter.empty:
            raise InvalidArgument(f"{type(optimizer).__name__} needs a closure, which lanes have not")
        self.folder, self._save_every, self._keep = folder, save_every, keep
        self._clip_norm, self._nan_guard = clip_norm, nan_guard
        self._names = _names_of(_trained_by(optimizer), optimizer, model)
        self._count_is_given = lanes > 0
        self._make_lanes(lanes or self._comm.world)
        self._next: int | None = None  # the next lane; None between two steps
        self._is_in_lane = False
        self.last_loss: float | None = None
        """The mean loss of all examples of the last step, if LaneScope.backward() was used for all."""
        self.ends_at: int | None = None
        """The number of steps of the training, if `steps` counts them."""
        self.stop_signals = StopSignals()
        self._saves = self._changes = self._some_stop = False  # between this step and the next
        try:
            self._come_together(new=True)
        except (PeerLost, Timeout) as error:
            self._recover(error, new=True)

    def _make_lanes(self, count: int) -> None:
        self.lanes = Lanes(self, self._comm, count)
        self._gradients = Gradients(_trained_by(self.optimizer), self._comm, count)
        self._buffers = Buffers(self.model, self._comm, count)
        self._numbers = n = torch.zeros(_NUMBERS, dtype=torch.float64)
        self._numbers_sum = LaneSum(self._comm, count, n.data_ptr(), n.numel(), Type.FLOAT64)

    @property
    def rank(self) -> int:
        """The rank of this process. It changes when ranks are lost or join."""
        return self._comm.rank

    @property
    def world(self) -> int:
        """The number of ranks, which changes as well."""
        return self._comm.world

    @property
    def sampling(self) -> dict[str, Any] | None:
        """How `steps` draws examples, which has to be the same after a resume."""
        return self._state.sampling

    @sampling.setter
    def sampling(self, sampling: dict[str, Any]) -> None:
        self._state.sampling = sampling

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the optimiser that was given."""
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: each lane begins without gradients."""

    # The lanes of a step.

    @contextlib.contextmanager
    def lane(self, lane: Lane) -> Iterator[LaneScope]:
        """Computes a lane: the gradients of its one or more backward passes are those of the mean loss of its examples.

        Random numbers, as in dropout, depend on the seed, the step and the lane. The lanes of a rank are computed in
        their order.
        """
        if self._is_in_lane:
            raise InvalidArgument(f"lane {lane.number} was begun inside of another one")
        self._enter(lane)
        if lane.examples < 1:
            raise InvalidArgument(f"lane {lane.number} has {lane.examples} examples: one without any is skipped")
        self._gradients.begin_lane()
        self._buffers.restore()
        weight = 1.0 if self.lanes.count == 1 else float(lane.examples)
        scope = LaneScope(weight)
        self._is_in_lane = True
        try:
            with seeded(lane_seed(lane.seed, lane.step, lane.number)):
                yield scope
        finally:
            self._is_in_lane = False
        if self._gradients.parameters and not self._gradients.were_computed():
            raise InvalidArgument(
                f"lane {lane.number} had no backward pass: call backward() inside of `with opt.lane(lane)`"
            )
        self._gradients.collect(1 if scope.was_weighted else weight)
        if self._nan_guard:
            self._require_finite(lane)
        self._buffers.collect()
        n = self._numbers
        n[_LOSS] = scope.loss.double() * lane.examples if scope.loss is not None else 0
        n[_EXAMPLES], n[_LANES], n[_WITHOUT_LOSS] = lane.examples, 1, scope.loss is None
        self._add(has_data=True)

    def skip(self, lane: Lane) -> None:
        """Leaves out a lane without data, as in the last step of an epoch. `steps` calls it."""
        self._enter(lane)
        self._add(has_data=False)

    def _sums(self) -> list[LaneSum]:
        of_buffers = [self._buffers.sum] if self._buffers.sum else []
        return [self._numbers_sum, *self._gradients.sums, *of_buffers]

    def _enter(self, lane: Lane) -> None:
        if self._next is None:
            self._begin_step()
        if lane.number != self._next or self._next >= self.lanes.here.stop:
            here = self.lanes.here
            raise InvalidArgument(
                f"lane {lane.number} was computed where lane {self._next} is next: rank {self._comm.rank} has the lanes "
                f"{here.start} to {here.stop - 1}, one after the other"
            )

    def _begin_step(self) -> None:
        trained = _trained_by(self.optimizer)
        if [id(p) for p in trained] != [id(p) for p in self._gradients.parameters]:
            raise InvalidArgument(
                f"the optimiser trains {len(trained)} parameters, other ones than the {len(self._names)} of before: freeze and "
                "add them before the DistributedOptimizer is made, or make another one"
            )
        self._buffers.save()
        self._gradients.note()
        self._next = self.lanes.here.start

    def _add(self, *, has_data: bool) -> None:
        for each in self._sums():
            each.add(has_data=has_data)
        assert self._next is not None
        self._next += 1

    def _require_finite(self, lane: Lane) -> None:
        index = self._gradients.not_finite()
        if index is None:
            return
        why = (
            f"the gradient of {self._names[index]} is not finite on rank {self._comm.rank} at step {lane.step}, lane "
            f"{lane.number}. Try a lower learning rate, or check the data; nan_guard=False continues anyway"
        )
        self._comm.abort(why)
        raise InvalidArgument(why)

    def _require_finite_sum(self) -> None:
        """In half precision a sum may be too large, though its lanes are not."""
        half = any(vector.dtype in (torch.float16, torch.bfloat16) for vector in self._gradients.vectors)
        index = self._gradients.not_finite() if self._nan_guard and half else None
        if index is not None:
            raise InvalidArgument(
                f"the gradient of {self._names[index]} is not finite at step {self.lanes.step}, though that of each lane is: "
                "their sum is too large for its type. Scale the loss down, or keep these parameters in float32"
            )

    # The end of a step.

    def step(self) -> int:
        """Makes the update. Returns the number of examples of all ranks; 0 if there were none, or if a rank was lost,
        so that `steps` gives the same step once more."""
        examples = self.sum_gradients()
        if examples:
            if self._clip_norm > 0:
                torch.nn.utils.clip_grad_norm_(self._gradients.parameters, self._clip_norm)
            self.optimizer.step()
        return examples

    def sum_gradients(self) -> int:
        """The first half of step(), which it returns as: leaves the mean gradient of all lanes in the parameters. For a
        framework that clips it, and updates the weights, before the next step."""
        self.lanes.tries += 1
        here = self.lanes.here
        if self._next is None:  # a rank without lanes
            self._begin_step()
        assert self._next is not None
        if self._next != here.stop:
            raise InvalidArgument(
                f"step() was called after {self._next - here.start} of the {len(here)} lanes of rank {self._comm.rank}: each "
                "needs `with opt.lane(lane)`, or skip(lane) if it has no data"
            )
        if here and not self._gradients.are_untouched():
            raise InvalidArgument(
                "the gradients were changed between the lanes and step(), where they are those of this rank alone: clip them "
                "by clip_norm=, and call backward() inside of `with opt.lane(lane)`. If another net is trained through this one, switch "
                "requires_grad_(False) meanwhile"
            )
        try:
            change = self._agree_on_step()
            examples = self._sum_lanes()
        except (PeerLost, Timeout) as error:
            self._recover(error)
            return 0
        self._next = None
        if examples:
            self._gradients.show()
        self.lanes.step += 1
        self._changes = change
        self._saves = self._save_every > 0 and self.lanes.step % self._save_every == 0
        return examples

    def between_steps(self) -> None:
        """Saves a checkpoint if that is due, and lets waiting ranks join. `steps` calls it; a loop without `steps` has
        to call it after step(), and after its schedule."""
        self.save_if_due()
        if self._some_stop:
            self._stop()
        elif self._changes:
            self._changes = False
            self._recover(None)

    def _stop(self) -> None:
        """Ends this process if it has got a signal. The others go on, or end as well if the ranks never change."""
        if self.folder is not None:
            self.save()
        with contextlib.suppress(PeerLost, Timeout):
            self._comm.barrier()  # rank 0 has written the checkpoint
        if not self.stop_signals.number:
            try:
                return self._recover(None)
            except InvalidArgument:
                pass
        raise SystemExit(128 + signal.SIGTERM)

    def agree_on_end(self) -> None:
        """Waits until all ranks have ended the training. For a framework, which decides when that is."""
        with contextlib.suppress(PeerLost, Timeout):  # it has ended, for whoever is there
            self._agree_on_step(ended=True)

    def _agree_on_step(self, *, ended: bool = False) -> bool:
        rates, settings = repr([float(group.get("lr", 0)) for group in self.param_groups]), self._settings()
        own = [self.lanes.step, _digest(rates), _digest(settings), ended]
        events = [self._comm.change_is_due(), self.stop_signals.number != 0]
        word = torch.tensor([*own, *(-each for each in own), *events], dtype=torch.int64)
        self._comm.call("tutti_all_reduce", word.data_ptr(), word.data_ptr(), 10, Type.INT64, Op.MAX, what="the step")
        last, rate, setting, some_end, first, other_rate, other_setting, all_end, change, stop = word.tolist()
        self._some_stop = bool(stop)
        if last != -first:
            raise InvalidArgument(f"the ranks are at different steps: one is at step {-first}, another at step {last}")
        if setting != -other_setting:
            raise InvalidArgument(
                f"the ranks train with different settings at step {last}; those of rank {self._comm.rank} are {settings}"
            )
        if rate != -other_rate:
            raise InvalidArgument(
                f"the ranks have different learning rates at step {last}: a schedule such as ReduceLROnPlateau needs a number "
                "that is the same on all ranks, such as last_loss"
            )
        if some_end != -all_end:
            raise InvalidArgument(
                f"some ranks have ended the training at step {last}, and others go on: decide that by a number that is the "
                "same on all ranks, such as last_loss, or an evaluation of all examples on each"
            )
        return bool(change)

    def _settings(self) -> str:
        """What decides the weights, besides the learning rate, and has to be the same on all ranks."""
        names = [name for name in self.optimizer.defaults if name != "lr"]
        groups = [{name: group.get(name) for name in names} for group in self.param_groups]
        plain = [{k: v for k, v in each.items() if isinstance(v, (int, float, tuple))} for each in groups]
        return (
            f"clip_norm={self._clip_norm}, nan_guard={self._nan_guard}, save_every={self._save_every}, steps() with "
            f"{self.sampling} to step {self.ends_at}, {type(self.optimizer).__name__} with {plain}"
        )

    def _sum_lanes(self) -> int:
        self._numbers_sum.finish()
        examples, lanes = int(self._numbers[_EXAMPLES]), float(self._numbers[_LANES])
        if examples == 0:
            self._buffers.restore()
            for each in self._sums()[1:]:
                each.reset()
            return 0
        for each in self._gradients.sums:
            each.finish(0 if self.lanes.count == 1 else examples)
        self._require_finite_sum()
        if self._buffers.sum is not None:
            self._buffers.sum.finish(0 if self.lanes.count == 1 else lanes)
            self._buffers.take_over()
        self.last_loss = float(self._numbers[_LOSS]) / examples if self._numbers[_WITHOUT_LOSS] == 0 else None
        return examples

    # Other ranks.

    def _break_off(self) -> None:
        self._saves = self._changes = self._some_stop = False
        if self._next is not None:
            self._buffers.restore()
        self._next = None
        for each in self._sums():
            each.reset()

    def _recover(self, why: Error | None, *, new: bool = False) -> None:
        """Goes on with the ranks that are there now."""
        while True:
            try:
                self._comm.reconfigure()
            except InvalidArgument:
                if why is not None:
                    raise why from None  # these ranks cannot change
                raise
            try:
                self._break_off()
                return self._come_together(new=new)
            except (PeerLost, Timeout) as error:
                why = error

    def _come_together(self, *, new: bool) -> None:
        """All ranks take over the state of one that has made the most steps. New ranks have none."""
        plan = hashlib.sha256(repr([(name, p.shape, p.dtype) for name, p in self._plan()]).encode()).digest()
        lanes = self.lanes.count if self._count_is_given or not new else 0
        own = torch.tensor([-1 if new else self.lanes.step, *struct.unpack("<q", plan[:8]), lanes], dtype=torch.int64)
        words = torch.empty(self._comm.world, 3, dtype=torch.int64)
        self._comm.call("tutti_all_gather", own.data_ptr(), words.data_ptr(), 3, Type.INT64, what="the state")
        steps, plans, counts = (words[:, column].tolist() for column in range(3))
        other = next((rank for rank, theirs in enumerate(plans) if theirs != plans[0]), None)
        if other is not None:
            raise InvalidArgument(
                f"rank {other} trains other parameters than rank 0, or in another order: every rank has to make the same "
                "model and optimiser"
            )
        asked = sorted(set(counts) - {0})
        if len(asked) > 1:
            raise InvalidArgument(f"the ranks have different numbers of lanes: {', '.join(map(str, asked))}")
        count = asked[0] if asked else self._comm.world
        if count != self.lanes.count:
            self._make_lanes(count)  # as the others
        source = steps.index(max(steps))
        if max(steps) < 0 and self.folder is not None and self._comm.rank == source:
            try:
                self.lanes.step = self._state.load_newest(self.folder, self.lanes.count)
            except Error as error:
                self._comm.abort(str(error))  # so that the others know why
                raise
        if min(steps) != max(steps) or max(steps) < 0:
            self._take_over(source)

    def _take_over(self, source: int) -> None:
        is_source = self._comm.rank == source
        state = broadcast(self._comm, self._state.packed(self.lanes.step) if is_source else None, source)
        if not is_source:
            self.lanes.step = self._state.take_over(state)

    def _plan(self) -> list[tuple[str, Tensor]]:
        return list(zip(self._names, self._gradients.parameters))

    # Checkpoints.

    def save_if_due(self) -> None:
        """Saves a checkpoint if `save_every` asks for one after the last step."""
        if self._saves:
            self.save()

    def sha256(self) -> str:
        """Returns the hash of the trained weights, as in the reports of Tutti."""
        return checkpoint.sha256(dict(self._plan()))

    def save(self) -> None:
        """Writes a checkpoint into the folder, unless this step was saved already. Every rank calls it; rank 0 writes.
        `steps` calls it after the last step."""
        if self.folder is None or self.model is None:
            raise InvalidArgument("there is no folder for checkpoints: DistributedOptimizer(..., folder=...)")
        self._saves = False
        if self._state.saved_step == self.lanes.step:
            return
        self._state.saved_step = self.lanes.step
        if self._comm.rank == 0:
            self._state.save(self.folder, self.lanes.step, self.lanes.count, self._keep)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _trained_by(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for p in _parameters_of(optimizer) if p.requires_grad]


def _names_of(trained: list[Tensor], optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> list[str]:
    if model is None:
        return [f"parameter {i}" for i in range(len(trained))]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = _parameters_of(optimizer)
    unknown = next((i for i, parameter in enumerate(parameters) if id(parameter) not in names), None)
    if unknown is not None:
        raise InvalidArgument(
            f"parameter {unknown} of the optimiser, of shape {list(parameters[unknown].shape)}, is not the model's"
        )
    return [names[id(parameter)] for parameter in trained]
