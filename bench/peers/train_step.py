"""One training process in PyTorch, on one core.

    python3 train_step.py fp32|bf16
"""
import os
import sys

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
import torch

import mnist_loop

torch.set_num_threads(1)
torch.manual_seed(1)
net = mnist_loop.Net()
optimizer = torch.optim.Adam(net.parameters(), lr=mnist_loop.RATE)
mnist_loop.report(mnist_loop.images_per_second(net, optimizer, steps=120, bf16=sys.argv[1] == "bf16"))
