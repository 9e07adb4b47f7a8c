"""A training by LanesTrainer, or by a loop. Prints the hash of the weights, which is the same for both on any number of ranks.
Its options are those of framework_lanes.py."""

import tempfile

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
from transformers import EarlyStoppingCallback, TrainerCallback, get_scheduler
from tutti.torch.transformers import LanesArguments, LanesTrainer


class Watch(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        assert trainer.distributed_optimizer.lanes.step == state.global_step or options.resume
        assert (args.process_index, args.world_size) == (tutti.torch.world().rank, tutti.torch.world().world)
        wait_if_asked(state.global_step)

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop |= options.stop_after == state.global_step

    def on_log(self, args, state, control, **_):
        assert state.epoch == state.global_step / STEPS


class Trainer(LanesTrainer):
    def compute_loss(self, model, inputs, *arguments, **named):
        if model.training:
            kill_if_asked(self.state.global_step)
        return super().compute_loss(model, inputs, *arguments, **named)


net = Network()
adamw = torch.optim.AdamW(net.parameters(), 1e-2)
schedule = get_scheduler("linear", adamw, num_warmup_steps=2, num_training_steps=STEPS * options.epochs)
if options.loop:
    report(train_by_loop(net, adamw, schedule))
else:
    arguments = LanesArguments(
        options.checkpoints or tempfile.mkdtemp(),
        lanes=LANES,
        lanes_folder=options.folder,
        lanes_save_every=4 if options.folder else 0,
        use_cpu=True,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=BATCH,
        seed=SEED,
        bf16=options.bf16,
        max_grad_norm=1.0,
        lr_scheduler_type="linear",
        warmup_steps=2,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps" if options.checkpoints else "no",
        save_steps=4,
        metric_for_best_model="eval_loss",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        net,
        arguments,
        train_dataset=Examples(),
        eval_dataset=Examples(noise=0),
        optimizers=(adamw, schedule if options.bf16 else None),
        callbacks=[Watch(), EarlyStoppingCallback(100)],
    )
    trainer.train(resume_from_checkpoint=options.resume)
    logged = [each[name] for each in trainer.state.log_history for name in ("loss", "grad_norm") if name in each]
    report(trainer.distributed_optimizer, *([] if options.kill else logged), trainer.state.best_metric)
