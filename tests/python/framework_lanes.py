"""What lightning_lanes_program.py and transformers_lanes_program.py share: options, data, a network with batch norm and
dropout, and the loop whose weights a framework has to reproduce."""

import argparse
import contextlib
import os
import pathlib
import random
import signal
import sys
import time

import torch
import tutti.torch

BATCH, LANES, SEED, STEPS = 3, 5, 3, 6  # steps of an epoch
parser = argparse.ArgumentParser()
parser.add_argument("--loop", action="store_true", help="without the framework")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--stop-after", type=int, default=-1, metavar="STEP")
parser.add_argument("--differ", action="store_true", help="rank 0 stops one step before the others")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--folder", help="of Tutti's checkpoints")
parser.add_argument("--checkpoints", help="the folder of the framework's own checkpoints")
parser.add_argument("--resume", action="store_true", help="from one of those")
parser.add_argument("--kill", default="", metavar="RANK@STEP")
parser.add_argument("--mark", help="a file that says that the rank was killed")
parser.add_argument("--wait-for", type=int, default=0, metavar="WORLD")
options = parser.parse_args()
options.stop_after -= options.differ and tutti.torch.world().rank == 0


class Examples(torch.utils.data.Dataset):
    """Their noise is drawn when they are read. In the last step of an epoch only one lane has examples."""

    def __init__(self, noise=0.01):
        self.noise = noise

    def __len__(self):
        return STEPS * LANES * BATCH - 13

    def __getitem__(self, i):
        x = torch.sin(torch.arange(6) * 0.7 + i)
        return {"x": x + self.noise * torch.rand(6) * random.random(), "labels": x.sum().reshape(1)}


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.25)
        )
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x, labels):
        outputs = self.head(self.body(x))
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "outputs": outputs}


def train_by_loop(net, optimizer, by_step, by_epoch=None, by_loss=None):
    opt = tutti.torch.DistributedOptimizer(optimizer, lanes=LANES, model=net, clip_norm=1.0)
    for step, lanes in tutti.torch.steps(Examples(), lanes=opt.lanes, batch=BATCH, seed=SEED, epochs=options.epochs):
        for lane, batch in lanes:
            precision = torch.autocast("cpu", torch.bfloat16) if options.bf16 else contextlib.nullcontext()
            with opt.lane(lane) as scope, precision:
                scope.loss = net(**batch)["loss"]
                scope.loss.backward()
        assert opt.step()
        by_step.step()
        if by_epoch and (step + 1) % STEPS == 0:
            by_epoch.step()
            by_loss.step(opt.last_loss)
    return opt


def kill_if_asked(step):
    """Called in the lanes of a step."""
    if options.kill == f"{tutti.torch.world().rank}@{step}" and not pathlib.Path(options.mark).exists():
        pathlib.Path(options.mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def wait_if_asked(step):
    """Called before a step: waits for a rank that was killed."""
    comm = tutti.torch.world()
    while options.wait_for > comm.world and step >= 2 * STEPS and not comm.change_is_due():
        time.sleep(0.01)


def report(opt, *numbers):
    """Prints the hash of the weights, and further numbers that are the same on all ranks."""
    if options.wait_for:
        assert tutti.torch.world().world == options.wait_for
    sys.stdout.write(f"\nhash {opt.sha256()} step {opt.lanes.step}\nnumbers {' '.join(map(str, numbers))}\n")
    sys.stdout.flush()
