"""The real W&B, MLflow, TensorBoard and IPython: what is known is there, what is unknown is not."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_ENABLE_ASYNC_LOGGING="false", MLFLOW_ALLOW_FILE_STORE="true")

import logging

import eadt
from eadt import loggers
from eadt.training import Job, quiet
from tests.servers import absent_url, wait_for


def rows_of_wandb(path: Path) -> list[dict[str, float]]:
    """Reads what a run without a server has on disk: blocks of 32 KiB, records with checksum, length and part, as LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, text = path.read_bytes(), 7, b""
    logged: list[dict[str, float]] = []
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, part = struct.unpack_from("<HB", data, position + 4)
        text += data[position + 7 : position + 7 + length]
        position += 7 + length
        if part in (1, 4):
            record, text = Record.FromString(text), b""
            row = {[item.key, *item.nested_key][-1]: json.loads(item.value_json) for item in record.history.item}
            logged.append({name: value for name, value in row.items() if not name.startswith("_")})
    return [row for row in logged if row]


def logged_by_wandb(path: Path) -> dict[str, float]:
    """Returns the last figures of this package in such a run."""
    return {name: value for row in rows_of_wandb(path) for name, value in row.items() if name.startswith("eadt/")}


logging.getLogger("eadt").setLevel(logging.CRITICAL)


class TestLoggers(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def job(self, joules: float | None) -> Job:
        """Returns a job that has ended, with this energy."""
        job = eadt.job(workload="n/a", url=absent_url())
        with job:
            for _ in range(5):
                job.step(samples=8)
        job.energy.joules, job.energy.reason = joules, None if joules is not None else "there is no NVIDIA driver"
        return job

    def check(self, known: dict[str, float], unknown: dict[str, float]) -> None:
        self.assertEqual(known, {"eadt/samples_total": 40.0, "eadt/steps_total": 5.0, "eadt/joules": 20.0, "eadt/joules_per_sample": 0.5})
        self.assertEqual(unknown, {"eadt/samples_total": 40.0, "eadt/steps_total": 5.0})

    def test_wandb(self) -> None:
        import wandb

        logged = []
        for joules in (20.0, None):
            with wandb.init(project="eadt", dir=self.folder) as run:
                loggers.to_wandb(self.job(joules), run)
            [path] = Path(self.folder).rglob(f"*{run.id}.wandb")
            # Another process writes it.
            logged.append(wait_for(lambda path=path: logged_by_wandb(path)))
        self.check(*logged)

    def test_wandb_keeps_all_figures_however_often_the_loop_logs_to_it(self) -> None:
        import wandb

        for micro_batches, own_step in ((4, False), (0, False), (2, True)):
            with self.subTest(micro_batches=micro_batches, own_step=own_step):
                job = eadt.job(workload="n/a", url=absent_url())
                with job, wandb.init(project="eadt", dir=self.folder) as run:
                    for step in range(1, 4):
                        for batch in range(micro_batches):
                            run.log({f"loss/{batch}": 1.0}, step=step if own_step else None)
                            if batch == 0:
                                # Before others of the same step.
                                job.step(samples=8)
                                loggers.to_wandb(job, run)
                        if micro_batches == 0:
                            job.step(samples=8)
                            loggers.to_wandb(job, run, commit=True)
                [path] = Path(self.folder).rglob(f"*{run.id}.wandb")
                count = 3 * micro_batches + 3

                def rows(path: Path = path, count: int = count) -> list[dict[str, float]]:
                    known = rows_of_wandb(path)
                    return known if sum(name.startswith(("loss/", "eadt/steps")) for row in known for name in row) >= count else []

                # Another process writes it.
                logged = wait_for(rows)
                self.assertEqual([row["eadt/steps_total"] for row in logged if "eadt/steps_total" in row], [1.0, 2.0, 3.0], logged)
                self.assertEqual(job.logger_failures, {})

    def test_wandb_keeps_the_loops_own_figures_and_the_last_ones_of_each_row(self) -> None:
        import wandb

        for own_step in (True, False):
            with self.subTest(own_step=own_step):
                job = eadt.job(workload="n/a", url=absent_url())
                with job, wandb.init(project="eadt", dir=self.folder) as run:
                    for epoch in range(3):
                        run.log({"train": float(epoch)}, **({"step": epoch} if own_step else {"commit": False}))
                        for _ in range(4):
                            job.step(samples=8)
                            loggers.to_wandb(job, run)
                        run.log({"val": float(epoch)}, **({"step": epoch} if own_step else {}))
                [path] = Path(self.folder).rglob(f"*{run.id}.wandb")

                def rows(path: Path = path) -> list[dict[str, float]]:
                    known = rows_of_wandb(path)
                    return known if len(known) >= 3 else []

                # Another process writes it.
                logged = [{name: row.get(name) for name in ("train", "val", "eadt/steps_total")} for row in wait_for(rows)]
                self.assertEqual(logged, [{"train": e, "val": e, "eadt/steps_total": 4 * e + 4} for e in (0.0, 1.0, 2.0)])
                self.assertEqual(job.logger_failures, {})

    def test_mlflow(self) -> None:
        import mlflow

        mlflow.set_tracking_uri(Path(self.folder, "mlruns").as_uri())
        logged = []
        for joules in (20.0, None):
            with mlflow.start_run() as run:
                loggers.to_mlflow(self.job(joules), mlflow)
            self.assertTrue(loggers.flush(60.0))
            logged.append(dict(mlflow.get_run(run.info.run_id).data.metrics))
        self.check(*logged)

    def test_training_does_not_wait_for_mlflow(self) -> None:
        job, away, answers = self.job(20.0), mock.Mock(), threading.Event()
        self.addCleanup(answers.set)
        away.log_metrics.side_effect = lambda *_, **__: answers.wait(60.0)
        # As many as may wait, and the one that is being written.
        with self.assertLogs("eadt", "WARNING") as logged:
            for _ in range(loggers.WAITING_POINTS + 2):
                loggers.to_mlflow(job, away)
        self.assertIn("1000 points wait for it", logged.output[0])
        self.assertFalse(loggers.flush(0.0))
        answers.set()
        self.assertTrue(loggers.flush(60.0))
        self.assertGreaterEqual(away.log_metrics.call_count, loggers.WAITING_POINTS)

    def test_without_an_active_run_mlflow_is_not_asked(self) -> None:
        job, idle = self.job(20.0), mock.Mock(active_run=mock.Mock(return_value=None))
        with self.assertLogs("eadt", "WARNING") as logged:
            loggers.to_mlflow(job, idle)
        self.assertIn("start one by mlflow.start_run()", logged.output[0])
        idle.log_metrics.assert_not_called()

    def test_tensorboard(self) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        logged = []
        for joules in (20.0, None):
            folder = str(Path(self.folder, str(joules)))
            with SummaryWriter(folder) as writer:
                loggers.to_tensorboard(self.job(joules), writer)
            events = EventAccumulator(folder).Reload()
            logged.append({name: events.Scalars(name)[-1].value for name in events.Tags()["scalars"]})
            self.assertEqual(events.Scalars("eadt/steps_total")[-1].step, 5)
        self.check(*logged)

    def test_a_logger_that_raises_does_not_reach_training(self) -> None:
        job, broken = self.job(20.0), mock.Mock()
        broken.log.side_effect = broken.log_metrics.side_effect = broken.add_scalar.side_effect = OSError("the server is away")
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        for log in (loggers.to_wandb, loggers.to_mlflow, loggers.to_tensorboard):
            log(job, broken)
        self.assertTrue(loggers.flush())
        self.assertEqual([len(call.mock_calls) for call in (broken.log, broken.log_metrics, broken.add_scalar)], [1, 1, 1])

    def test_a_logger_that_is_away_is_reported_once_for_each_reason(self) -> None:
        job, broken = self.job(20.0), mock.Mock()
        errors = [OSError("<Connection at 0x7f01>: refused"), OSError("<Connection at 0x7f02>: refused"), TimeoutError(), TimeoutError()]
        broken.log.side_effect, broken.log_metrics.side_effect = errors, errors[:1]
        with self.assertLogs("eadt", "WARNING") as logged:
            for _ in errors:
                loggers.to_wandb(job, broken)
            loggers.to_mlflow(job, broken)
            self.assertTrue(loggers.flush())
        self.assertEqual(
            [record.getMessage() for record in logged.records],
            [
                "EADT: the figures of n/a are not in W&B: <Connection at 0x7f01>: refused",
                "EADT: the figures of n/a are not in W&B: TimeoutError",
                "EADT: the figures of n/a are not in MLflow: <Connection at 0x7f01>: refused",
            ],
        )

    def test_an_error_without_a_text_in_a_callback_has_its_name(self) -> None:
        class Callback:
            job = mock.Mock()

            @quiet
            def on_step(self) -> None:
                raise KeyError

        Callback().on_step()
        Callback.job.client.note_failure.assert_called_once_with("on_step: KeyError")

    def test_a_notebook_shows_what_the_job_did(self) -> None:
        from IPython.core.formatters import DisplayFormatter

        known, _ = DisplayFormatter().format(self.job(20.0))
        unknown, _ = DisplayFormatter().format(self.job(None))
        self.assertIn("n/a: 5 steps, 40 samples, 0.5 J/sample", known["text/html"])
        self.assertIn("J/sample unknown (there is no NVIDIA driver)", unknown["text/html"])


if __name__ == "__main__":
    unittest.main()
