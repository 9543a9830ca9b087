"""A job of a loop with Hugging Face Accelerate: what ``prepare`` made is looked through, and its scaler is known."""

from __future__ import annotations

from typing import Any

from .accumulation import AccumulatingJob
from .batches import ranks_with_samples
from .training import Job


def job(accelerator: Any, model: Any, optimizer: Any, *, layers: Any = "auto", **options: Any) -> Job:
    """Returns a job of what ``accelerator.prepare`` returned. Precision is Accelerate's: it is reported, and not changed.

    Where ``accelerator.accumulate`` accumulates gradients, call ``job.step`` for each micro-batch, or for each optimizer step.
    """
    scaler = getattr(accelerator, "scaler", None)
    parallelism = getattr(accelerator, "parallelism_config", None)
    # Without it all have their own, also if there are more later.
    ranks = None if parallelism is None else ranks_with_samples(accelerator.num_processes, parallelism)
    made = AccumulatingJob(
        model,
        optimizer,
        made_step=lambda: bool(accelerator.sync_gradients),
        layers=layers,
        scaler=scaler,
        precision=None,
        **{"data_ranks": ranks, **options},
    )
    refusal = (
        "Accelerate was started in BF16 and has no gradient scaler: restart with mixed_precision='fp16'"
        if accelerator.mixed_precision == "bf16"
        else "Accelerate fixes its precision at the start: restart with another mixed_precision"
    )
    made.precision_refusal = refusal
    return made
