"""Two processes go on training a small GPT under the real program, which asked them to freeze two blocks."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing

import eadt
from tests.models import batches, join_ranks, loss_of, moved, weights
from tests.servers import RealCollector, wait_for

PROGRAM, DATA = os.environ.get("EADT_TEST_PROGRAM", ""), os.environ.get("EADT_TEST_DATA", "")
STEPS = 60
#: Of the checkpoint that they go on from: a job that begins is not asked what an earlier one was.
STEPS_BEFORE = 100


# A busy machine answers late.
@mock.patch.multiple("eadt.client", REQUEST_SECONDS=120.0, CLOSE_SECONDS=120.0)
def rank_main(rank: int, folder: str, url: str) -> None:
    plain, model, optimizer = join_ranks(rank, folder)
    before, frozen_at, losses = None, None, []
    job = eadt.job(model, optimizer, layers="auto", url=url, interval_seconds=0.1, agree_every=5)
    job.steps_total, job.samples_total = STEPS_BEFORE, 16.0 * STEPS_BEFORE
    with job:
        if rank == 0:
            # The steps begin when the directive is there: a busy machine may be through with them before.
            wait_for(lambda: job.client.report(steps_total=STEPS_BEFORE) or job.client.directive()[0])
        for step, text in enumerate(batches(STEPS, rank=rank)):
            optimizer.zero_grad(set_to_none=False)
            loss = loss_of(model, text)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
            job.step(samples=len(text), loss=loss)
            if job.checkpoint_due():
                if rank == 0:
                    torch.save(plain.state_dict(), f"{folder}/checkpoint.pt")
                distributed.barrier()
                job.checkpointed()
                before, frozen_at = [weights(block) for block in plain.blocks], step
    result = {
        "parameters": sum(parameter.numel() for parameter in plain.parameters()),
        "answers": job.answers,
        "frozen_at": frozen_at,
        "moved": [moved(block, then) for block, then in zip(plain.blocks, before or [])],
        "losses": [sum(losses[:10]) / 10, sum(losses[-10:]) / 10],
        "error": job.client.last_error,
    }
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


@unittest.skipUnless(PROGRAM and DATA, "EADT_TEST_PROGRAM and EADT_TEST_DATA name no program with a directive in its log")
class TestTogether(unittest.TestCase):
    def test_both_ranks_freeze_at_the_same_step_and_the_program_has_the_acknowledgement(self) -> None:
        collector = RealCollector(PROGRAM, DATA)
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(rank_main, args=(folder, collector.url), nprocs=2)
            ranks = [json.loads(Path(folder, f"rank-{rank}.json").read_text()) for rank in range(2)]
            self.assertTrue(Path(folder, "checkpoint.pt").exists())
        report = collector.stop()
        for rank in ranks:
            self.assertEqual(rank["answers"], [["d-1", None]])
            self.assertEqual(rank["moved"][:2], [0.0, 0.0])
            self.assertTrue(all(change > 0 for change in rank["moved"][2:]), rank)
            self.assertLess(rank["losses"][1], rank["losses"][0])
            self.assertGreater(rank["parameters"], 900_000)
        self.assertEqual(ranks[0]["frozen_at"], ranks[1]["frozen_at"])
        self.assertIsNone(ranks[0]["error"])
        [row] = [row for row in report["workloads"] if row["workload"] == "team/gpt"]
        self.assertEqual((row["origin"], row["joules_per_sample"]), ("measured", None))
        command = [PROGRAM, "tail", "training.progress", "--from-start", "--until-end", "--json", "--data-dir", DATA]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EADT_")}
        lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
        events = [json.loads(line)["data"] for line in lines]
        acknowledged = [event for event in events if event.get("decision_id") == "d-1"]
        self.assertTrue(acknowledged, events[-3:])
        self.assertEqual((acknowledged[-1]["frozen_prefix_layers"], acknowledged[-1]["layers"]), (2, 6))
        self.assertNotIn("directive_refused", acknowledged[-1])
        self.assertEqual((events[0]["phase"], events[0]["world_size"], events[0]["backend"]), ("started", 2, "gloo"))


if __name__ == "__main__":
    unittest.main()
