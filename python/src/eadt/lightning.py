"""``Trainer(callbacks=[EadtCallback()])`` for Lightning."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from lightning.pytorch.callbacks import Callback
from torch.nn.utils.rnn import PackedSequence

from .freeze import BlockFreezer, owner_of
from .training import Job, check_layers, quiet

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


class EadtCallback(Callback):  # type: ignore[misc]
    """Reports steps, samples and loss; takes directives up between steps, after a checkpoint if ``checkpoint_folder`` is given.

    ``samples_of``: the samples of a batch, where they are not the length of its first tensor.
    ``validation_loss``: the name by which the module logs it; else the first one of ``VALIDATION_LOSSES`` that it logs.
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
        check_layers(layers)
        self._samples_of = samples_of or batch_size
        self._validation_losses = VALIDATION_LOSSES if validation_loss is None else (validation_loss,)
        self._layers, self._options, self._folder = layers, options, checkpoint_folder
        self.job: Job | None = None
        #: Optimiser steps as the trainer counts them, those that it expects, and samples of the checkpoint that it goes on from.
        self._global_step = 0
        self._expected: float | None = None
        self._restored = 0.0
        #: Samples since the last step: with accumulated gradients those of several batches.
        self._samples = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps: the trainer counts steps and no samples."""
        return {} if self.job is None else {"samples_total": self.job.samples_total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = float(state_dict.get("samples_total", 0.0))

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
        self.job = Job(model, optimizers, freezer=freezer, **{"scaler": scaler, **self._options})
        # Batches of a step that an earlier training did not reach are no part of this one.
        self._global_step, self._samples = int(trainer.global_step), 0.0
        # The trainer counts the steps of all optimizers.
        self.job.steps_total = self._global_step // max(1, len(optimizers))
        self.job.samples_total, self._restored = self._restored, 0.0
        self._expected = _expected_steps(trainer)
        self.job.start(**self._remaining())

    @quiet
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        job = self.job
        # With accumulated gradients several batches are one step.
        if job is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
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
            if self._folder is not None:
                trainer.save_checkpoint(f"{self._folder}/eadt-{trainer.global_step}.ckpt")
            job.checkpointed()

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
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        metrics = trainer.callback_metrics
        loss = next((metrics[name] for name in self._validation_losses if name in metrics), None)
        if self.job is not None and loss is not None and not trainer.sanity_checking:
            self.job.evaluated(loss)

    @quiet
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.job is not None:
            self.job.close()

    @quiet
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.job is not None:
            self.job.close()


def _expected_steps(trainer: Any) -> float | None:
    """Returns the optimiser steps of the whole training; ``None`` if it has no end, or none that is known, or several optimizers."""
    if len(trainer.optimizers) != 1:
        return None
    try:
        steps = float(trainer.estimated_stepping_batches)
    except Exception:
        return None
    return steps if math.isfinite(steps) and steps > 0 else None


def _refusal_of_strategy(strategy: Any) -> str | None:
    name = type(strategy).__name__
    if "DeepSpeed" in name:
        return "DeepSpeed moves weights that do not require gradients: use eadt.deepspeed.wrap"
    model = getattr(strategy, "model", None)
    if model is None or "DDP" not in name:
        return None
    from .freeze import _refusal_of_wrapper

    return _refusal_of_wrapper(model)


def batch_size(batch: Any) -> int | None:
    """Returns the samples of a batch: the length of its first tensor, or of its first list of samples; ``None`` if it has none.

    A list of samples has texts, figures, or mappings or data classes of one kind.
    """
    for part in _parts(batch):
        if isinstance(part, PackedSequence):
            return int(part.batch_sizes[0])
        if len(getattr(part, "shape", ())) > 0:
            return int(part.shape[0])
    listed = next((part for part in _parts(batch) if isinstance(part, (list, tuple)) and part), None)
    return None if listed is None else len(listed)


def _parts(batch: Any) -> Iterator[Any]:
    """Yields what is inside a batch, in its order, and lists of samples as one."""
    if isinstance(batch, Mapping):
        inside = list(batch.values())
    elif _is_data_class(batch):
        inside = [getattr(batch, field.name, None) for field in dataclasses.fields(batch)]
    elif isinstance(batch, (list, tuple)) and not isinstance(batch, PackedSequence) and not _lists_samples(batch):
        inside = list(batch)
    else:
        yield batch
        return
    for entry in inside:
        yield from _parts(entry)


def _lists_samples(entries: Sequence[Any]) -> bool:
    """Returns whether each entry is a sample: texts and figures are, and mappings with the same keys or data classes of one type.

    Mappings with different keys are inputs and targets, as a loader collates them.
    """
    if all(isinstance(entry, (str, bytes, int, float)) for entry in entries):
        return True
    if all(isinstance(entry, Mapping) for entry in entries):
        return all(entry.keys() == entries[0].keys() for entry in entries)
    return all(_is_data_class(entry) and type(entry) is type(entries[0]) for entry in entries)


def _is_data_class(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
