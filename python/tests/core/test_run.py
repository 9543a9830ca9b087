"""``eadt-run`` around programs that end well, badly, by a signal, or do not start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from eadt.cli import script_of
from tests.servers import Recorder

#: NVML of a machine with two GPUs; each has another 2.5 J whenever it is asked. ``NVML_FAILS`` names what is not supported.
#: It is built without ``nvmlInit_v2`` or without energy, as an old one, by ``NO_INIT`` and ``NO_ENERGY``.
NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static long energy[2] = {1000000, 7000000};
static int fails(const char *what) { const char *named = getenv("NVML_FAILS"); return named && !strcmp(named, what) ? 3 : 0; }
#ifndef NO_INIT
int nvmlInit_v2(void) { return fails("init"); }
#endif
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)&energy[index]; return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
  snprintf(text, length, "GPU-%c", handle == (void *)energy ? 'a' : 'b');
  return 0;
}
#ifndef NO_ENERGY
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
  long *own = handle;
  *own += getenv("NVML_RESETS") ? -2500 : 2500;
  *millijoules = (unsigned long long)*own;
  return fails("energy");
}
#endif
"""
COMPILER = shutil.which("cc")
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

    def test_a_signal_that_asks_for_a_checkpoint_reaches_the_program_and_ends_neither(self) -> None:
        program = "import signal; signal.signal(signal.SIGUSR1, lambda *_: print('saves', flush=True)); print('runs', flush=True); "
        program += "signal.pause(); signal.pause()"
        running = subprocess.Popen(
            [*RUN, "--workload", "n/a", sys.executable, "-c", program], env=self.environment, stdout=subprocess.PIPE, text=True
        )
        assert running.stdout is not None
        self.assertEqual(running.stdout.readline(), "runs\n")
        running.send_signal(signal.SIGUSR1)
        self.assertEqual(running.stdout.readline(), "saves\n")
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(60), 128 + signal.SIGTERM)
        running.stdout.close()

    @unittest.skipUnless(COMPILER, "no C compiler")
    def test_energy_is_that_of_the_gpus_that_the_program_can_use_or_unknown(self) -> None:
        cases = [
            ({}, "5.0 J"),
            ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, "2.5 J"),
            ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "2.5 J"),
            ({"CUDA_VISIBLE_DEVICES": "1"}, "which GPU is meant is not known"),
            ({"CUDA_VISIBLE_DEVICES": ""}, "this process can use no GPU"),
            ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, "which NVML does not have as a whole GPU"),
            ({"NVML_FAILS": "energy"}, "a GPU has no energy counter"),
            ({"NVML_FAILS": "init"}, "NVML does not start"),
            ({"NVML_RESETS": "1"}, "an energy counter was reset meanwhile"),
            ({"LD_LIBRARY_PATH": "NO_ENERGY"}, "undefined symbol: nvmlDeviceGetTotalEnergyConsumption"),
            ({"LD_LIBRARY_PATH": "NO_INIT"}, "undefined symbol: nvmlInit_v2"),
        ]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "nvml.c")
            source.write_text(NVML)
            for without in ("NOTHING", "NO_ENERGY", "NO_INIT"):
                built = Path(folder, without, "libnvidia-ml.so.1")
                built.parent.mkdir()
                subprocess.run([str(COMPILER), "-shared", "-fPIC", f"-D{without}", "-o", str(built), str(source)], check=True)
            for variables, expected in cases:
                with self.subTest(variables):
                    plain = {name: value for name, value in self.environment.items() if not name.startswith("CUDA_")}
                    command = [*RUN, sys.executable, "-c", "print('runs')"]
                    library = f"{folder}/{variables.get('LD_LIBRARY_PATH', 'NOTHING')}"
                    environment = {**plain, **variables, "LD_LIBRARY_PATH": library}
                    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                    self.assertEqual((ran.returncode, ran.stdout), (0, "runs\n"), ran.stderr)
                    self.assertIn(expected, ran.stderr)
                    self.assertEqual("energy unknown" in ran.stderr, not expected.endswith(" J"), ran.stderr)

    def test_a_workload_has_the_name_that_the_program_would_give_itself(self) -> None:
        names = {
            "python train.py --steps 5": "train.py",
            "python -m package.train": "train.py",
            "torchrun --nproc-per-node 2 -m package.train": "train.py",
            "python3.11 -m torch.distributed.run -m package.train": "train.py",
            "/bin/deepspeed --module package.train": "train.py",
            "accelerate launch train.py": "train.py",
            "python -mpackage.train": "train.py",
            "python -um package.train": "train.py",
            "python -m deepspeed train.py": "train.py",
            "python -m deepspeed --module package.train": "train.py",
            "srun -c 4 -m block python -m package.train": "train.py",
            "uv run python -m package.train": "train.py",
            "python3.11 -u -c run() train.py": "python",
            "srun -c 4 python -c run() -m other": "python",
            "./simulate -m 5": "./simulate",
            "make": "make",
        }
        self.assertEqual({command: script_of(command.split()) for command in names}, names)

    def test_a_program_that_is_not_there_is_reported(self) -> None:
        ran = self.run_as("no-such-program-anywhere")
        self.assertEqual(ran.returncode, 127)
        self.assertIn("no-such-program-anywhere does not start", ran.stderr)


if __name__ == "__main__":
    unittest.main()
