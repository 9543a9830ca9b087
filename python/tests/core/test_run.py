"""``eadt-run`` around programs that end well, badly, by a signal, or do not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from tests.servers import Recorder

RUN = [sys.executable, "-m", "eadt.cli"]


class TestRun(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Recorder()
        self.addCleanup(self.server.close)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("EADT_")}
        self.environment["EADT_URL"] = self.server.url

    def run_as(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*RUN, *command], env=self.environment, capture_output=True, text=True, check=False)

    def phases(self) -> list[tuple[str, str]]:
        return [(event["workload"], event["phase"]) for event in self.server.events]

    def test_start_and_end_are_reported_and_the_status_is_the_programs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text("import os, sys; print(os.environ['EADT_WORKLOAD'], os.environ['EADT_URL']); sys.exit(3)")
            ran = self.run_as("--", sys.executable, str(script))
        self.assertEqual((ran.returncode, ran.stdout.split()), (3, ["local/train", self.server.url]))
        self.assertEqual(self.phases(), [("local/train", "started"), ("local/train", "finished")])
        self.assertIn("energy unknown" if "energy unknown" in ran.stderr else " J, ", ran.stderr)

    def test_a_signal_reaches_the_program_and_the_end_is_reported(self) -> None:
        program = "import time; print('runs', flush=True); time.sleep(60)"
        running = subprocess.Popen(
            [*RUN, "--workload", "n/a", sys.executable, "-c", program], env=self.environment, stdout=subprocess.PIPE, text=True
        )
        assert running.stdout is not None
        self.assertEqual(running.stdout.readline(), "runs\n")
        begun = time.monotonic()
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(30), 128 + signal.SIGTERM)
        running.stdout.close()
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual(self.phases(), [("n/a", "started"), ("n/a", "finished")])

    def test_a_program_that_is_not_there_is_said(self) -> None:
        ran = self.run_as("no-such-program-anywhere")
        self.assertEqual(ran.returncode, 127)
        self.assertIn("no-such-program-anywhere does not start", ran.stderr)


if __name__ == "__main__":
    unittest.main()
