"""Horovod over MPI, one core a worker; the speed is that of all workers.

    mpirun -np WORKERS python3 horovod_mpi.py
"""
import os

import horovod.torch as hvd
import torch

import mnist_loop

hvd.init()
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[hvd.local_rank() % len(cores)]})
torch.set_num_threads(1)
torch.manual_seed(hvd.rank())
net = mnist_loop.Net()
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(net.parameters(), lr=mnist_loop.RATE), named_parameters=net.named_parameters()
)
hvd.broadcast_parameters(net.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
speed = mnist_loop.images_per_second(net, optimizer, steps=300)
if hvd.rank() == 0:
    mnist_loop.report(hvd.size() * speed)
