"""The network of examples/01_mnist in PyTorch, one core: prints images per second and the peak of memory in MiB.

    python3 train_step.py fp32|bf16
"""
import os
import resource
import sys
import time

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
import torch
from torch import nn

BATCH, WARM_UP, STEPS, EXAMPLES = 50, 20, 120, 10000


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


def main(precision):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images = torch.randint(0, 256, (EXAMPLES, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(0, 10, (EXAMPLES,))
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            begin = time.perf_counter()
        at = step * BATCH % EXAMPLES
        if at == 0:
            order = torch.randperm(EXAMPLES)
        picked = order[at : at + BATCH]
        image = images[picked].float().div_(255)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = nn.functional.cross_entropy(net(image), labels[picked])
        loss.backward()
        optimizer.step()
        loss.item()
    speed = STEPS * BATCH / (time.perf_counter() - begin)
    print(f"{speed:.1f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}")


main(sys.argv[1])
