"""Known figures of a job for W&B, MLflow and TensorBoard: samples, steps, frozen blocks, joules, J/sample. What is unknown is not logged.

The step of each point is the job's count of optimiser steps; of W&B, whose own count is of log calls, it is a figure beside them.
What a logger raises is logged once for each reason, and does not reach training.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable
from typing import Any

from .training import Job

logger = logging.getLogger("eadt")

#: Addresses of objects, which the texts of connection errors have: another one at each try.
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")

#: W&B runs in which ``eadt/steps_total`` is defined as the step.
_defined: weakref.WeakSet[Any] = weakref.WeakSet()


def to_wandb(job: Job, run: Any, commit: bool = False) -> None:
    """Logs to a W&B run (``wandb.init()``), in the row of the loop's own figures; later figures replace earlier ones of the same row.

    The row is ended by the loop, when it logs to the next one. In a loop that logs nothing itself ``commit=True`` ends it.
    """

    def write() -> None:
        if run not in _defined:
            run.define_metric("eadt/*", step_metric="eadt/steps_total")
            _defined.add(run)
        # A row that is ended here has W&B drop what the loop logs to it later.
        run.log(job.figures(), commit=commit)

    _write(job, "W&B", write)


def to_mlflow(job: Job, mlflow: Any) -> None:
    """Logs to MLflow's active run; give the module. Its names have no slash at the beginning and may have one inside."""
    _write(job, "MLflow", lambda: mlflow.log_metrics(job.figures(), step=job.steps_total))


def to_tensorboard(job: Job, writer: Any) -> None:
    """Logs to a ``SummaryWriter``."""

    def write() -> None:
        for name, value in job.figures().items():
            writer.add_scalar(name, value, job.steps_total)

    _write(job, "TensorBoard", write)


def _write(job: Job, name: str, write: Callable[[], Any]) -> None:
    try:
        write()
    except Exception as error:
        text = str(error) or type(error).__name__
        reason = _ADDRESS.sub("", text)
        if job.logger_failures.get(name) != reason:
            job.logger_failures[name] = reason
            logger.warning("EADT: the figures of %s are not in %s: %s", job.client.workload, name, text)
