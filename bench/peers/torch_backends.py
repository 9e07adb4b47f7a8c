"""torch.distributed over Tutti and over Gloo, in one run: sums, DDP and FSDP2, and the cost of calls. Prints Markdown.

Usage: torch_backends.py [--rounds 5]
Each round forks the ranks for one backend after the other; the figures are medians of the rounds. Trainings also run over
PyTorch's backend "fake", which sends nothing: no backend can be faster.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import tutti.torch
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

SIZES = {"4 KB": 1 << 10, "1 MB": 1 << 18, "64 MB": 1 << 24}  # of floats
TO_REACH = {
    "shm": {"4 KB": "30x", "1 MB": "8x", "64 MB": "4x"},
    "tcp": {"4 KB": "20x", "1 MB": "3x", "64 MB": "1.2x"},
}
TRAININGS = {  # the program, the ranks, and what is to be reached
    "DDP, MNIST network": (2, "1.25x"),
    "DDP, ResNet-18": (2, "1.1x"),
    "DDP, GPT": (2, "1.2x"),
    "FSDP2, GPT": (2, "1.5x"),
    "FSDP2, GPT, 4 ranks": (4, "1.5x"),
}


class Block(nn.Module):
    """Two convolutions of a residual network."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.short = nn.Sequential()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


def network(name):
    """A network, and the shape of its input."""
    if "MNIST" in name:
        layers = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(7 * 7 * 64, 500), nn.ReLU(), nn.Linear(500, 10)), (25, 1, 28, 28)
    if "ResNet" in name:
        layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        width = 64
        for outputs, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
            layers.append(Block(width, outputs, stride))
            width = outputs
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)), (8, 3, 32, 32)
    layer = nn.TransformerEncoderLayer(320, 8, 1280, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), (2, 64, 320)


def seconds_of_sums(count):
    values = torch.ones(count)
    repeats = max(3, min(2000, (1 << 25) // count))
    for _ in range(max(2, repeats // 10)):
        dist.all_reduce(values)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(values)
    return (time.perf_counter() - begin) / repeats


def not_summed(_, bucket):
    """For DDP, which cannot use what the backend "fake" returns."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def seconds_of_steps(name):
    torch.manual_seed(1)
    model, shape = network(name)
    if "FSDP" in name:
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        wrapped = fully_shard(model)
    else:
        wrapped = nn.parallel.DistributedDataParallel(model)
        if dist.get_backend() == "fake":
            wrapped.register_comm_hook(None, not_summed)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    values = torch.randn(shape)
    begin = 0.0
    steps = 12
    for step in range(steps + 2):
        if step == 2:
            dist.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad()
        wrapped(values).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - begin) / steps


def in_ranks(world, backend, transport, measure):
    """What rank 0 measures."""
    folder = tempfile.mkdtemp()
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os.environ["TUTTI_COMM"] = transport
            torch.set_num_threads(1)
            if backend == "fake":
                dist.init_process_group(backend, store=FakeStore(), rank=rank, world_size=world)
            else:
                dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=world)
            found = measure()
            dist.destroy_process_group()
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


def beside(rounds, world, transport, measure, backends=("tutti", "gloo")):
    """By name of a measurement, and by backend: the milliseconds of all rounds."""
    found = {}
    for _ in range(rounds):
        for backend in backends:
            for what, seconds in in_ranks(world, backend, transport, measure).items():
                found.setdefault(what, {}).setdefault(backend, []).append(1000 * seconds)
    return found


def ratio(found, to):
    """Gloo's time over another one's: the median of the rounds, with the least and the greatest."""
    ratios = sorted(b / a for a, b in zip(found[to], found["gloo"]))
    return f"{statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def row(what, found, to_reach):
    cells = [f"{statistics.median(found[backend]):.3f} ms" for backend in ("tutti", "gloo")] + [
        ratio(found, "tutti"),
        to_reach,
    ]
    if "fake" in found:
        cells.append(ratio(found, "fake"))
    print(f"| {what} | {' | '.join(cells)} |", flush=True)


def nanoseconds(call):
    repeats = 20000
    found = []
    for _ in range(15):
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        found.append((time.perf_counter_ns() - begin) / repeats)
    return statistics.median(found)


def calls():
    comm = tutti.init()
    value = torch.ones(1)
    address = value.data_ptr()
    nothing = ctypes.CDLL(None).abs
    nothing.argtypes, nothing.restype = [ctypes.c_int], ctypes.c_int
    ctypes_call = nanoseconds(lambda: nothing(1))
    rank = nanoseconds(lambda: tutti.communicator.library.tutti_rank(comm._handle))
    all_reduce = tutti.communicator.library.tutti_all_reduce
    as_many = ctypes.CDLL(None).abs  # which reads only the first
    as_many.argtypes, as_many.restype = all_reduce.argtypes, all_reduce.restype
    same_arguments = nanoseconds(lambda: as_many(comm._handle, address, address, 1, 6, 0, None))
    ours = nanoseconds(lambda: comm.call("tutti_all_reduce", address, address, 1, 6, 0))
    print("\n### A call from Python\n\n| call | time | |\n|---|---|---|")
    print(f"| of ctypes that does nothing (`abs`) | {ctypes_call:.0f} ns | |")
    print(
        f"| of ctypes that does nothing, with the seven arguments of `tutti_all_reduce` | {same_arguments:.0f} ns | "
        f"{same_arguments / ctypes_call:.1f}x |"
    )
    print(f"| `tutti_rank` | {rank:.0f} ns | {rank / ctypes_call:.1f}x |")
    print(f"| `all_reduce` of one number, alone | {ours:.0f} ns | **{ours / ctypes_call:.1f}x** (to reach: 3x) |")
    comm.close()
    bare, ours = (
        statistics.median(_seconds([sys.executable, "-c", program]) for _ in range(11)) * 1000
        for program in ("pass", "import tutti")
    )
    print(f"| `import tutti` | {ours - bare:.0f} ms | (to reach: 50 ms) |")


def _seconds(command):
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print("## torch.distributed over Tutti and over Gloo\n")
    print(
        f"PyTorch {torch.__version__}, one thread for each rank; {rounds} alternating rounds, medians, and the ratios of the "
        "rounds from the least to the greatest. More ranks than cores share them. Where nothing is sent, by PyTorch's backend "
        '"fake", a step has only its own computing left: the most that any backend can reach.\n'
    )
    print("| `all_reduce` | Tutti | Gloo | Gloo / Tutti | to reach |\n|---|---|---|---|---|")
    for transport, words in (("shm", "shared memory"), ("tcp", "TCP")):
        for world in (2, 4, 8):
            sums = lambda: {size: seconds_of_sums(count) for size, count in SIZES.items()}
            for size, found in beside(rounds, world, transport, sums).items():
                row(f"{size}, {world} ranks, {words}", found, TO_REACH[transport][size])
    print(
        "\n| training step | Tutti | Gloo | Gloo / Tutti | to reach | Gloo / nothing sent |\n|---|---|---|---|---|---|"
    )
    for name, (world, to_reach) in TRAININGS.items():
        measure = lambda name=name: {name: seconds_of_steps(name)}
        found = beside(rounds, world, "shm", measure, ("tutti", "gloo", "fake"))
        row(f"{name}, {world} ranks".replace(", 4 ranks, 4 ranks", ", 4 ranks"), found[name], to_reach)
    calls()


if __name__ == "__main__":
    main()
