"""What all ranks of a training have alike: what checkpoints keep, and ranks that come are given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import InvalidArgument
from . import checkpoint
from ._tensors import Tensor


class TrainingState:
    """The weights, the buffers, the state of the optimiser, and further objects with state_dict()."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None, program: Mapping[str, Any]
    ) -> None:
        for name, each in program.items():
            if not hasattr(each, "state_dict"):
                raise InvalidArgument(f"state['{name}'] is {each!r}, which has no state_dict() and load_state_dict()")
        self._optimizer, self._model, self._program = optimizer, model, program
        self._of_program()
        self.saved_step = -1
        """The step of the newest checkpoint."""
        self.sampling: dict[str, Any] | None = None
        """How `steps` draws examples, which has to be the same after a resume."""

    def packed(self, step: int) -> Tensor:
        """All of it in bytes, for another rank."""
        return checkpoint.packed(
            {
                "step": step,
                "tensors": [tensor.detach() for tensor in self._tensors()],
                "optimizer": self._optimizer.state_dict(),
                "program": self._of_program(),
                "sampling": self.sampling,
                "saved_step": self.saved_step,
            }
        )

    @torch.no_grad()
    def take_over(self, packed: Tensor) -> int:
        """Takes over the state of another rank. Returns its step."""
        state = checkpoint.unpacked(packed)
        for tensor, values in zip(self._tensors(), state["tensors"]):
            tensor.copy_(values)
        checkpoint.load_optimizer(self._optimizer, state["optimizer"])
        self.sampling, self.saved_step = state["sampling"], state["saved_step"]
        self._restore_program(state["program"], "the other rank")
        step: int = state["step"]
        return step

    def save(self, folder: str | os.PathLike[str], step: int, lanes: int, keep: int) -> None:
        assert self._model is not None
        checkpoint.save(
            folder,
            step,
            self._model,
            self._optimizer,
            state={"lanes": lanes, "sampling": self.sampling},
            program=self._of_program(),
            keep=keep,
        )

    def load_newest(self, folder: str | os.PathLike[str], lanes: int) -> int:
        """Returns the step of the newest checkpoint; 0 if there is none."""
        assert self._model is not None
        found = checkpoint.newest(folder)
        if found is None:
            return 0
        state, program = checkpoint.load(found, self._model, self._optimizer)
        if state.get("lanes", lanes) != lanes:
            raise InvalidArgument(
                f"{found} was trained with {state['lanes']} lanes, and this job has {lanes}: the bits would be others"
            )
        self.sampling = state.get("sampling")
        self._restore_program(program, str(found))
        self.saved_step = step = int(state["step"])
        return step

    def _tensors(self) -> list[Tensor]:
        if self._model is None:
            return [p for group in self._optimizer.param_groups for p in group["params"]]
        return [*self._model.parameters(), *self._model.buffers()]

    def _of_program(self) -> dict[str, Any]:
        state = {name: each.state_dict() for name, each in self._program.items()}
        for name, values in state.items():
            checkpoint.require_storable(f"state['{name}']", values)
        return state

    def _restore_program(self, saved: dict[str, Any], where: str) -> None:
        for name, each in self._program.items():
            if name not in saved:
                raise InvalidArgument(f"{where} has no state '{name}'")
            each.load_state_dict(saved[name])
