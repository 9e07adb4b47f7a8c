"""A training with batch norm, dropout and uneven last steps on tutti.torch.DistributedOptimizer. Prints the hash of the
weights, which is the same on any number of ranks.

Usage: lanes_program.py [--folder F] [--epochs N] [--kill RANK@STEP --mark FILE] [--stop RANK@STEP] [--wait-for WORLD] [--differ WHAT]
"""

import argparse
import os
import pathlib
import random
import signal
import time

import torch
import tutti.torch

import tutti


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.25)
        )
        self.head = torch.nn.Linear(16, 1)
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Examples(torch.utils.data.Dataset):
    """Their noise is drawn when they are read."""

    def __len__(self):
        return 102

    def __getitem__(self, i):
        x = torch.sin(torch.arange(6) * 0.7 + i)
        return {"x": x + 0.01 * torch.rand(6) * random.random(), "y": x.sum().reshape(1)}


parser = argparse.ArgumentParser()
parser.add_argument("--folder")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--optimizer", default="adamw")
parser.add_argument("--kill", default="")
parser.add_argument(
    "--stop",
    default="",
    metavar="RANK@STEP",
    help="gets SIGTERM in this step; all: every rank; late: when it saves the last step",
)
parser.add_argument("--mark")
parser.add_argument("--wait-for", type=int, default=0)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--lanes", type=int, default=5)
parser.add_argument(
    "--differ", default="", metavar="WHAT", help="rate, decay, clip_norm, seed or epochs: other on rank 1"
)
options = parser.parse_args()


def other(what):
    return tutti.torch.world().rank if options.differ == what else 0


torch.manual_seed(tutti.torch.world().rank + 1)  # the weights of rank 0 are taken by all
net = Net()
made = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
}[options.optimizer](net.parameters())
schedule = torch.optim.lr_scheduler.StepLR(made, 5)
opt = tutti.torch.DistributedOptimizer(
    made,
    lanes=options.lanes,
    model=net,
    clip_norm=1.0 + other("clip_norm"),
    folder=options.folder,
    save_every=4 if options.folder else 0,
    state={"schedule": schedule},
)
comm = tutti.torch.world()
killed, _, at = options.kill.partition("@")
stopped, _, stopped_at = options.stop.partition("@")
save = opt.save


def save_late():
    if opt.lanes.step == options.epochs * 6:
        os.kill(os.getpid(), signal.SIGTERM)
    save()


if options.stop == "late":
    opt.save = save_late
before = random.random(), torch.rand(1).item()
for step, lanes in tutti.torch.steps(
    Examples(),
    lanes=opt.lanes,
    batch=4,
    seed=3 + other("seed"),
    epochs=options.epochs + other("epochs"),
    workers=options.workers,
):
    for lane, batch in lanes:
        with opt.lane(lane) as scope:
            loss = torch.nn.functional.mse_loss(net(batch["x"]), batch["y"])
            # Each way gives the same, since four examples are a power of two, and so are two.
            scope.backward(loss) if lane.number % 2 else loss.backward()
        if killed == str(comm.rank) and at == str(step) and not pathlib.Path(options.mark).exists():
            pathlib.Path(options.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if stopped in (str(comm.rank), "all") and stopped_at == str(step):
        os.kill(os.getpid(), signal.SIGTERM)
    while options.wait_for > comm.world and step >= 12 and not comm.change_is_due():
        time.sleep(0.01)
    if options.differ:
        made.param_groups[0]["lr"] += 0.01 * other("rate")
        made.param_groups[0]["weight_decay"] += other("decay")
    examples = opt.step()
    if examples:
        schedule.step()
        assert examples == (2 if step % 6 == 5 else 20) or options.lanes != 5, (step, examples)
assert opt.lanes.step == options.epochs * 6 or options.lanes != 5
if options.wait_for:
    assert comm.world == options.wait_for, comm.world
print(f"hash {opt.sha256()} {int(net.body[1].num_batches_tracked)}", flush=True)
