"""What a user does wrong with lanes is an error that says what to do. Usage: lanes_mistakes_program.py FOLDER"""

import pathlib
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from tutti.torch import DistributedOptimizer, Lane, checkpoint, steps

import tutti

folder = pathlib.Path(sys.argv[1])
data = TensorDataset(torch.randn(30, 3), torch.randn(30, 1))


def fresh(**options):
    torch.manual_seed(1)
    net = torch.nn.Linear(3, 1)
    return net, DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), lanes=4, model=net, **options)


def loss_of(net, batch):
    return (net(batch[0]) - batch[1]).square().mean()


def train(net, opt, dataset=data, **options):
    for _, lanes in steps(dataset, lanes=opt.lanes, **{"batch": 5, **options}):
        for lane, batch in lanes:
            with opt.lane(lane):
                loss_of(net, batch).backward()
        opt.step()


def expect(part, call, kind=tutti.InvalidArgument):
    try:
        call()
    except kind as error:
        assert part in str(error), error
    else:
        sys.exit(f"no error with '{part}'")


def clips():
    net, opt = fresh()
    for _, lanes in steps(data, lanes=opt.lanes, batch=5):
        for lane, batch in lanes:
            with opt.lane(lane):
                loss_of(net, batch).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        opt.step()


def goes_backward_too_late():
    net, opt = fresh()
    for _, lanes in steps(data, lanes=opt.lanes, batch=5):
        for lane, batch in lanes:
            with opt.lane(lane):
                loss = loss_of(net, batch)
            loss.backward()


def forgets_step():
    net, opt = fresh()
    for _, lanes in steps(data, lanes=opt.lanes, batch=5):
        for lane, batch in lanes:
            with opt.lane(lane):
                loss_of(net, batch).backward()


def forgets_lanes():
    _, opt = fresh()
    for _ in steps(data, lanes=opt.lanes, batch=5):
        opt.step()


def goes_backward_twice():
    net, opt = fresh()
    with opt.lane(Lane(0, 0, 2)) as scope:
        scope.backward(net(torch.ones(2, 3)).mean())
        scope.backward(net(torch.ones(2, 3)).mean())


def has_a_loss_of_each():
    net, opt = fresh()
    with opt.lane(Lane(0, 0, 2)) as scope:
        scope.backward(net(torch.ones(2, 3)))


def trains_once_more():
    net, opt = fresh()
    train(net, opt)
    train(net, opt)


def is_not_finite():
    net, opt = fresh()
    with opt.lane(Lane(0, 0, 2)):
        (net(torch.ones(2, 3)).mean() * float("inf")).backward()


class Counts:
    def state_dict(self):
        return {"count": 1, "path": pathlib.Path("x")}


expect("clip_norm=", clips)
expect("lane 0 had no backward pass", goes_backward_too_late)
expect("step 0 has not been made", forgets_step)
expect("after 0 of the 4 lanes", forgets_lanes)
expect("one scope.backward()", goes_backward_twice)
expect("expected one number", has_a_loss_of_each)
expect("counts from the beginning", trains_once_more)
expect("lanes=opt.lanes", lambda: steps(data, lanes=4, batch=5))
expect("steps() needs the examples", lambda: steps(DataLoader(data), lanes=fresh()[1].lanes, batch=5))
expect("do not fill one step", lambda: steps(data, lanes=fresh()[1].lanes, batch=8, drop_remainder=True))
expect("-1 lanes", lambda: DistributedOptimizer(torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1), lanes=-1))
expect("state['epoch'] is 3", lambda: fresh(state={"epoch": 3}))
expect("is not the model's", lambda: DistributedOptimizer(fresh()[1].optimizer, model=torch.nn.Linear(2, 2)))
expect("without a folder", lambda: fresh(save_every=2))
expect("state['counts']['path'] is a pathlib.PosixPath", lambda: fresh(state={"counts": Counts()}))
expect("the step is -1", lambda: checkpoint.save(folder, -1, fresh()[0]))
expect("as program=", lambda: checkpoint.save(folder, 1, fresh()[0], state={"x": torch.ones(1)}))
expect("need the names of the weights", lambda: DistributedOptimizer(fresh()[1].optimizer, folder=folder))

# Checkpoints: the last step is in the folder, and what is damaged or of another training is refused or passed over.
net, opt = fresh(folder=folder, save_every=1)
train(net, opt, epochs=2)
assert opt.lanes.step == 4 and checkpoint.newest(folder).name == "ckpt-4"
trained = opt.sha256()
expect("batch=5", lambda: train(*fresh(folder=folder), batch=4))
expect("batch=5", lambda: train(*fresh(folder=folder), epochs=9, batch=3))
net, opt = fresh(folder=folder)
train(net, opt, epochs=2)
assert opt.sha256() == trained
expect("'weight' is", lambda: checkpoint.load(folder / "latest", torch.nn.Linear(2, 1)))
expect("such as latest", lambda: checkpoint.load(folder, net), tutti.DataLoss)
expect("another model", lambda: checkpoint.load(folder / "latest", torch.nn.Sequential(net)))
weights = folder / "ckpt-4" / "weights.safetensors"
whole = weights.read_bytes()
for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
    weights.write_bytes(damaged)
    expect("weights.safetensors", lambda: checkpoint.load(folder / "latest", net), tutti.DataLoss)
    assert checkpoint.newest(folder).name == "ckpt-3"
manifest = folder / "ckpt-3" / "manifest.json"
manifest.write_text(manifest.read_text().replace('"step": 3', '"step": 5'))
assert checkpoint.newest(folder).name == "ckpt-2"
net, opt = fresh(folder=folder)
train(net, opt, epochs=2)
assert opt.sha256() == trained
expect("is not finite on rank 0 at step 0, lane 0", is_not_finite)  # the last: it ends the communicator
print("all is well", flush=True)
