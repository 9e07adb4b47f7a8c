"""The network of examples/01_mnist in PyTorch's DistributedDataParallel over Gloo, one core a worker: prints images per
second of all workers, and the peak of memory of one in MiB.

    python3 ddp.py WORKERS
"""
import os
import resource
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

BATCH, WARM_UP, STEPS, EXAMPLES = 50, 20, 300, 10000


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.dense = nn.Linear(7 * 7 * 64, 500)
        self.pred = nn.Linear(500, 10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.pred(torch.relu(self.dense(x.flatten(1))))


def work(rank, workers, meeting):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=workers)
    torch.manual_seed(rank)
    images = torch.randint(0, 256, (EXAMPLES, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(0, 10, (EXAMPLES,))
    net = nn.parallel.DistributedDataParallel(Net(), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    order = torch.randperm(EXAMPLES)
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            begin = time.perf_counter()
        at = step * BATCH % EXAMPLES
        picked = order[at : at + BATCH]
        image = images[picked].float().div_(255)
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(net(image), labels[picked])
        loss.backward()
        optimizer.step()
        loss.item()
    speed = workers * STEPS * BATCH / (time.perf_counter() - begin)
    if rank == 0:
        print(f"{speed:.1f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (int(sys.argv[1]), os.path.join(folder, "meeting")), nprocs=int(sys.argv[1]))
