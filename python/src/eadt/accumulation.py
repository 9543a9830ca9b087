"""A job of a loop that calls ``step`` for each micro-batch, where several of them make one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .training import Job


class AccumulatingJob(Job):
    """A job that adds micro-batches up, and counts a step where the optimizer makes one.

    ``made_step``: called by each ``step``; returns whether the optimizer made a step in this micro-batch. The same on every rank.
    Samples of micro-batches after the last step are not counted: their gradients reached no weights.
    """

    def __init__(self, *arguments: Any, made_step: Callable[[], bool], **options: Any) -> None:
        self._made_step = made_step
        #: Samples and fields of the micro-batches since the last step.
        self._gathered: list[Any] = []
        self._gathered_fields: dict[str, Any] = {}
        super().__init__(*arguments, **options)

    def step(self, samples: float = 0.0, *, loss: Any = None, **fields: Any) -> None:
        """Counts one micro-batch of this rank's ``samples``; the last one of a step reports it, with its loss. Else as in ``Job``."""
        try:
            is_step = self._made_step()
        except Exception as error:
            is_step = True
            self.client.note_failure(f"each micro-batch counts as a step: {error}")
        if is_step and not self._gathered:
            super().step(samples, loss=loss, **fields)
            return
        self._gathered.append(samples)
        self._gathered_fields.update(fields)
        if is_step:
            gathered, self._gathered = self._gathered, []
            gathered_fields, self._gathered_fields = self._gathered_fields, {}
            super().step(_sum(gathered), loss=loss, **gathered_fields)

    def checkpoint_due(self) -> bool:
        """Returns whether the job should write a checkpoint now. Never between the micro-batches of a step."""
        return not self._gathered and super().checkpoint_due()


def _sum(samples: Sequence[Any]) -> Any:
    """Returns the sum of numbers of samples; if one of them is no such number, that one, which the job refuses with its reason."""
    total = 0.0
    for given in samples:
        try:
            number = math.nan if isinstance(given, (str, bytes, bytearray)) else float(given)
        except Exception:
            return given
        if not (math.isfinite(number) and number >= 0):
            return given
        total += number
    return total
