"""Counts the batches that a Hugging Face trainer trains on, in its own process: a loader's batch size is not that of each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .batches import batch_size


class PassedBatches:
    """Stands before ``trainer.training_step``, which is called with each batch that is trained on, and with no other.

    ``loaded``: the samples that the loader takes for a batch of this rank; ``None``: not known. ``on_error``: called if a step raises.
    """

    def __init__(self, trainer: Any, main_input: str | None, loaded: int | None, on_error: Callable[[], None] = lambda: None) -> None:
        self.batches = 0
        self._rows = 0
        self._main_input, self._loaded, self._on_error = main_input, loaded, on_error
        #: Whether a batch has a row for each sample; ``None``: there was no batch yet.
        self._has_rows: bool | None = None
        self._trainer = trainer
        #: What this class replaces, and whether an attribute of the trainer had it.
        self._step = trainer.training_step
        self._was_attribute = "training_step" in vars(trainer)
        self._counting_step = self._make_step()
        trainer.training_step = self._counting_step

    @property
    def samples(self) -> int | None:
        """Samples of this rank that were trained on; ``None``: batches do not have a row for each, as where a collator joins them."""
        return None if self._has_rows is False else self._rows

    def close(self) -> None:
        """Gives the trainer its own ``training_step`` back, unless somebody else replaced it meanwhile."""
        trainer = self._trainer
        if vars(trainer).get("training_step") is not self._counting_step:
            return
        if self._was_attribute:
            trainer.training_step = self._step
        else:
            del trainer.training_step

    def _make_step(self) -> Any:
        step = self._step

        def training_step(*arguments: Any, **options: Any) -> Any:
            # Steps may take entries out of it.
            rows = self._rows_of(options["inputs"] if "inputs" in options else arguments[1] if len(arguments) > 1 else None)
            try:
                result = step(*arguments, **options)
            except BaseException:
                self._on_error()
                raise
            self._count(rows)
            return result

        return training_step

    def _rows_of(self, batch: Any) -> int | None:
        try:
            main = batch.get(self._main_input) if isinstance(batch, Mapping) else None
            rows = batch_size(batch if main is None else main)
            return batch_size(batch) if rows is None else rows
        except Exception:
            return None

    def _count(self, rows: int | None) -> None:
        self.batches += 1
        if self._has_rows is None:
            self._has_rows = self._fits(rows)
        if rows is None:
            # Not even a guess, if the loader has no size.
            self._has_rows = self._has_rows and self._loaded is not None
            rows = self._loaded or 0
        self._rows += rows

    def _fits(self, rows: int | None) -> bool:
        """Returns whether the first batch has a row for each sample: one that is not full may be the only one, or some were left out.

        One row may be all samples of the batch in a line, and more rows than samples are several of each.
        """
        if rows is None or self._loaded is None:
            return rows is not None
        return rows == self._loaded or 1 < rows < self._loaded
