"""A training by Lightning's Trainer with LanesStrategy, or by a loop. Prints the hash of the weights, which is the same for
both on any number of ranks. Its options are those of framework_lanes.py."""

import logging
import pathlib
import warnings

import torch
import tutti.torch
from framework_lanes import (
    BATCH,
    LANES,
    SEED,
    STEPS,
    Examples,
    Network,
    kill_if_asked,
    options,
    report,
    train_by_loop,
    wait_if_asked,
)
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader
from tutti.torch.lightning import LanesStrategy

logging.getLogger("lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Network()
        self.losses, self.norms = [], []

    def forward(self, **batch):
        return self.net(**batch)

    def training_step(self, batch):
        loss = self(**batch)["loss"]
        self.log("of these lanes", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch):
        self.log("validation", self(**batch)["loss"], sync_dist=True)

    def configure_optimizers(self):
        adamw = torch.optim.AdamW(self.parameters(), 1e-2)
        # The loss falls, so that this one lowers the rate after each epoch but the first.
        by_loss = torch.optim.lr_scheduler.ReduceLROnPlateau(adamw, "max", 0.7, patience=0)
        return [adamw], [
            {"scheduler": torch.optim.lr_scheduler.StepLR(adamw, 5), "interval": "step"},
            {"scheduler": torch.optim.lr_scheduler.ExponentialLR(adamw, 0.9), "interval": "epoch"},
            {"scheduler": by_loss, "interval": "epoch", "monitor": "loss"},
        ]

    def on_train_batch_start(self, batch, batch_idx):
        trainer = self.trainer
        assert batch == trainer.global_step == trainer.strategy.distributed_optimizer.lanes.step
        assert (trainer.current_epoch, batch_idx) == divmod(batch, STEPS)
        assert (trainer.global_rank, trainer.world_size) == (
            tutti.torch.world().rank,
            tutti.torch.world().world,
        )
        wait_if_asked(batch)

    def on_after_backward(self):
        kill_if_asked(self.trainer.global_step)

    def on_before_optimizer_step(self, optimizer):
        self.norms.append(sum(p.grad.square().sum().item() for p in self.parameters()))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        self.log("loss", outputs["loss"])


module = Regression()
if options.loop:
    [adamw], schedules = module.configure_optimizers()
    report(train_by_loop(module, adamw, *(each["scheduler"] for each in schedules)))
else:
    callbacks = [EarlyStopping("validation", patience=100)]
    if options.checkpoints:
        callbacks.append(ModelCheckpoint(options.checkpoints, save_last=True, every_n_train_steps=4))
    trainer = Trainer(
        accelerator="cpu",
        strategy=LanesStrategy(LANES, seed=SEED, folder=options.folder, save_every=4 if options.folder else 0),
        precision="bf16-mixed" if options.bf16 else "32-true",
        gradient_clip_val=1.0,
        max_epochs=options.epochs,
        max_steps=options.stop_after,
        val_check_interval=3,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=bool(options.checkpoints),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        module,
        DataLoader(Examples(), batch_size=BATCH, shuffle=True),
        DataLoader(Examples(noise=0), batch_size=20),
        ckpt_path=pathlib.Path(options.checkpoints, "last.ckpt") if options.resume else None,
    )
    opt = trainer.strategy.distributed_optimizer
    assert trainer.global_step == opt.lanes.step and len(module.losses) == len(module.norms) > 0
    best = trainer.early_stopping_callback.best_score.item()
    report(opt, *([] if options.kill else [sum(module.losses), sum(module.norms)]), module.losses[-1], best)
