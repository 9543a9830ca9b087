"""Each example under the real program, asked by a file to freeze two blocks.

All of them run in one process, as ``python -m`` runs them: importing PyTorch and the frameworks is most of what they cost.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
from benches import quality
from examples import plain

from tests.servers import RealCollector

PROGRAM, DATA = os.environ.get("EADT_TEST_PROGRAM", ""), os.environ.get("EADT_TEST_DATA", "")
#: DeepSpeed comes last: it leaves its process group behind.
EXAMPLES = ["plain", "hugging_face", "lightning_gpt", "accelerate_gpt", "deepspeed_zero3"]
STEPS = 60
RUN = """
import os, runpy, sys, time
import eadt.client
from eadt.training import Job
steps, folder, *examples = sys.argv[1:]
# A busy machine answers late, and may be through with the steps before the directive is there.
eadt.client.REQUEST_SECONDS = eadt.client.CLOSE_SECONDS = 120.0
start = Job.start
def start_and_wait(job, **fields):
    start(job, **fields)
    until = time.monotonic() + 180
    while job.client.directive()[0] == 0 and time.monotonic() < until:
        job.client.report(steps_total=0)
        time.sleep(0.01)
Job.start = start_and_wait
for example in examples:
    os.environ["EADT_WORKLOAD"] = "team/" + example.replace("_", "-")
    if example == "deepspeed_zero3":
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", DS_ACCELERATOR="cpu")
        import deepspeed
        # It would compile an operation for several processes of one CPU, for minutes; there is one.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    sys.argv = [example, "--steps", steps, "--folder", folder]
    print("example", example, flush=True)
    runpy.run_module("examples." + example, run_name="__main__")
"""


def environment(url: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EADT_")}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return {**clean, "EADT_URL": url, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MASTER_PORT": str(port)}


@unittest.skipUnless(PROGRAM and DATA, "EADT_TEST_PROGRAM and EADT_TEST_DATA name no program and data folder")
class TestExamples(unittest.TestCase):
    def test_each_framework_reports_and_takes_up_a_directive(self) -> None:
        collector = RealCollector(PROGRAM, DATA)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-W", "ignore", "-c", RUN, str(STEPS), folder, *EXAMPLES]
            # What a log asks was asked of earlier jobs, and these begin their training.
            asked = Path(folder, "directive.json")
            asked.write_text(json.dumps({"decision_id": "d-1", "frozen_prefix_layers": 2}))
            variables = {**environment(collector.url), "EADT_DIRECTIVES_FILE": str(asked)}
            ran = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=900)
        self.assertEqual(ran.returncode, 0, f"{ran.stdout}{ran.stderr[-3000:]}")
        parts = re.split(r"^example (\w+)$", ran.stdout, flags=re.MULTILINE)[1:]
        losses = {}
        for example, output in zip(parts[::2], parts[1::2]):
            found = re.search(r"loss ([0-9.]+) ", output)
            assert found is not None, f"{example}: {output}"
            losses[example] = float(found[1])
        self.assertEqual(list(losses), EXAMPLES)
        report = collector.stop()
        # Characters drawn evenly would cost ln 128 = 4.85.
        self.assertTrue(all(loss < 4.0 for loss in losses.values()), losses)
        rows = {row["workload"]: row for row in report["workloads"]}
        command = [PROGRAM, "tail", "training.progress", "--from-start", "--until-end", "--json", "--data-dir", DATA]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EADT_")}
        lines = subprocess.run(command, env=clean, capture_output=True, text=True, check=True).stdout.splitlines()
        events = [json.loads(line)["data"] for line in lines]
        for example in EXAMPLES:
            workload = f"team/{example.replace('_', '-')}"
            with self.subTest(workload):
                self.assertEqual((rows[workload]["origin"], rows[workload]["joules_per_sample"]), ("measured", None))
                own = [event for event in events if event["workload"] == workload]
                self.assertEqual((own[0]["phase"], own[-1]["phase"]), ("started", "finished"))
                acknowledged = [event for event in own if event.get("decision_id") == "d-1"]
                self.assertTrue(acknowledged, own[-2:])
                self.assertEqual((acknowledged[-1]["frozen_prefix_layers"], acknowledged[-1]["layers"]), (2, 6))
                self.assertNotIn("directive_refused", acknowledged[-1])


class TestPlain(unittest.TestCase):
    def test_it_goes_on_from_its_checkpoint(self) -> None:
        kept = []
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"EADT_DISABLED": "1"}):
            for steps in ("2", "3", "3"):
                with mock.patch.object(sys, "argv", ["plain", "--steps", steps, "--folder", folder]):
                    plain.main()
                saved = torch.load(f"{folder}/plain.pt", weights_only=True)
                moments = {int(state["step"]) for state in saved["optimizer"]["state"].values()}
                kept.append((saved["steps"], saved["samples"], moments))
        self.assertEqual(kept, [(2, 16.0, {2}), (3, 24.0, {3}), (3, 24.0, {3})])


class TestImage(unittest.TestCase):
    def test_its_user_may_write_where_its_command_writes_checkpoints(self) -> None:
        lines = Path(__file__).resolve().parents[3].joinpath("deploy/examples/training.Dockerfile").read_text().splitlines()
        [command] = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
        [user] = [line.removeprefix("USER ").split(":") for line in lines if line.startswith("USER ")]
        folder = command[command.index("--folder") + 1]
        self.assertIn(f"RUN install -d -o {user[0]} -g {user[1]} {folder}", lines)


class TestQuality(unittest.TestCase):
    def test_the_bench_counts_the_work_of_frozen_blocks_and_of_the_rule_itself(self) -> None:
        with mock.patch.object(quality, "EVALUATION_BATCHES", 1), contextlib.redirect_stdout(io.StringIO()):
            runs = quality.runs_of_seed(0, 8)
        work, full = quality.count_work(), runs["nothing frozen"].work
        self.assertEqual(full, 8 * work.steps[0])
        self.assertEqual(runs["linear"].work, 2 * sum(work.steps))
        # It measures in each of so few steps, and freezes nothing yet.
        self.assertEqual((runs["rule"].work, runs["rule"].frozen_at), (full + 8 * work.measurement, []))
        self.assertTrue(work.steps[0] / 4 < work.measurement < work.steps[0] / 2)
        self.assertRegex(quality.row_of("linear", [runs]), "work saved 16.5 %: .* fewer steps for the same work: ")


if __name__ == "__main__":
    unittest.main()
