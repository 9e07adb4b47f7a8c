"""Hugging Face's Accelerate and the Trainer of Transformers over the backend "tutti", on two ranks of a launcher: each training is
compared with one process that computes the same."""

import sys
import tempfile

import torch
import torch.distributed as dist
import tutti.torch  # noqa: F401  # not needed since PyTorch 2.14
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments

# On CPUs Accelerate knows gloo and mpi by name, and takes a group that is there already.
dist.init_process_group("tutti")
rank, world = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed(1)
inputs, targets = torch.randn(64, 12, generator=generator), torch.randn(64, 4, generator=generator)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, inputs, labels):
        outputs = self.layers(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "outputs": outputs}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def expect_close(model, what):
    for (name, value), expected in zip(model.named_parameters(), alone.parameters(), strict=True):
        if not torch.allclose(value, expected, rtol=1e-4, atol=1e-6):
            sys.exit(f"rank {rank}: {what}: {name} differs by {(value - expected).abs().max()}")


alone = Network()
optimizer = sgd(alone)
for batch in DataLoader(TensorDataset(inputs, targets), batch_size=8 * world):
    optimizer.zero_grad()
    alone(*batch)["loss"].backward()
    optimizer.step()

accelerator = Accelerator(cpu=True)
assert (dist.get_backend(), accelerator.num_processes, accelerator.process_index) == ("tutti", world, rank)
plain = Network()
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
model, optimizer, loader = accelerator.prepare(plain, sgd(plain), loader)
for batch in loader:
    optimizer.zero_grad()
    accelerator.backward(model(*batch)["loss"])
    optimizer.step()
expect_close(accelerator.unwrap_model(model), "Accelerate")
assert accelerator.gather(torch.tensor([rank])).tolist() == list(range(world))
assert accelerator.reduce(torch.tensor([rank + 1.0]), "sum").item() == world * (world + 1) / 2

model = Network()
optimizer = sgd(model)
trainer = Trainer(
    model,
    TrainingArguments(
        tempfile.mkdtemp(),
        use_cpu=True,
        num_train_epochs=1,
        per_device_train_batch_size=8,
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=[{"inputs": each, "labels": target} for each, target in zip(inputs, targets, strict=True)],
    optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)),
)
trainer.train()
assert trainer.args.world_size == world
expect_close(model, "Transformers' Trainer")
if rank == 0:
    print("all is well", flush=True)
dist.destroy_process_group()
