"""Lightning Fabric and Lightning's Trainer over the backend "tutti", as their pages show it, on two ranks that Lightning or a
launcher starts: each training is compared with one process that computes the same."""

import logging
import sys

import torch
import tutti.torch  # noqa: F401  # not needed since PyTorch 2.14
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy as FabricStrategy
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORLD = 2
logging.getLogger("lightning").setLevel(logging.ERROR)
generator = torch.Generator().manual_seed(1)
examples = TensorDataset(torch.randn(64, 12, generator=generator), torch.randn(64, 4, generator=generator))


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def expect_close(model, what):
    for (name, value), expected in zip(model.named_parameters(), alone.parameters(), strict=True):
        if not torch.allclose(value, expected, rtol=1e-4, atol=1e-6):
            sys.exit(f"{what}: {name} differs by {(value - expected).abs().max()}")


alone = network()
optimizer = sgd(alone)
for batch in DataLoader(examples, batch_size=8 * WORLD):
    optimizer.zero_grad()
    loss_of(alone, batch).backward()
    optimizer.step()

fabric = Fabric(accelerator="cpu", devices=WORLD, strategy=FabricStrategy(process_group_backend="tutti"))
fabric.launch()
assert (torch.distributed.get_backend(), fabric.world_size) == ("tutti", WORLD)
plain = network()
model, optimizer = fabric.setup(plain, sgd(plain))
for batch in fabric.setup_dataloaders(DataLoader(examples, batch_size=8)):
    optimizer.zero_grad()
    fabric.backward(loss_of(model, batch))
    optimizer.step()
expect_close(plain, "Fabric")
assert fabric.all_reduce(torch.tensor(fabric.global_rank + 1.0), reduce_op="mean") == (WORLD + 1) / 2
assert fabric.all_gather(torch.tensor([fabric.global_rank])).flatten().tolist() == list(range(WORLD))
assert fabric.broadcast({"from": fabric.global_rank}) == {"from": 0}


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = network()

    def training_step(self, batch, _):
        loss = loss_of(self.model, batch)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return sgd(self.model)


module = Regression()
trainer = Trainer(
    accelerator="cpu",
    devices=WORLD,
    strategy=DDPStrategy(process_group_backend="tutti"),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=False,  # it would shuffle
)
sampler = DistributedSampler(examples, WORLD, fabric.global_rank, shuffle=False)
trainer.fit(module, DataLoader(examples, batch_size=8, sampler=sampler))
expect_close(module.model, "Trainer")
if fabric.global_rank == 0:
    print("all is well", flush=True)
torch.distributed.destroy_process_group()
