"""Parameters, optimisers and objects that all ranks get from one."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...errors import InvalidArgument
from .gradients import allgather
from .operations import broadcast_, broadcast_async_, synchronize
from .ranks import ProcessSet, global_process_set, rank

Tensor = torch.Tensor


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Replaces the tensors of all ranks by those of the root. `params` is a `state_dict()`, `named_parameters()`, or a
    list of tensors."""
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, Tensor):
        named = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise InvalidArgument(f"parameters are a dict or a list of tensors; got {type(params).__name__}")
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise InvalidArgument(f"the parameter {name} is no tensor, but {type(tensor).__name__}")
    for handle in [broadcast_async_(tensor, root_rank, name) for name, tensor in named]:
        synchronize(handle)


class _Place:
    """Stands for a tensor in what the root tells about its state."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype

    def tensor_for(self, existing: Any) -> Tensor:
        if isinstance(existing, Tensor) and (tuple(existing.shape), existing.dtype) == (self.shape, self.dtype):
            return existing
        return torch.empty(self.shape, dtype=self.dtype)


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Replaces the state and the options of an optimiser by those of the root's. Unlike Horovod it makes no step for
    this: a state that the root does not have yet is dropped. `model` is not needed."""
    groups = optimizer.param_groups
    parameters = [each for group in groups for each in group["params"]]
    told: tuple[list[dict[str, Any]], list[dict[str, Any]]] | None = None
    if rank() == root_rank:
        options = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        states = [
            {key: _Place(value) if _is_dense(value) else value for key, value in optimizer.state.get(each, {}).items()}
            for each in parameters
        ]
        told = (options, states)
    options, states = broadcast_object(told, root_rank, name="the state of an optimiser")
    if len(options) != len(groups) or len(states) != len(parameters):
        raise InvalidArgument(
            f"the optimiser has {len(groups)} groups with {len(parameters)} parameters; that of rank {root_rank} has "
            f"{len(options)} with {len(states)}"
        )
    for group, option in zip(groups, options, strict=True):
        group.update(option)
    for parameter, given in zip(parameters, states, strict=True):
        own = optimizer.state.get(parameter, {})
        state = {
            key: value.tensor_for(own.get(key)) if isinstance(value, _Place) else value for key, value in given.items()
        }
        broadcast_parameters(
            [(key, state[key]) for key, value in given.items() if isinstance(value, _Place)], root_rank
        )
        if state:
            optimizer.state[parameter] = state
        else:
            optimizer.state.pop(parameter, None)


def _pickler() -> Any:
    """cloudpickle, which Horovod uses, can send more objects; it is used where it is installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def _bytes_of(obj: Any) -> Tensor:
    return torch.frombuffer(bytearray(_pickler().dumps(obj)), dtype=torch.uint8)


def _object_of(data: Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Returns the object of the root on all ranks. It is sent by cloudpickle if that is installed, else by pickle."""
    root = rank() == root_rank
    data = _bytes_of(obj) if root else torch.empty(0, dtype=torch.uint8)
    size = broadcast_(torch.tensor([data.numel()]), root_rank, f"{name or 'object'}.size", process_set)
    if not root:
        data = torch.empty(int(size), dtype=torch.uint8)
    broadcast_(data, root_rank, f"{name or 'object'}.data", process_set)
    return obj if root else _object_of(data)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns the objects of all ranks, in the order of the ranks. They are sent as in broadcast_object()."""
    data = _bytes_of(obj)
    sizes = allgather(torch.tensor([data.numel()]), f"{name or 'object'}.sizes")
    gathered = allgather(data, f"{name or 'object'}.data")
    return [_object_of(each) for each in torch.split(gathered, sizes.tolist())]
