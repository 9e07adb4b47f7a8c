"""Checkpoints as Tutti has them: folders `ckpt-STEP` of safetensors files with a manifest, which `tutti inspect` and
`tutti::load_weights` read, and whose weights and optimiser state come from either side."""

from __future__ import annotations

import hashlib
import io
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
    sequence_of,
    sync,
    verify,
    write_manifest,
    write_part,
)
from ._tensors import Tensor

Path = Union[str, "os.PathLike[str]"]


class Loaded(NamedTuple):
    """What a checkpoint has besides the weights and the state of the optimiser."""

    state: dict[str, Any]
    """Of the manifest, with the `step`."""
    program: dict[str, Any]


def packed(values: dict[str, Any]) -> Tensor:
    """Tensors, numbers and texts, as torch.save() writes them, in bytes."""
    file = io.BytesIO()
    torch.save(values, file)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)


def unpacked(data: Tensor) -> dict[str, Any]:
    """The values of packed(). Runs no code that the bytes may name."""
    values: dict[str, Any] = torch.load(io.BytesIO(bytes(bytes_of(data))), weights_only=True)
    return values


def sha256(tensors: Mapping[str, Tensor]) -> str:
    """The hash of the tensors' bytes in the order of their names: `weights_sha256` of reports and checkpoints."""
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
    """Writes a checkpoint, all or nothing, and returns its folder. `state` is JSON; `program` may have tensors as well.
    Only the newest `keep` stay; 0 keeps all."""
    directory = pathlib.Path(folder)
    directory.mkdir(parents=True, exist_ok=True)
    weights, tied = _weights_of(model)
    slots, of_optimizer = _slots_of(model, optimizer) if optimizer is not None else ({}, {})
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    contents: dict[str, Any] = {"optimizer": of_optimizer, "weights_sha256": sha256(trained), **(state or {})}
    for stale in directory.glob(".ckpt-*"):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=".ckpt-", dir=directory))
    try:
        files = [
            write_part(temporary, "weights", weights, step, tied),
            write_part(temporary, "optimizer", slots, step, {}),
        ]
        if program:
            files.append(write_part(temporary, "program", {"pickle": packed(program)}, step, {}))
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
    """The folder of the checkpoint that was saved last, among those that are intact; None if there is none."""
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
    """Loads a folder `ckpt-STEP`, written by Python or by C++."""
    directory = pathlib.Path(folder)
    manifest = manifest_of(directory)
    if "base" in manifest:
        raise Unimplemented(f"{directory} has sharded tables that another checkpoint completes, which only C++ reads")
    parts: dict[str, dict[str, Tensor]] = {}
    for file in manifest["files"]:
        tensors = read_part(directory, file)
        parts.setdefault(file["part"], {}).update(tensors)
    weights, own = parts.get("weights", {}), model.state_dict()
    missing = [name for name in own if name not in weights]
    if missing:
        raise InvalidArgument(f"{directory} has no weights '{missing[0]}': it is a checkpoint of another model")
    for name, tensor in own.items():
        if weights[name].shape != tensor.shape:
            raise InvalidArgument(f"{directory}: '{name}' is {list(weights[name].shape)}, here {list(tensor.shape)}")
        tensor.copy_(weights[name])
    state: dict[str, Any] = manifest["state"] or {}
    if optimizer is not None:
        _load_slots(model, optimizer, parts.get("optimizer", {}), state.get("optimizer", {}), directory)
    pickled = parts.get("program", {}).get("pickle")
    return Loaded({**state, "step": manifest["step"]}, {} if pickled is None else unpacked(pickled))


# The weights and the optimiser by names.


def _weights_of(model: torch.nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors by name, those with several names under each; and the further names of the first ones."""
    first: dict[tuple[int, int], str] = {}
    tied = {}
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue
        known = first.setdefault((tensor.data_ptr(), tensor.numel()), name)
        if known != name:
            tied[name] = known
    return tensors, tied


def _names_by_index(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """The names of the parameters by their index in the optimiser's state."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {i: names[id(p)] for i, p in enumerate(parameters)}


def _slots_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
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
    return tensors, {"name": type(optimizer).__name__, "numbers": numbers, "groups": groups}


def _load_slots(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    saved: dict[str, Any],
    where: pathlib.Path,
) -> None:
    names = _names_by_index(model, optimizer)
    index_of = {name: index for index, name in names.items()}
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *saved.get("numbers", {}).items()]:
        slot, _, name = key.partition("/")
        if name not in index_of:
            raise InvalidArgument(f"{where} has the slot '{key}' of a weight that the optimiser does not train")
        state.setdefault(index_of[name], {})[slot] = value
    if "groups" not in saved and "steps" in saved:  # written by C++, which counts the steps of all together
        for slots in state.values():
            slots.setdefault("step", torch.tensor(float(saved["steps"])))
    groups = optimizer.state_dict()["param_groups"]
    for own, theirs in zip(groups, saved.get("groups", [])):
        own.update({k: tuple(v) if isinstance(v, list) else v for k, v in theirs.items()})
    optimizer.load_state_dict({"state": state, "param_groups": groups})
