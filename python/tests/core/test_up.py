"""The client against the real program: ``eadt up --gpus none``."""

from __future__ import annotations

import os
import time
import unittest
from unittest import mock

import eadt
from eadt import Client
from tests.servers import RealCollector, wait_for

PROGRAM = os.environ.get("EADT_TEST_PROGRAM", "")


@unittest.skipUnless(PROGRAM, "EADT_TEST_PROGRAM names no program")
class TestUp(unittest.TestCase):
    # A busy machine answers late.
    @mock.patch.multiple("eadt.client", REQUEST_SECONDS=120.0, CLOSE_SECONDS=120.0)
    def test_progress_arrives_as_measured_and_energy_is_unknown(self) -> None:
        collector = RealCollector(PROGRAM)
        client = Client(collector.url, "local/notebook", interval_seconds=0.2)
        client.mark(phase="started", world_size=1)
        begun = time.monotonic()
        while not (len(collector.windows("local/notebook")) >= 2 or time.monotonic() - begun > 180):
            client.report(
                samples_total=(time.monotonic() - begun) * 100, loss=float("nan"), precision="bf16-mixed", layers=6, plasticity=[None, 0.5]
            )
            time.sleep(0.01)
        revision, directive = client.poll_directive()
        self.assertEqual((revision, directive), (0, None))
        client.close(phase="finished")
        self.assertGreater(client.sent, 3)
        self.assertIsNone(client.last_error)
        windows = wait_for(lambda: collector.windows("local/notebook"))
        report = collector.stop()
        for line in windows:
            self.assertIn("measured", line)
            self.assertNotIn("joules_per_sample=0", line)
        self.assertTrue(any("samples_per_second" in line for line in windows), windows)
        [row] = [row for row in report["workloads"] if row["workload"] == "local/notebook"]
        self.assertNotIn("simulated", str(report["workloads"]))
        self.assertIsNone(row["joules_per_sample"])
        self.assertIsNone(row["energy_joules"])
        self.assertGreater(row["samples"], 0)
        self.assertEqual(row["origin"], "measured")

    @mock.patch.multiple("eadt.client", REQUEST_SECONDS=120.0, CLOSE_SECONDS=120.0)
    def test_values_that_were_made_to_fit_are_taken(self) -> None:
        collector = RealCollector(PROGRAM)
        client = Client(collector.url, "local/odd", rank="0", interval_seconds=0.05)
        odd = {"layers": 12.0, "world_size": "2", "mps_thread_percentage": 50.0, "global_batch_size": 7.5, "rank": False}
        odd |= {"loss": "0.5", "learning_rate": -1, "epoch": [1], "steps_total": "7", "samples_total": True, "loss_scale": 10**400}
        odd |= {"span": 3, "backend": b"nccl", "precision": 16, "checkpoint_time": time.time(), "last": 0, "phase": "warmup"}
        odd |= {"plasticity": (None, "0.5"), "live_knobs": "precision", "scope": "GLOBAL"}
        for name, value in odd.items():
            client.mark(**{"steps_remaining": 1, name: value})
        client.mark(**odd)
        client.mark(steps_remaining=1, checkpoint_time="2026-01-31 12:00")
        client.close()
        self.assertEqual((client.sent, client.refused, client.failed, client.last_error), (len(odd) + 2, 0, 0, None))
        collector.stop()

    @mock.patch.multiple("eadt.client", REQUEST_SECONDS=120.0, CLOSE_SECONDS=120.0)
    def test_every_sample_of_a_short_job_counts(self) -> None:
        collector = RealCollector(PROGRAM)
        with eadt.job(url=collector.url, workload="local/short") as job:
            for _ in range(40):
                job.step(samples=8)
                time.sleep(0.05)
        report = collector.stop()
        [row] = [row for row in report["workloads"] if row["workload"] == "local/short"]
        self.assertEqual((row["samples"], row["joules_per_sample"]), (320.0, None))


if __name__ == "__main__":
    unittest.main()
