"""Tutti for PyTorch: the backend "tutti" of torch.distributed, for tensors on CPUs.

import torch.distributed as dist
import tutti.torch                    # not needed since PyTorch 2.14
dist.init_process_group("tutti")
"""

from ._backend import ProcessGroup, register

register()

__all__ = ["ProcessGroup", "register"]
