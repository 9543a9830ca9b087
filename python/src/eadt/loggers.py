"""Known figures of a job for W&B, MLflow and TensorBoard: samples, steps, frozen blocks, joules, J/sample. What is unknown is not logged.

MLflow's server answers each point before its call returns, so that has a thread of its own: training waits for none of them.

The step of each point is the job's count of optimiser steps; of W&B, whose own count is of log calls, it is a figure beside them.
What a logger raises is logged once for each reason, and does not reach training.
"""

from __future__ import annotations

import atexit
import logging
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from .training import Job

logger = logging.getLogger("eadt")

#: Addresses of objects, which the texts of connection errors have: another one at each try.
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")

#: W&B runs in which ``eadt/steps_total`` is defined as the step.
_defined: weakref.WeakSet[Any] = weakref.WeakSet()


#: Points that wait for MLflow at most; further ones are dropped, with a warning.
WAITING_POINTS: Final = 1_000
#: How long the end of the process waits for the rest of them.
EXIT_SECONDS: Final = 10.0


class _BackgroundWriter:
    """Calls functions in order, in a thread that does not keep the process from ending."""

    def __init__(self) -> None:
        self._calls: queue.Queue[Callable[[], Any]] = queue.Queue(WAITING_POINTS)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, call: Callable[[], Any]) -> None:
        """Adds a call, which must not raise."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="eadt-loggers", daemon=True)
                self._thread.start()
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            raise OverflowError(f"{WAITING_POINTS} points wait for it, and further ones are dropped") from None

    def flush(self, seconds: float) -> bool:
        """Waits for the calls up to now; returns whether all of them were made."""
        if self._thread is None:
            return True
        done, end = threading.Event(), time.monotonic() + seconds
        try:
            self._calls.put(done.set, timeout=seconds)
        except queue.Full:
            return False
        return done.wait(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while True:
            self._calls.get()()


_mlflow = _BackgroundWriter()


@atexit.register
def _write_rest() -> None:
    if not flush(EXIT_SECONDS):
        logger.warning("EADT: some of the last figures are not in MLflow: its server did not answer within %.0f s", EXIT_SECONDS)


def flush(seconds: float = EXIT_SECONDS) -> bool:
    """Waits until MLflow has the points up to now, but not longer; returns whether it has them or refused them."""
    return _mlflow.flush(seconds)


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
    """Logs to MLflow's active run; give the module. Its names have no slash at the beginning and may have one inside.

    The points are written by a thread, in order; :func:`flush` waits for them, as does the end of the process for some seconds.
    """

    def put() -> None:
        # The active run is that of this thread.
        run = mlflow.active_run()
        if run is None:
            raise RuntimeError("no run is active: start one by mlflow.start_run()")
        figures, step, run_id = job.figures(), job.steps_total, run.info.run_id
        _mlflow.put(lambda: _write(job, "MLflow", lambda: mlflow.log_metrics(figures, step=step, run_id=run_id)))

    _write(job, "MLflow", put)


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
