"""``Trainer(callbacks=[EadtCallback()])`` for Lightning."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler

from .batches import batch_size
from .callbacks import ValidationLoss, check_options
from .directives import rank_and_world
from .freeze import BlockFreezer, give_back, owner_of
from .passed import MethodReplacement, first_failure_of, note_outcomes
from .training import Job, quiet, words

#: Names by which modules usually log the loss on data that they do not train on.
VALIDATION_LOSSES: Final = (
    "val_loss",
    "val/loss",
    "valid_loss",
    "valid/loss",
    "validation_loss",
    "validation/loss",
    "eval_loss",
    "eval/loss",
)


#: What Lightning adds to the name of a figure of the first of several validation loaders.
FIRST_LOADER: Final = "/dataloader_idx_0"


class EadtCallback(Callback):  # type: ignore[misc]
    """Reports steps, samples and loss; takes directives up between steps, after a checkpoint that it writes.

    ``checkpoint_folder``: where it writes them; else the folder of the trainer's ``ModelCheckpoint``, or ``checkpoints`` in its
    ``default_root_dir``.
    ``samples_of``: the samples of a batch, where they are not the length of its first tensor.
    ``validation_loss``: the name by which the module logs it; else the first one of ``VALIDATION_LOSSES`` that it logs, of several
    validation loaders that of the first.
    """

    def __init__(
        self,
        layers: Any = "auto",
        checkpoint_folder: str | None = None,
        *,
        samples_of: Callable[[Any], float] | None = None,
        validation_loss: str | None = None,
        **options: Any,
    ) -> None:
        check_options(layers, options, EadtCallback.__init__)
        self._samples_of = samples_of or batch_size
        self._validation_loss = ValidationLoss(validation_loss, _usual_loss)
        self._layers, self._options, self._folder = layers, options, checkpoint_folder
        self.job: Job | None = None
        #: The trainer while it trains.
        self._trainer: Any = None
        #: Optimiser steps as the trainer counts them, and those that it expects.
        self._global_step = 0
        self._expected: float | None = None
        #: What a checkpoint or an earlier training kept.
        self._kept: dict[str, Any] = {}
        #: Samples since the last step: with accumulated gradients those of several batches.
        self._samples = 0.0
        #: Whether a checkpoint was written that is not reported yet.
        self._is_saved = False
        #: Replaces what writes the trainer's checkpoints while it trains.
        self._saving: MethodReplacement | None = None
        #: The newest checkpoint for a directive, from the moment on at which it is written: it keeps its own path.
        self._written: str | None = None
        #: The batch that is trained on, with the batches that were started and processed before it.
        self._batch: tuple[Any, int, int] | None = None

    @quiet
    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps: the trainer counts no samples, and steps of all optimizers.

        With the samples of batches that have made no step yet: a training that goes on begins after them.
        """
        if self.job is None:
            return {}
        steps, pending = self.job.steps_total, self._samples
        if self._trainer is not None:
            steps += int(self._trainer.global_step) != self._global_step
            pending += self._samples_of_now(self._trainer)
        return {
            "samples_total": self.job.samples_total + self.job.of_all_ranks(pending),
            "steps_total": steps,
            "global_step": self._global_step if self._trainer is None else int(self._trainer.global_step),
            "checkpoint": self._written,
        }

    def _samples_of_now(self, trainer: Any) -> float:
        """Returns the samples of a batch that was trained on, and that ``on_train_batch_end`` of this callback does not know yet.

        Callbacks before this one write checkpoints then. A batch that is not through will be trained on again.
        """
        if self._batch is None:
            return 0.0
        batch, started, processed = self._batch
        progress = trainer.fit_loop.epoch_loop.batch_progress.total
        is_through = progress.started > started and progress.processed > processed
        return float(self._samples_of(batch) or 0.0) if is_through else 0.0

    @quiet
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._kept = dict(state_dict)

    @quiet
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # Before the module makes optimizers, which may take what trains alone.
        if stage == "fit":
            give_back(pl_module)

    @quiet
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        freezer = None
        optimizers = list(trainer.optimizers)
        if self._layers is not None:
            blocks = None if isinstance(self._layers, str) else list(self._layers)
            strategy = trainer.strategy
            freezer = BlockFreezer(pl_module, optimizers, blocks, lambda: _refusal_of_strategy(strategy))
        # A training that was not ended has none of its own; another one begins.
        if self.job is not None:
            self.job.close()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        # A module's own forward is often not what trains: what is called is the model inside. FSDP calls it from the outermost one only.
        is_sharded = "FSDP" in type(trainer.strategy).__name__
        owner = None if freezer is None or is_sharded else owner_of(pl_module, freezer.blocks)
        model = pl_module if owner is None else owner
        self.job = Job(model, optimizers, freezer=freezer, data_ranks=_data_ranks(trainer), **{"scaler": scaler, **self._options})
        self.job.precision_refusal = "Lightning fixes its precision at the start: restart with another precision of the Trainer"
        self._trainer, self._batch, self._is_saved = trainer, None, False
        self._stop_watching()
        self._saving = MethodReplacement(trainer.strategy, "save_checkpoint", self._make_save)
        self._global_step, self._samples = int(trainer.global_step), 0.0
        self._go_on(self.job, len(optimizers))
        self._expected = _expected_steps(trainer, pl_module)
        self.job.start(**self._remaining())

    def _go_on(self, job: Job, optimizers: int) -> None:
        """Takes steps and samples from a checkpoint, or from the training before, if the trainer goes on from there."""
        kept, self._kept = self._kept, {}
        if kept.get("global_step", self._global_step) != self._global_step:
            kept = {}
        # Checkpoints of older versions have no steps. The trainer counts those of all optimizers.
        job.steps_total = kept.get("steps_total", self._global_step // max(1, optimizers))
        job.samples_total = kept.get("samples_total", 0.0)
        self._written = kept.get("checkpoint")

    @quiet
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._report_saved()
        progress = trainer.fit_loop.epoch_loop.batch_progress.total
        self._batch = (batch, progress.started, progress.processed)

    @quiet
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        job = self.job
        self._batch = None
        # With accumulated gradients several batches are one step.
        if job is None:
            return
        self._validation_loss.warn_if_missing()
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        accumulated = int(trainer.accumulate_grad_batches)
        if loss is not None and accumulated > 1:
            loss = _Multiple(loss, accumulated)
        self._count(job, batch)
        if trainer.global_step == self._global_step:
            return
        self._global_step = int(trainer.global_step)
        samples, self._samples = self._samples, 0.0
        rate = max((group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups), default=None)
        fields = self._remaining()
        if rate is not None:
            fields["learning_rate"] = rate
        job.step(samples, loss=loss, epoch=float(trainer.current_epoch), **fields)
        if job.checkpoint_due():
            self._checkpoint(trainer, job)

    def _checkpoint(self, trainer: Any, job: Job) -> None:
        """Writes the checkpoint that a directive waits for, in the place of the one before it."""
        path = _checkpoint_path(trainer, self._folder)
        is_new = not os.path.exists(path)
        before, self._written = self._written, path
        failure = job.first_failure(lambda: _write_checkpoint(trainer, path))
        self._is_saved = False
        if failure is None:
            # A training that goes on elsewhere leaves the earlier one its own.
            if before is not None and before != path and os.path.dirname(before) == os.path.dirname(path):
                _remove_checkpoint(trainer, before)
            job.checkpointed()
            return
        self._written = before
        if is_new:
            # A part of it is no checkpoint.
            _remove_checkpoint(trainer, path)
        job.checkpoint_failed(failure)

    def _make_save(self, save: Any) -> Any:
        def save_and_note(*arguments: Any, **options: Any) -> None:
            save(*arguments, **options)
            content = options["checkpoint"] if "checkpoint" in options else next(iter(arguments), None)
            # No training goes on from one with the weights alone.
            self._is_saved |= isinstance(content, dict) and "optimizer_states" in content

        return save_and_note

    def _stop_watching(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.close()

    def _report_saved(self) -> None:
        """Reports a checkpoint that another callback or the loop wrote."""
        is_saved, self._is_saved = self._is_saved, False
        if is_saved and self.job is not None:
            self.job.mark_checkpoint()

    def _count(self, job: Job, batch: Any) -> None:
        """Adds the samples of a batch; what keeps them from being counted does not keep the step from being reported."""
        try:
            samples = self._samples_of(batch)
            if samples is None:
                kind = type(batch).__name__
                raise TypeError(f"a batch of the type {kind} has no tensor: give EadtCallback(samples_of=lambda batch: ...)")
            self._samples += float(samples)
        except Exception as error:
            job.client.note_failure(f"samples of a batch are not counted: {error}")

    def _remaining(self) -> dict[str, Any]:
        """Returns the steps that are left, if the trainer knows how many there are."""
        return {} if self._expected is None else {"steps_remaining": max(0.0, self._expected - self._global_step)}

    @quiet
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        # Validation may take long.
        if self._trainer is not None:
            self._report_saved()

    @quiet
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        # After the training, `validate` evaluates what is no job any more.
        if self.job is None or self._trainer is None or trainer.sanity_checking:
            return
        loss = self._validation_loss.of(trainer.callback_metrics)
        if loss is not None:
            self.job.evaluated(loss)

    @quiet
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._report_saved()
        self._end()

    @quiet
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end()

    def _end(self) -> None:
        if self.job is None:
            return
        if self._trainer is not None:
            self._validation_loss.warn_if_missing()
            # The same trainer may go on.
            kept = self.state_dict() or {}
            self._kept = kept if kept.get("global_step") else {}
        self._trainer = self._batch = None
        self._stop_watching()
        self.job.close()


class _Multiple:
    """A multiple of a loss, which is computed where it is read: Lightning divides losses by the batches of a step."""

    def __init__(self, loss: Any, times: int) -> None:
        self._loss, self._times = loss, times

    def __float__(self) -> float:
        return float(self._loss) * self._times


def _data_ranks(trainer: Any) -> int | None:
    """Returns how many ranks have samples of their own, as Lightning's own sampler has it; ``None``: not known."""
    try:
        return max(1, int(trainer.distributed_sampler_kwargs["num_replicas"]))
    except Exception:
        # The strategy is for one process, or another package's.
        return None


def _checkpoint_path(trainer: Any, folder: str | None) -> str:
    """Returns where the checkpoint of this step goes. In the folder of the trainer's own, ``ckpt_path="last"`` finds it."""
    if folder is None:
        folder = getattr(trainer.checkpoint_callback, "dirpath", None) or os.path.join(trainer.default_root_dir, "checkpoints")
    return os.path.join(folder, f"last-eadt-{trainer.global_step}.ckpt")


def _remove_checkpoint(trainer: Any, path: str | None) -> None:
    with contextlib.suppress(Exception):
        trainer.strategy.remove_checkpoint(path)


def _write_checkpoint(trainer: Any, path: str) -> str | None:
    """Writes a checkpoint; returns why that failed. A rank that cannot write it comes all the same to where the others wait for it.

    Strategies whose ranks write together (FSDP, DeepSpeed) may wait inside for one that fails.
    """
    outcomes: list[str | None] = []
    replaced = note_outcomes(trainer.strategy, "save_checkpoint", outcomes)
    try:
        trainer.save_checkpoint(path)
    except Exception as error:
        # What it keeps could not be collected, for instance by the module's own `on_save_checkpoint`.
        is_reached = bool(outcomes)
        outcomes.append(words(error))
        if not is_reached:
            trainer.strategy.barrier("Trainer.save_checkpoint")
    finally:
        replaced.close()
    return first_failure_of(outcomes)


def _usual_loss(names: Iterable[str]) -> str | None:
    """Returns the first of ``VALIDATION_LOSSES`` among the names of figures, of several loaders that of the first."""
    wanted = [name + suffix for name in VALIDATION_LOSSES for suffix in ("", FIRST_LOADER)]
    known = set(names)
    return next((name for name in wanted if name in known), None)


def _expected_steps(trainer: Any, module: Any) -> float | None:
    """Returns the optimiser steps of the whole training; ``None`` if it has no end that is known, or the module makes its steps itself."""
    if len(trainer.optimizers) != 1 or not module.automatic_optimization:
        return None
    try:
        steps = float(trainer.estimated_stepping_batches)
        schedules = [one for one in trainer.callbacks if isinstance(one, GradientAccumulationScheduler)]
        if schedules and trainer.max_epochs != -1 and math.isfinite(trainer.num_training_batches):
            # The trainer takes the accumulation of now for all epochs.
            accumulations = map(schedules[-1].get_accumulate_grad_batches, range(trainer.max_epochs))
            steps = float(sum(math.ceil(trainer.num_training_batches / count) for count in accumulations))
            if trainer.max_steps != -1:
                steps = min(steps, float(trainer.max_steps))
    except Exception:
        return None
    return steps if math.isfinite(steps) and steps > 0 else None


def _refusal_of_strategy(strategy: Any) -> str | None:
    name = type(strategy).__name__
    if "DeepSpeed" in name:
        return "DeepSpeed moves weights that do not require gradients: use eadt.deepspeed.wrap"
    model = getattr(strategy, "model", None)
    ranks = rank_and_world()
    if "DDP" not in name and "FSDP" not in name and ranks is not None and ranks[1] > 1:
        return f"{name} exchanges gradients between ranks in a way that is not known: use DDP or FSDP"
    if model is None or "DDP" not in name:
        return None
    from .freeze import _refusal_of_wrapper

    return _refusal_of_wrapper(model)
