"""PyTorch's ways to outlive a killed worker: torchrun's restart of all workers from a checkpoint after every 20 steps,
and torchft, with which the others go on. Four workers, each 12 images of the network of mnist_loop.py, over Gloo.

    python3 survival.py torchrun|torchft|torchft-tuned KILLS TIMES

Appends a line to TIMES for each kill: the seconds until the next step is finished ("never" after 90), how many steps
are made again, and how many are given up with their batches.
"""
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn

import mnist_loop

WORKERS, BATCH, CHECKPOINT_EVERY, PATIENCE = 4, 12, 20, 90


def noted(times):
    return times.read_text().splitlines() if times.exists() else []


def note(times, line):
    with open(times, "a") as file:
        file.write(line + "\n")


class Kills:
    """Kills one worker after the other, some steps after all have come together (bench/survival.cc does the same)."""

    def __init__(self, times):
        self.times, self.killed = times, Path(f"{times}.killed")
        self.kills, self.together, self.is_first = -1, 0, True

    def in_step(self, step, world, rank):
        kills = len(noted(self.times))
        self.together = self.together + 1 if world == WORKERS and kills == self.kills else 0
        self.kills = kills
        if self.together == 20 + 7 * kills % 20 and rank == kills % WORKERS:
            self.killed.write_text(f"{time.monotonic()} {step}")
            os.kill(os.getpid(), signal.SIGKILL)

    def finished(self, step, given_up=0):
        """The first worker notes it that has finished the step in flight, a later one, or any after its start."""
        is_first, self.is_first = self.is_first, False
        try:
            at, killed = self.killed.read_text().split()
            if not is_first and step <= int(killed):
                return
            self.killed.rename(f"{self.killed}.noted")
        except FileNotFoundError:
            return
        note(self.times, f"{time.monotonic() - float(at):.6f} {max(0, int(killed) + 1 - step)} {given_up}")


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.rand(BATCH, 1, 28, 28, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)


def loss_of(net, step):
    images, labels = batch(step)
    return nn.functional.cross_entropy(net(images), labels)


def train_with_torchrun(times):
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    net = mnist_loop.Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=mnist_loop.RATE)
    saved, kills, step = Path(f"{times}.pt"), Kills(times), 0
    if saved.exists():
        state = torch.load(saved)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    wrapped = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    while True:
        optimizer.zero_grad()
        loss = loss_of(wrapped, step * WORKERS + rank)
        kills.in_step(step, WORKERS, rank)
        loss.backward()
        optimizer.step()
        step += 1
        kills.finished(step)
        if step % CHECKPOINT_EVERY == 0 and rank == 0:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{saved}.new")
            os.replace(f"{saved}.new", saved)


def train_with_torchft(times):
    import torchft

    net = mnist_loop.Net()
    adam = torch.optim.Adam(net.parameters(), lr=mnist_loop.RATE)

    def load(state):
        net.load_state_dict(state["net"])
        adam.load_state_dict(state["optimizer"])

    replica, timeout = int(os.environ["REPLICA_GROUP_ID"]), float(os.environ["TIMEOUT"])
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=timeout)),
        load_state_dict=load,
        state_dict=lambda: {"net": net.state_dict(), "optimizer": adam.state_dict()},
        min_replica_size=1,
        replica_id=f"replica_{replica}",
    )
    optimizer = torchft.Optimizer(manager, adam)
    kills, given_up = Kills(times), 0
    while True:
        optimizer.zero_grad()
        step = manager.current_step()
        loss_of(net, step * WORKERS + replica).backward()
        kills.in_step(step, manager.num_participants(), replica)
        # Its DistributedDataParallel ends the process if a peer is lost (0.2.0: assert fut._fut).
        for work in [manager.allreduce(parameter.grad) for parameter in net.parameters()]:
            work.wait()
        optimizer.step()
        if manager.current_step() > step:
            kills.finished(manager.current_step(), given_up)
            given_up = 0
        else:
            given_up += 1


def start(arguments, workers, **more):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command = torchrun + ["--max-restarts=1000", __file__] + arguments
    environment = dict(os.environ, OMP_NUM_THREADS="1", **more)
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run(way, kills, times):
    """Trains until there were so many kills, or one after which nobody goes on."""
    if way == "torchrun":
        # Without this variable restarts hang or fail (pytorch#135712).
        jobs = [start(["train-with-torchrun", str(times)], WORKERS, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")]
    else:
        from torchft.coordination import LighthouseServer

        # The times of torchft's example, and a tenth of them.
        timeout = 0.5 if way == "torchft-tuned" else 5
        lighthouse = LighthouseServer(
            bind="[::]:0",
            min_replicas=1,
            join_timeout_ms=int(2000 * timeout),
            quorum_tick_ms=100,
            heartbeat_timeout_ms=int(1000 * timeout),
        )
        jobs = [
            start(
                ["train-with-torchft", str(times)],
                1,
                TORCHFT_LIGHTHOUSE=lighthouse.address(),
                REPLICA_GROUP_ID=str(i),
                TIMEOUT=str(timeout),
            )
            for i in range(WORKERS)
        ]
    before, since = len(noted(times)), time.monotonic()
    try:
        while (now := len(noted(times))) < kills:
            if now > before:
                before, since = now, time.monotonic()
            if time.monotonic() > since + PATIENCE or any(job.poll() is not None for job in jobs):
                note(times, "never 0 0")
                break
            time.sleep(0.05)
    finally:
        for job in jobs:
            job.terminate()
        for job in jobs:
            job.wait()


if __name__ == "__main__":
    way, times = sys.argv[1], Path(sys.argv[-1])
    if way == "train-with-torchrun":
        train_with_torchrun(times)
    elif way == "train-with-torchft":
        train_with_torchft(times)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        wanted = len(noted(times)) + int(sys.argv[2])
        while len(noted(times)) < wanted:
            Path(f"{times}.killed").unlink(missing_ok=True)
            run(way, wanted, times)
