"""The script for Slurm's prolog, epilog and task prolog."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "deploy/slurm/eadt.sh"


class TestSlurm(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_as(self, context: str, job: int, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "EADT_SLURM_FOLDER": self.folder, "SLURM_JOB_ID": str(job), "SLURM_JOB_USER": "ann"}
        environment.update({"SLURM_SCRIPT_CONTEXT": context, **variables})
        return subprocess.run([str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)

    def assignments(self) -> dict[str, str]:
        listed = json.loads(Path(self.folder, "assignments.json").read_text())
        return {one["device"]: one["workload"] for one in listed}

    def test_gpus_belong_to_their_jobs_from_prolog_to_epilog(self) -> None:
        self.assertEqual(self.run_as("prolog_slurmd", 7, SLURM_JOB_GPUS="0,1").returncode, 0)
        self.run_as("prolog_slurmd", 8, SLURM_JOB_GPUS="2", SLURM_JOB_ACCOUNT="Physics_Lab")
        self.run_as("prolog_slurmd", 9)
        self.assertEqual(self.assignments(), {"0": "ann/job-7", "1": "ann/job-7", "2": "physics-lab/job-8"})
        self.run_as("epilog_slurmd", 7, SLURM_JOB_GPUS="0,1")
        self.assertEqual(self.assignments(), {"2": "physics-lab/job-8"})
        self.run_as("epilog_slurmd", 8)
        self.run_as("epilog_slurmd", 9)
        self.assertEqual(self.assignments(), {})

    def test_jobs_that_begin_together_lose_nothing(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda job: self.run_as("prolog_slurmd", job, SLURM_JOB_GPUS=str(job)), range(8)))
        self.assertEqual([result.returncode for result in done], [0] * 8)
        self.assertEqual(self.assignments(), {str(job): f"ann/job-{job}" for job in range(8)})

    def test_a_task_gets_its_workload_and_another_caller_a_description(self) -> None:
        self.assertEqual(self.run_as("prolog_task", 7).stdout, "export EADT_WORKLOAD=ann/job-7\n")
        wrong = self.run_as("", 7)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("Prolog, Epilog and TaskProlog", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
