"""torch.distributed over Tutti and over Gloo, in one run: sums of several sizes and DDP. Prints Markdown.

Usage: torch_backends.py [--ranks 2] [--tcp] [--rounds 7]
Each round forks the ranks for one backend and then for the other; the figures are medians of the rounds.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import tutti.torch  # noqa: F401

SIZES = {"4 KB": 1 << 10, "64 KB": 1 << 14, "1 MB": 1 << 18, "64 MB": 1 << 24}  # of floats


def network(name):
    nn = torch.nn
    if name == "MNIST network":
        layers = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(7 * 7 * 64, 500), nn.ReLU(), nn.Linear(500, 10)), (25, 1, 28, 28)
    layer = nn.TransformerEncoderLayer(320, 8, 1280, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), (2, 64, 320)


def seconds_of_sums(count, rank):
    values = torch.ones(count)
    repeats = max(3, min(2000, (1 << 25) // count))
    for _ in range(max(2, repeats // 10)):
        dist.all_reduce(values)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(values)
    return (time.perf_counter() - begin) / repeats


def seconds_of_steps(name):
    torch.manual_seed(1)
    model, shape = network(name)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    values = torch.randn(shape)
    begin = 0.0
    steps = 8
    for step in range(steps + 2):
        if step == 2:
            dist.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad()
        ddp(values).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - begin) / steps


def measure(backend, rank, world, store):
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    found = {size: seconds_of_sums(count, rank) for size, count in SIZES.items()}
    for name in ("MNIST network", "GPT of 10 million parameters"):
        found[f"DDP, {name}"] = seconds_of_steps(name)
    dist.destroy_process_group()
    return found


def round_of(backend, world):
    folder = tempfile.mkdtemp()
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            found = measure(backend, rank, world, f"{folder}/store")
            if rank == 0:
                with open(f"{folder}/found", "w") as file:
                    json.dump(found, file)
            os._exit(0)
        children.append(child)
    for child in children:
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"a rank over {backend} has failed")
    with open(f"{folder}/found") as file:
        return json.load(file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tcp", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    if asked.tcp:
        os.environ["TUTTI_COMM"] = "tcp"
    rounds = [{backend: round_of(backend, asked.ranks) for backend in ("tutti", "gloo")} for _ in range(asked.rounds)]
    print(
        f"## torch.distributed over {'TCP' if asked.tcp else 'shared memory'}, {asked.ranks} ranks, PyTorch {torch.__version__}\n"
    )
    print("| | Tutti | Gloo | Gloo / Tutti (the ratios of the rounds) |\n|---|---|---|---|")
    for what in rounds[0]["tutti"]:
        ours, theirs = ([1000 * each[backend][what] for each in rounds] for backend in ("tutti", "gloo"))
        ratios = sorted(b / a for a, b in zip(ours, theirs))
        print(
            f"| {what} | {statistics.median(ours):.3f} ms | {statistics.median(theirs):.3f} ms "
            f"| **{statistics.median(ratios):.2f}** ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        )


if __name__ == "__main__":
    main()
