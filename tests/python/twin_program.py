"""The training of tests/twin_program.cc in Python.

Usage: twin_program.py begin FOLDER               writes the weights that both begin with
       twin_program.py train FOLDER RUN EPOCHS    trains, with checkpoints in RUN, and prints the hash of the weights
       twin_program.py read FOLDER                prints the hash of the newest checkpoint, which C++ may have written
"""

import sys

import torch
import tutti.torch
from tutti.torch import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.25)
        )
        self.head = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(7)
net = Net()
made = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
command, folder = sys.argv[1:3]
if command == "begin":
    checkpoint.save(folder, 0, net)
elif command == "read":
    loaded = checkpoint.load(checkpoint.newest(folder), net, made)
    print(loaded.state["step"], checkpoint.sha256(dict(net.named_parameters())))
else:
    checkpoint.load(checkpoint.newest(folder), net)
    run, epochs = sys.argv[3], int(sys.argv[4])
    opt = tutti.torch.DistributedOptimizer(made, lanes=4, model=net, folder=run, save_every=8)
    i = torch.arange(102).unsqueeze(1)
    x = (i * 7 + torch.arange(6) * 13).remainder(32).float() / 16 - 1
    y = (i * 5).remainder(17).float() / 8 - 1
    for step, lanes in tutti.torch.steps(
        torch.utils.data.TensorDataset(x, y), lanes=opt.lanes, batch=4, seed=3, epochs=epochs
    ):
        for lane, (inputs, targets) in lanes:
            with opt.lane(lane) as scope:
                scope.backward(torch.nn.functional.mse_loss(net(inputs), targets))
        opt.step()
    opt.save()
    print(opt.lanes.step, opt.sha256())
