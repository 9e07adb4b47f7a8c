"""Checkpoints in Tutti's format, for programs in Python and in C++.

A checkpoint is a folder `ckpt-STEP` of safetensors files with a manifest. `tutti inspect` shows what is in it, and
`tutti::load_weights` reads its weights in C++.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple, Union

import torch

from ..errors import DataLoss, InvalidArgument, Unimplemented
from ._files import (
    bytes_of,
    folders_in,
    manifest_of,
    point_latest_to,
    read_part,
    readable,
    sequence_of,
    sync,
    verify,
    write_manifest,
    write_part,
)
from ._tensors import Tensor

Path = Union[str, "os.PathLike[str]"]


class Loaded(NamedTuple):
    """The values of a checkpoint besides the weights and the state of the optimiser."""

    state: dict[str, Any]
    """The values of the manifest: `step`, `weights_sha256` (of the parameters that are trained), `optimizer` (its name and
    groups), and those that save() got as `state`; of a DistributedOptimizer these are `lanes` and `sampling`."""
    program: dict[str, Any]
    """The values that save() got as `program`."""


def packed(values: dict[str, Any]) -> Tensor:
    """Tensors, numbers and texts, as torch.save() writes them, in bytes."""
    file = io.BytesIO()
    torch.save(values, file)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)


def unpacked(data: Tensor) -> dict[str, Any]:
    """The values of packed(). Runs no code that the bytes may name."""
    values: dict[str, Any] = torch.load(io.BytesIO(bytes(bytes_of(data))), weights_only=True)
    return values


def require_storable(what: str, value: Any) -> None:
    """Raises InvalidArgument unless unpacked() can read what packed() makes of this value."""
    try:
        unpacked(packed({what: value}))
    except Exception as error:
        parts = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        )
        for key, part in parts:
            require_storable(f"{what}[{key!r}]", part)
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise InvalidArgument(
            f"{what} is a {kind}, and cannot be saved: checkpoints have tensors, numbers, texts, and lists and dictionaries "
            "of them"
        ) from error


def sha256(tensors: Mapping[str, Tensor]) -> str:
    """Returns the hash of the tensors' bytes in the order of their names: `weights_sha256` of reports and
    checkpoints."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        plain = tensors[name].detach().cpu().contiguous()
        found.update(bytes_of(plain))
    return found.hexdigest()


def save(
    folder: Path,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    state: dict[str, Any] | None = None,
    program: dict[str, Any] | None = None,
    keep: int = 5,
) -> pathlib.Path:
    """Writes the checkpoint `ckpt-STEP` into the folder, completely or not at all, and returns its path.

    `state` has values for JSON; `program` may have tensors as well. Only the newest `keep` checkpoints stay; 0 keeps
    all.
    """
    if step < 0:
        raise InvalidArgument(f"the step is {step}; expected 0 or more")
    try:
        json.dumps(state)
    except TypeError as error:
        raise InvalidArgument(
            f"state= has values for JSON; give others, such as tensors, as program= ({error})"
        ) from error
    directory = pathlib.Path(folder)
    directory.mkdir(parents=True, exist_ok=True)
    weights, tied, extra = _weights_of(model)
    slots, about, exact = _slots_of(model, optimizer) if optimizer is not None else ({}, {}, {})
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    contents: dict[str, Any] = {"optimizer": about, "weights_sha256": sha256(trained), **(state or {})}
    # What has no place in named tensors or in JSON.
    further = {"program": program or {}, "optimizer": exact, "model": extra}
    for stale in directory.glob(".ckpt-*"):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=".ckpt-", dir=directory))
    try:
        files = [
            write_part(temporary, "weights", weights, step, tied),
            write_part(temporary, "optimizer", slots, step, {}),
            write_part(temporary, "python", {"pickle": packed(further)}, step, {}),
        ]
        sequence = 1 + max((sequence_of(each) for each in folders_in(directory)), default=-1)
        write_manifest(temporary, step, sequence, files, contents)
        sync(temporary)
        os.chmod(temporary, 0o755)
        target = directory / f"ckpt-{step}"
        replaced = directory / f"ckpt-{step}.replaced"
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        temporary.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    point_latest_to(directory, target.name)
    sync(directory)
    if keep > 0:
        for old in sorted(folders_in(directory), key=sequence_of, reverse=True)[keep:]:
            shutil.rmtree(old, ignore_errors=True)
    return target


def newest(folder: Path) -> pathlib.Path | None:
    """Returns the path of the intact checkpoint that was saved last; None if there is no checkpoint. Raises DataLoss if
    all are damaged."""
    damaged = []
    for each in sorted(folders_in(pathlib.Path(folder)), key=sequence_of, reverse=True):
        try:
            for file in manifest_of(each)["files"]:
                verify(each, file)
            return each
        except DataLoss as error:
            damaged.append(str(error))
    if damaged:
        raise DataLoss(f"all checkpoints in {folder} are damaged: {'; '.join(damaged)}")
    return None


@torch.no_grad()
def load(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Loaded:
    """Loads a folder `ckpt-STEP` into the model, and into the optimiser if there is one. Raises InvalidArgument if it
    is a checkpoint of another model, and DataLoss if it is damaged."""
    directory = pathlib.Path(folder)
    manifest = manifest_of(directory)
    if "base" in manifest:
        raise Unimplemented(f"{directory} has sharded tables that another checkpoint completes, which only C++ reads")
    parts: dict[str, dict[str, Tensor]] = {}
    for file in manifest["files"]:
        tensors = read_part(directory, file)
        parts.setdefault(file["part"], {}).update(tensors)
    pickled = parts.get("python", {}).get("pickle")
    further = {} if pickled is None else unpacked(pickled)
    _load_weights(model, parts.get("weights", {}), further.get("model", {}), directory)
    state: dict[str, Any] = manifest["state"] or {}
    if optimizer is not None:
        about, exact = state.get("optimizer", {}), further.get("optimizer", {})
        _load_slots(model, optimizer, parts.get("optimizer", {}), about, exact, directory)
    return Loaded({**state, "step": manifest["step"]}, further.get("program", {}))


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """As load_state_dict(), but keeps the types of the state, which that would change to those of the parameters."""
    optimizer.load_state_dict(state)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, slots in state["state"].items():
        for slot, value in slots.items():
            if isinstance(value, torch.Tensor):
                optimizer.state[parameters[index]][slot] = value.clone()


# The weights and the optimiser by names.


def _weights_of(model: torch.nn.Module) -> tuple[dict[str, Tensor], dict[str, str], dict[str, Any]]:
    """The tensors by name, those with several names under each; the further names of the first ones; and what the model
    has besides: buffers that are not persistent, and the extra state of modules."""
    first: dict[tuple[int, int], str] = {}
    tied = {}
    everything: dict[str, Any] = model.state_dict()
    tensors = {name: value.detach() for name, value in everything.items() if isinstance(value, torch.Tensor)}
    extra = {name: value for name, value in everything.items() if name not in tensors}
    extra.update({name: b.detach() for name, b in model.named_buffers() if name not in everything})
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue
        known = first.setdefault((tensor.data_ptr(), tensor.numel()), name)
        if known != name:
            tied[name] = known
    return tensors, tied, extra


def _load_weights(
    model: torch.nn.Module, weights: dict[str, Tensor], extra: dict[str, Any], where: pathlib.Path
) -> None:
    own: dict[str, Any] = model.state_dict()
    buffers = dict(model.named_buffers())
    missing = next((name for name, v in own.items() if isinstance(v, torch.Tensor) and name not in weights), None)
    other = next((name for name in weights if name not in own and name not in buffers), None)
    if missing or other:
        what = f"no weights '{missing}'" if missing else f"weights '{other}', which the model has not"
        raise InvalidArgument(f"{where} has {what}: it is a checkpoint of another model")
    for name, values in [*weights.items(), *((n, v) for n, v in extra.items() if n in buffers)]:
        tensor = own[name] if name in own else buffers[name]
        if tensor.shape != values.shape or tensor.dtype != values.dtype:
            theirs, ours = (f"{t.dtype} {list(t.shape)}" for t in (values, tensor))
            raise InvalidArgument(f"{where}: '{name}' is {theirs}, and in the model {ours}")
        tensor.copy_(values)
    further = {name: value for name, value in extra.items() if name not in buffers}
    if further:
        model.load_state_dict({**own, **further})


def _names_by_index(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """The names of the parameters by their index in the optimiser's state."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {i: names[id(p)] for i, p in enumerate(parameters)}


def _slots_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """The tensors of the state; what the manifest says of the optimiser; and its numbers, exactly."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    names = _names_by_index(model, optimizer)
    given = optimizer.state_dict()
    for index, slots in given["state"].items():
        for slot, value in slots.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{slot}/{names[index]}"] = value
            else:
                numbers[f"{slot}/{names[index]}"] = value
    groups = [{k: v for k, v in group.items() if k != "params"} for group in given["param_groups"]]
    about = {"name": type(optimizer).__name__, "groups": readable(groups)}
    return tensors, about, {"numbers": numbers, "groups": groups}


def _load_slots(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    about: dict[str, Any],
    exact: dict[str, Any],
    where: pathlib.Path,
) -> None:
    kind = type(optimizer).__name__
    groups = optimizer.state_dict()["param_groups"]
    if exact and (about.get("name") != kind or len(exact["groups"]) != len(groups)):
        raise InvalidArgument(
            f"{where} was trained by {about.get('name')} with {len(exact['groups'])} groups of parameters, and this is {kind} "
            f"with {len(groups)}"
        )
    index_of = {name: index for index, name in _names_by_index(model, optimizer).items()}
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *exact.get("numbers", {}).items()]:
        slot, _, name = key.partition("/")
        if name not in index_of:
            raise InvalidArgument(f"{where} has the slot '{key}' of a weight that the optimiser does not train")
        state.setdefault(index_of[name], {})[slot] = value
    if not exact and "steps" in about:  # written by C++, which counts the steps of all together
        for slots in state.values():
            slots.setdefault("step", torch.tensor(float(about["steps"])))
    for own, theirs in zip(groups, exact.get("groups", [])):
        own.update(theirs)
    load_optimizer(optimizer, {"state": state, "param_groups": groups})


__all__ = ["Loaded", "load", "newest", "save", "sha256"]
