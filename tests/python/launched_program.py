"""A rank of `tutti run` that uses torch.distributed and Tutti's own communicator, in either order. Argument: which comes first."""

import sys

import numpy as np
import torch
import torch.distributed as dist
import tutti.torch

import tutti

if sys.argv[1] == "tutti":
    comm = tutti.init()
    dist.init_process_group("tutti")
else:
    dist.init_process_group("tutti")
    comm = tutti.init()
assert (comm.rank, comm.world) == (dist.get_rank(), dist.get_world_size())
tensor, array = torch.ones(3), np.ones(3)
dist.all_reduce(tensor)
tutti.numpy.all_reduce(comm, array)
assert tensor.tolist() == array.tolist() == [comm.world] * 3
print("all is well", flush=True)
dist.destroy_process_group()
