"""What Trainers of Lightning and Transformers cannot do with lanes is an error that says what to do instead.
Usage: framework_mistakes_program.py FOLDER"""

import logging
import pathlib
import sys
import warnings

import numpy
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    LearningRateFinder,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset
from tutti.torch.lightning import LanesStrategy
from tutti.torch.transformers import LanesArguments, LanesTrainer

import tutti

folder = pathlib.Path(sys.argv[1])
data = TensorDataset(torch.arange(90.0).reshape(30, 3) / 90, torch.ones(30, 1))
logging.getLogger("lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


def expect(part, call, kind=tutti.InvalidArgument):
    try:
        call()
    except kind as error:
        assert part in str(error), error
    else:
        sys.exit(f"no error with '{part}'")


# Lightning.


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Manual(Regression):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Gathers(Regression):
    def training_step(self, batch):
        return self.all_gather(super().training_step(batch)).mean()


class ReturnsNothing(Regression):
    def training_step(self, batch):
        pass


class TransfersBefore(Regression):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch


class Transfers(Regression):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        assert len(batch[0]) == 5
        return batch


class DrawsBatches(Regression):
    def training_step(self, dataloader_iter):
        return super().training_step(next(dataloader_iter)[0])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(data)


class Counts(Callback):
    """Keeps a number of NumPy, from the second step on."""

    best = 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.best = numpy.float64(trainer.global_step)

    def state_dict(self):
        return {"best": self.best}


def trainer_of(lanes=4, strategy=None, **options):
    given = {"accelerator": "cpu", "max_epochs": 2, "logger": False, "enable_checkpointing": False}
    given.update(enable_progress_bar=False, enable_model_summary=False)
    return Trainer(strategy=LanesStrategy(lanes, **(strategy or {})), **{**given, **options})


def fit(module=None, loader=None, ckpt_path=None, **options):
    module, trainer = module or Regression(), trainer_of(**options)
    trainer.fit(module, DataLoader(data, batch_size=5) if loader is None else loader, ckpt_path=ckpt_path)
    return trainer


expect("0 lanes", lambda: fit(lanes=0))
expect("automatic optimization", lambda: fit(Manual()))
expect("all_gather()", lambda: fit(Gathers()))
expect("returned a NoneType for lane 0", lambda: fit(ReturnsNothing()))
expect("on_after_batch_transfer", lambda: fit(TransfersBefore()))
expect("accumulate_grad_batches=", lambda: fit(accumulate_grad_batches=2))
expect("torch.utils.data.Subset", lambda: fit(limit_train_batches=1))
expect("torch.utils.data.Subset", lambda: fit(overfit_batches=1))
expect("reload_dataloaders_every_n_epochs=", lambda: fit(reload_dataloaders_every_n_epochs=1))
expect("scales the loss", lambda: fit(plugins=[MixedPrecision("16-mixed", "cpu")]))
expect("max_steps=", lambda: fit(callbacks=[Timer("00:00:01:00")]))
expect("on_save_checkpoint", lambda: fit(callbacks=[EMAWeightAveraging()]))
expect("inside of an epoch", lambda: fit(callbacks=[StochasticWeightAveraging(1e-3)]))
expect("sampler of its own", lambda: fit(loader=DataLoader(data, 5, sampler=RandomSampler(data, replacement=True))))
expect("sampler of its own", lambda: fit(loader=DataLoader(data, batch_sampler=[[0, 1], [2]])))
expect("expected one torch.utils.data.DataLoader", lambda: fit(loader=[torch.ones(1)]))
expect("needs a length", lambda: fit(loader=DataLoader(Stream(), 5)))
expect("devices=2", lambda: fit(devices=2))
expect("num_nodes=2", lambda: fit(num_nodes=2))
fit(devices=1)
expect("take a batch", lambda: fit(DrawsBatches()))
expect("without lanes", lambda: fit(callbacks=[LearningRateFinder()]))
expect("without lanes", lambda: Tuner(trainer_of()).lr_find(Regression(), DataLoader(data, 5)))
expect(
    "['callbacks']['Counts']['best'] is a numpy.float64",
    lambda: fit(callbacks=[Counts()], strategy={"folder": folder / "numpy"}),
)
expect("without a folder", lambda: fit(strategy={"save_every": 2}))
expect("one training DataLoader", lambda: fit(loader=[DataLoader(data, 5), DataLoader(data, 5)]))

fit(Transfers(), max_epochs=1, loader=DataLoader(data, 5, drop_last=True))
fit(fast_dev_run=True)
by_value = fit(gradient_clip_val=1e-3, gradient_clip_algorithm="value").strategy.distributed_optimizer
assert by_value.sha256() != fit().strategy.distributed_optimizer.sha256()
assert all(group["params"][0].grad is None for group in by_value.param_groups)
kept = {"folder": folder / "lightning"}
whole = fit(strategy=kept, max_epochs=2)
assert fit(strategy=kept, max_epochs=2).global_step == whole.global_step == 4
whole.save_checkpoint(folder / "of-step-4.ckpt")
assert fit(strategy=kept, ckpt_path=folder / "of-step-4.ckpt", max_epochs=3).global_step == 6
expect("leave ckpt_path out", lambda: fit(strategy=kept, ckpt_path=folder / "of-step-4.ckpt", max_epochs=4))
expect("batch=5", lambda: fit(strategy=kept, loader=DataLoader(data, batch_size=3)))

# Transformers.


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Linear(3, 1)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.net(x), labels)}


def train(resume=None, **options):
    given = {"lanes": 4, "per_device_train_batch_size": 5, "use_cpu": True, "num_train_epochs": 2}
    given.update(report_to="none", disable_tqdm=True, save_strategy="no")
    arguments = LanesArguments(str(folder / "out"), **{**given, **options})
    trainer = LanesTrainer(Network(), arguments, train_dataset=[{"x": x, "labels": y} for x, y in data])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


expect("such as lanes=8", lambda: train(lanes=0))
expect("without lanes_folder=", lambda: train(lanes_save_every=2))
expect("gradient_accumulation_steps=", lambda: train(gradient_accumulation_steps=2))
expect("bf16=True", lambda: train(fp16=True))
expect("train_sampling_strategy='group_by_length'", lambda: train(train_sampling_strategy="group_by_length"))
expect("auto_find_batch_size=", lambda: train(auto_find_batch_size=True))
best = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}
expect("state.best_model_checkpoint", lambda: train(**best))
plain = LanesArguments.__mro__[1](str(folder / "out"), use_cpu=True)
expect("LanesArguments", lambda: LanesTrainer(Network(), plain, train_dataset=data))


class DrawsItself(LanesTrainer):
    def _get_train_sampler(self, dataset):
        return RandomSampler(dataset, replacement=True)


lanes = LanesArguments(str(folder / "out"), lanes=4, use_cpu=True)
expect("draw the examples themselves", lambda: DrawsItself(Network(), lanes, train_dataset=data))
kept = {"lanes_folder": str(folder / "transformers"), "save_strategy": "epoch"}
assert train(**kept).state.global_step == train(**kept).state.global_step == 4
expect("leave it out", lambda: train(resume=str(folder / "out" / "checkpoint-2"), **kept, num_train_epochs=3))
print("all is well", flush=True)
