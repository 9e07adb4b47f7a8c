"""Tutti for PyTorch, for tensors on CPUs.

The backend "tutti" of torch.distributed:

    import torch.distributed as dist
    import tutti.torch  # not needed since PyTorch 2.14

    dist.init_process_group("tutti")

`DistributedOptimizer` and `steps` train with the same bits on any number of ranks. `tutti.torch.hvd` has Horovod's
names.
"""

from . import checkpoint as checkpoint
from ._backend import ProcessGroup, register
from ._lanes import Lane, Lanes, LaneScope
from ._world import world
from .data import Steps, steps
from .optimizer import DistributedOptimizer

register()

__all__ = [
    "DistributedOptimizer",
    "Lane",
    "LaneScope",
    "Lanes",
    "ProcessGroup",
    "Steps",
    "checkpoint",
    "register",
    "steps",
    "world",
]
