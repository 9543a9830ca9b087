"""``Trainer(callbacks=[EadtCallback()])`` for Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from .freeze import BlockFreezer
from .training import Job


class EadtCallback(Callback):  # type: ignore[misc]
    """Reports steps, samples and loss; takes directives up between steps, after a checkpoint if ``checkpoint_folder`` is given."""

    def __init__(self, layers: Any = "auto", checkpoint_folder: str | None = None, **options: Any) -> None:
        self._layers, self._options, self._folder = layers, options, checkpoint_folder
        self.job: Job | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        freezer = None
        optimizers = list(trainer.optimizers)
        if self._layers is not None:
            blocks = None if isinstance(self._layers, str) else list(self._layers)
            strategy = trainer.strategy
            freezer = BlockFreezer(pl_module, optimizers, blocks, lambda: _refusal_of_strategy(strategy))
        self.job = Job(pl_module, optimizers, freezer=freezer, **self._options)
        self.job.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        job = self.job
        # With accumulated gradients several batches are one step.
        if job is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        samples = _batch_size(batch)
        if trainer.global_step == job.steps_total:
            job.samples_total += samples * max(1, trainer.world_size)
            return
        rate = max((group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups), default=None)
        fields = {} if rate is None else {"learning_rate": rate}
        job.step(samples, loss=loss, epoch=float(trainer.current_epoch), **fields)
        if job.checkpoint_due():
            if self._folder is not None:
                trainer.save_checkpoint(f"{self._folder}/eadt-{trainer.global_step}.ckpt")
            job.checkpointed()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        loss = trainer.callback_metrics.get("val_loss")
        if self.job is not None and loss is not None and not trainer.sanity_checking:
            self.job.evaluated(loss)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.job is not None:
            self.job.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.job is not None:
            self.job.close()


def _refusal_of_strategy(strategy: Any) -> str | None:
    name = type(strategy).__name__
    if "DeepSpeed" in name:
        return "DeepSpeed moves weights that do not require gradients: use eadt.deepspeed.wrap"
    model = getattr(strategy, "model", None)
    if model is None or "DDP" not in name:
        return None
    from .freeze import _refusal_of_wrapper

    return _refusal_of_wrapper(model)


def _batch_size(batch: Any) -> int:
    """Returns the samples of a batch: the length of its first tensor."""
    if hasattr(batch, "shape") and len(batch.shape) > 0:
        return int(batch.shape[0])
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and batch:
        return _batch_size(batch[0])
    return 0
