"""Known figures of a job for W&B, MLflow and TensorBoard: samples, steps, frozen blocks, joules, J/sample. What is unknown is not logged.

The step of each point is the job's count of optimiser steps.
"""

from __future__ import annotations

from typing import Any

from .training import Job


def to_wandb(job: Job, run: Any) -> None:
    """Logs to a W&B run (``wandb.init()``)."""
    run.log(job.figures(), step=job.steps_total)


def to_mlflow(job: Job, mlflow: Any) -> None:
    """Logs to MLflow's active run; give the module. Its names have no slash at the beginning and may have one inside."""
    mlflow.log_metrics(job.figures(), step=job.steps_total)


def to_tensorboard(job: Job, writer: Any) -> None:
    """Logs to a ``SummaryWriter``."""
    for name, value in job.figures().items():
        writer.add_scalar(name, value, job.steps_total)
