"""PyTorch's DistributedDataParallel over Gloo, one core a worker; the speed is that of all workers.

    python3 ddp.py WORKERS
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import mnist_loop


def work(rank, workers, meeting):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=workers)
    torch.manual_seed(rank)
    net = torch.nn.parallel.DistributedDataParallel(mnist_loop.Net(), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=mnist_loop.RATE)
    speed = mnist_loop.images_per_second(net, optimizer, steps=300)
    if rank == 0:
        mnist_loop.report(workers * speed)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (int(sys.argv[1]), os.path.join(folder, "meeting")), nprocs=int(sys.argv[1]))
