"""Replaces methods of a trainer while it trains, in its own process.

Of Hugging Face's, the batches that it trains on are counted: a loader's batch size is not that of each batch. And it is noticed that a
training raises, for which callbacks have no event. A checkpoint that only a directive asks for does not end it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from .batches import batch_size
from .training import words

#: What the loop of a trainer calls between steps, and nothing else does: loading batches, logging, evaluating and saving.
BETWEEN_STEPS: Final = ("get_batch_samples", "_maybe_log_save_evaluate")
#: Events that the loop alone reports to callbacks.
LOOP_EVENTS: Final = frozenset(
    {
        "on_epoch_begin",
        "on_epoch_end",
        "on_optimizer_step",
        "on_pre_optimizer_step",
        "on_step_begin",
        "on_step_end",
        "on_substep_end",
        "on_train_end",
    }
)


class MethodReplacement:
    """Replaces a method of an object until it is closed. ``make``: returns what is called instead of the method that it is given."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name = owner, name
        #: The method, and whether an attribute of the object had it.
        self._method = getattr(owner, name)
        self._was_attribute = name in vars(owner)
        self._replacement = make(self._method)
        setattr(owner, name, self._replacement)

    def close(self) -> None:
        """Gives the object its own method back, unless other code replaced it meanwhile."""
        if vars(self._owner).get(self._name) is not self._replacement:
            return
        if self._was_attribute:
            setattr(self._owner, self._name, self._method)
        else:
            delattr(self._owner, self._name)


def note_outcomes(owner: Any, name: str, outcomes: list[str | None]) -> MethodReplacement:
    """Has each call of a method add why it failed, or ``None``, instead of raising."""

    def make(method: Any) -> Any:
        def call_and_note(*arguments: Any, **options: Any) -> None:
            try:
                method(*arguments, **options)
            except Exception as error:
                outcomes.append(words(error))
            else:
                outcomes.append(None)

        return call_and_note

    return MethodReplacement(owner, name, make)


def first_failure_of(outcomes: list[str | None]) -> str | None:
    """Returns the first of them that is a failure."""
    return next((failure for failure in outcomes if failure is not None), None)


def watch_loop(trainer: Any, on_error: Callable[[], None]) -> list[MethodReplacement]:
    """Has ``on_error`` called if what the trainer does between two steps raises, also a callback. A trainer may not have all of it."""

    def of_loop(method: Any) -> Any:
        return _with_error(method, on_error, lambda _: True)

    def of_callbacks(method: Any) -> Any:
        return _with_error(method, on_error, lambda event: event in LOOP_EVENTS)

    places = [(trainer, name, of_loop) for name in BETWEEN_STEPS]
    places.append((getattr(trainer, "callback_handler", None), "call_event", of_callbacks))
    return [MethodReplacement(owner, name, make) for owner, name, make in places if callable(getattr(owner, name, None))]


def _with_error(method: Any, on_error: Callable[[], None], counts: Callable[[Any], bool]) -> Any:
    """Returns a method that calls ``on_error`` if it raises, where its first argument ``counts``."""

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except BaseException:
            if counts(arguments[0] if arguments else options.get("event")):
                on_error()
            raise

    return call


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
        self._replaced = MethodReplacement(trainer, "training_step", self._make_step)

    @property
    def samples(self) -> int | None:
        """Samples of this rank that were trained on; ``None``: batches do not have a row for each, as where a collator joins them."""
        return None if self._has_rows is False else self._rows

    def close(self) -> None:
        """Gives the trainer its own ``training_step`` back, unless other code replaced it meanwhile."""
        self._replaced.close()

    def _make_step(self, step: Any) -> Any:
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
