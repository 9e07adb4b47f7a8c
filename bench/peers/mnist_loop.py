"""The network of examples/01_mnist and its training loop in PyTorch, which the peers wrap each in its own way."""
import resource
import time

import torch
from torch import nn

BATCH, WARM_UP, EXAMPLES, RATE = 50, 20, 10000, 1e-4


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


def images_per_second(net, optimizer, steps, bf16=False):
    """Of this process."""
    images = torch.randint(0, 256, (EXAMPLES, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(0, 10, (EXAMPLES,))
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            begin = time.perf_counter()
        at = step * BATCH % EXAMPLES
        if at == 0:
            order = torch.randperm(EXAMPLES)
        picked = order[at : at + BATCH]
        image = images[picked].float().div_(255)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = nn.functional.cross_entropy(net(image), labels[picked])
        loss.backward()
        optimizer.step()
        loss.item()
    return steps * BATCH / (time.perf_counter() - begin)


def report(speed):
    """What bench/sides.h reads: images per second and the peak of memory in MiB."""
    print(f"{speed:.1f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}")
