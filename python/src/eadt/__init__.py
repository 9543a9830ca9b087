"""Training progress and directives for EADT.

A training job reports what it gets done, and receives what to change: precision, frozen layers, a checkpoint. Nothing here raises into
training or waits for the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import Client
from .events import event_precision
from .measure import Measurement, measure

if TYPE_CHECKING:
    from .training import Job

__all__ = ["Client", "Measurement", "event_precision", "job", "measure"]
__version__ = "0.1.0"


def job(model: Any = None, optimizer: Any = None, **options: Any) -> Job:
    """Returns a job of a plain training loop: ``with eadt.job(model, optimizer, layers="auto") as job: ...``.

    The options, with their units, are those of :class:`eadt.training.Job`.
    """
    from .training import Job

    return Job(model, optimizer, **options)
