"""save_module.py FILE: a small network, scripted and saved as a user of PyTorch does it."""

import sys

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(3, 2)

    def forward(self, x):
        return torch.nn.functional.dropout(torch.tanh(self.dense(x)), 0.5, self.training)

    @torch.jit.export
    def predict(self, x):
        return self.forward(x)

    @torch.jit.export
    def loss(self, x, y, scale: float = 1.0):
        prediction = self.forward(x)
        return torch.nn.functional.mse_loss(prediction, y) * scale, prediction


net = Net()
with torch.no_grad():
    net.dense.weight.copy_(torch.arange(6).reshape(2, 3) / 8)
    net.dense.bias.fill_(0.25)
torch.jit.script(net).save(sys.argv[1])
