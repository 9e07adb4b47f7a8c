"""One training process in PyTorch on a GPU, with examples in the memory of the host, for bench/gpu.cc. Prints the images per
second of the same trainings, and the memory after the last.
"""
import time

import torch
from torch import nn

import mnist_loop

EXAMPLES, WARM_UP, STEPS, LOOK_EVERY = 20000, 50, 300, 25


def train(bf16, batch):
    torch.manual_seed(1)
    net = mnist_loop.Net().cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=mnist_loop.RATE)
    images = torch.randint(0, 256, (EXAMPLES, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(0, 10, (EXAMPLES,))
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        at = step % (EXAMPLES // batch) * batch
        if at == 0:
            order = torch.randperm(EXAMPLES)
        picked = order[at : at + batch]
        image = images[picked].pin_memory().cuda(non_blocking=True).float().div(255)
        label = labels[picked].pin_memory().cuda(non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = nn.functional.cross_entropy(net(image), label)
        loss.backward()
        optimizer.step()
        if step % LOOK_EVERY == 0:
            loss.item()
    torch.cuda.synchronize()
    return STEPS * batch / (time.perf_counter() - begin)


torch.set_num_threads(2)
figures = [train(bf16, batch) for batch in (50, 1024) for bf16 in (False, True)]
free, total = torch.cuda.mem_get_info()
print(" ".join(f"{figure:.1f}" for figure in [*figures, (total - free) / 1048576]))
