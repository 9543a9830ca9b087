"""``Trainer(..., callbacks=[EadtCallback()])`` for Hugging Face transformers."""

from __future__ import annotations

import math
import re
from typing import Any

import transformers
from transformers import TrainerCallback

from .freeze import BlockFreezer
from .training import Job, check_layers, quiet


class EadtCallback(TrainerCallback):  # type: ignore[misc]
    """Reports steps, samples, loss and learning rate; freezes blocks when asked, at a checkpoint that it has written."""

    def __init__(self, layers: Any = "auto", **options: Any) -> None:
        check_layers(layers)
        self._layers, self._options = layers, options
        self.job: Job | None = None
        #: Samples of a step, and steps and samples of an epoch, if they are known.
        self._batch = 0
        self._epoch: tuple[int, float] | None = None
        #: Samples of all ranks up to the last step.
        self._samples = 0.0
        #: Steps that the gradient scaler skipped; ``None``: there is no scaler.
        self._skips: int | None = None

    @quiet
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A training that raised has no end of its own; another one begins.
        if self.job is not None:
            self.job.close()
        model = kwargs.get("model")
        optimizer = kwargs.get("optimizer")
        freezer = None
        if model is not None and self._layers is not None:
            blocks = None if isinstance(self._layers, str) else list(self._layers)
            optimizers = [optimizer] if optimizer is not None else []
            freezer = BlockFreezer(model, optimizers, blocks, lambda: _refusal_of_trainer(args, model))
        scaler = getattr(optimizer, "scaler", None)
        self._skips = None if scaler is None else 0
        self.job = Job(model, optimizer, freezer=freezer, **{"scaler": scaler, **self._options})
        # With several GPUs of one process, or a batch that was found by trying, it is not what the arguments say.
        batch = getattr(state, "train_batch_size", None) or args.train_batch_size
        self._batch = batch * args.gradient_accumulation_steps * _data_ranks(args)
        self._epoch = _epoch_of(kwargs.get("train_dataloader"), args, self._batch)
        # From a checkpoint on.
        self.job.steps_total = state.global_step
        self.job.samples_total = self._samples = self._samples_at(state.global_step)
        self.job.start(global_batch_size=self._batch, steps_remaining=max(0, state.max_steps - state.global_step))

    @quiet
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        job = self.job
        if job is None:
            return control
        scheduler = kwargs.get("lr_scheduler")
        samples = self._samples_at(state.global_step)
        rank_samples, self._samples = (samples - self._samples) / max(1, args.world_size), samples
        fields: dict[str, Any] = {
            "samples_total": samples,
            "steps_total": state.global_step,
            "steps_remaining": max(0, state.max_steps - state.global_step),
        }
        if state.epoch is not None:
            fields["epoch"] = state.epoch
        if state.num_input_tokens_seen:
            fields["tokens_total"] = float(state.num_input_tokens_seen)
        rate = _learning_rate(scheduler, kwargs.get("optimizer"))
        if rate is not None:
            fields["learning_rate"] = rate
        if self._skips is not None:
            self._skips += bool(getattr(kwargs.get("optimizer"), "step_was_skipped", False))
            fields["overflow_skips_total"] = self._skips
        job.step(rank_samples, **fields)
        if job.checkpoint_due():
            control.should_save = True
        return control

    def _samples_at(self, step: int) -> float:
        """Returns the samples of all ranks up to a step: the last one of an epoch has fewer where the data does not divide."""
        if self._epoch is None:
            return float(step * self._batch)
        steps, samples = self._epoch
        epochs, rest = divmod(step, steps)
        return epochs * samples + float(rest * self._batch)

    @quiet
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.job is None or not state.is_world_process_zero or not logs:
            return
        fields = {"loss": logs.get("loss"), "gradient_norm": logs.get("grad_norm")}
        known = {name: value for name, value in fields.items() if value is not None}
        if known:
            self.job.client.report(**known)

    @quiet
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if self.job is not None and metrics and "eval_loss" in metrics:
            self.job.evaluated(metrics["eval_loss"])

    @quiet
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.job is not None:
            self.job.checkpointed()

    @quiet
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.job is not None:
            self.job.close()


def _epoch_of(dataloader: Any, args: Any, batch: int) -> tuple[int, float] | None:
    """Returns the steps of an epoch and its samples; ``None`` if its length is not known, or ranks share their samples."""
    try:
        batches = len(dataloader)
    except Exception:
        return None
    accumulated = args.gradient_accumulation_steps
    if batches <= 0 or _data_ranks(args) != max(1, args.world_size):
        return None
    # Before 4.46 the trainer carries the batches after the last whole step into the next epoch: epochs then do not have the same steps.
    if batches % accumulated and not _steps_at_ends_of_epochs():
        return None
    samples = batches * batch / accumulated
    sampler = getattr(dataloader, "batch_sampler", None)
    # Of several ranks Accelerate fills the last batches up.
    if args.world_size <= 1 and not getattr(sampler, "drop_last", True):
        rows: Any = getattr(sampler, "sampler", None)
        given = len(rows) if hasattr(rows, "__len__") else samples
        if samples - batch / accumulated < given < samples:
            samples = float(given)
    return -(-batches // accumulated), samples


def _steps_at_ends_of_epochs() -> bool:
    """Returns whether this version of transformers makes a step of the last batches of an epoch, however few they are."""
    numbers = re.match(r"(\d+)\.(\d+)", str(transformers.__version__))
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= (4, 46)


def _data_ranks(args: Any) -> int:
    """Returns how many ranks have samples of their own: those of tensor, context and sequence parallelism share theirs."""
    config = getattr(args, "parallelism_config", None)
    sharing = math.prod(getattr(config, name, None) or 1 for name in ("tp_size", "cp_size", "sp_size"))
    return max(1, int(args.world_size // sharing))


def _learning_rate(scheduler: Any, optimizer: Any) -> float | None:
    """Returns the highest learning rate; ``None`` if it is not known yet: DeepSpeed's schedulers have none before their first step."""
    try:
        return float(max(scheduler.get_last_lr()))
    except Exception:
        groups = getattr(optimizer, "param_groups", None) or []
        return max((float(group["lr"]) for group in groups if "lr" in group), default=None)


def _refusal_of_trainer(args: Any, model: Any) -> str | None:
    """The trainer wraps the model where callbacks do not see it: its arguments tell how."""
    if getattr(args, "deepspeed", None):
        return "the trainer runs DeepSpeed, which moves weights that do not require gradients: train by eadt.deepspeed instead"
    if args.world_size <= 1 or getattr(args, "fsdp", None):
        return None
    unused = args.ddp_find_unused_parameters
    if unused is None:
        # As the trainer decides by itself.
        unused = not getattr(model, "is_gradient_checkpointing", False)
    return None if unused else "DDP waits for every gradient: set ddp_find_unused_parameters=True"
