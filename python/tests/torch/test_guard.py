"""Two processes train a small GPT under the real program: ``layers`` asks them to freeze blocks, then their text becomes another one.

Validation loss rises far above its trend, and the guard takes the blocks back. Power is made up; everything else is measured.
"""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing

import eadt
from tests.models import VOCABULARY, batches, join_ranks, loss_of, moved, weights
from tests.servers import Exporter, RealCollector, events_of

PROGRAM = os.environ.get("EADT_TEST_PROGRAM", "")
#: Power is made up. It falls by more than a busy machine can slow the job down: the saving arrives, and only quality is in question.
WATTS, FROZEN_WATTS = 300.0, 30.0
#: As many as the job reports; it ends once its blocks train again.
STEPS = 4000
#: Steps after that, in which weights must move.
STEPS_AFTER = 20
EVALUATE_EVERY = 20
SETTINGS = """
[actuator]
change_interval_seconds = 0.0

[[actuator.jobs]]
workload = "team/gpt"
mode = "enforce"
frozen_prefix_layers_max = 3

[[collector.dcgm]]
url = "{exporter}"
interval_seconds = 0.2
workload_label = "hpc_job"
workload_namespace = "team"

# A job of a minute: what takes a tenth of a real one is here a few seconds.
[processor.controller_settings]
freeze_start_ratio = 0.05
plasticity_ratio = 0.5
checkpoint_seconds = 0.1
validation_loss_rise_ratio = 0.1
validation_loss_stop_ratio = 0.2
coverage_min_ratio = 0.5
"""


def other_text(text: torch.Tensor) -> torch.Tensor:
    """Returns text of other characters: what was learned of the old ones is worth nothing."""
    return (text * 37 + 11) % VOCABULARY


# A busy machine answers late.
@mock.patch.multiple("eadt.client", REQUEST_SECONDS=120.0, CLOSE_SECONDS=120.0)
def rank_main(rank: int, folder: str, url: str) -> None:
    plain, model, optimizer = join_ranks(rank, folder)
    [held_out] = batches(1, size=32, seed=1)
    evaluations: list[tuple[int, float]] = []
    frozen_at, frozen, unfrozen_at, before = None, 0, None, None
    with eadt.job(model, optimizer, layers="auto", url=url, interval_seconds=0.1, agree_every=5, plasticity_every=10) as job:
        for step, text in enumerate(batches(STEPS, rank=rank), start=1):
            # The same on both ranks: they take up a directive at the same step.
            if frozen_at is not None:
                text = other_text(text)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model, text)
            loss.backward()
            optimizer.step()
            job.step(samples=len(text), loss=loss, steps_remaining=STEPS - step)
            if step % EVALUATE_EVERY == 0 and rank == 0:
                with torch.no_grad():
                    evaluations.append((step, float(loss_of(plain, held_out if frozen_at is None else other_text(held_out)))))
                job.evaluated(evaluations[-1][1])
            if job.checkpoint_due():
                job.checkpointed()
            now = job.frozen_layers or 0
            if frozen_at is None and now > 0:
                frozen_at, frozen = step, now
                Path(folder, "frozen").touch()
            if frozen_at is not None and unfrozen_at is None and now == 0:
                unfrozen_at, before = step, weights(plain.blocks[0])
            if unfrozen_at is not None and step == unfrozen_at + STEPS_AFTER:
                break
    result = {
        "answers": job.answers,
        "evaluations": evaluations,
        "frozen": frozen,
        "frozen_at": frozen_at,
        "unfrozen_at": unfrozen_at,
        "moved": moved(plain.blocks[0], before) if before is not None else None,
        "parameters": sum(parameter.numel() for parameter in plain.parameters()),
    }
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


@unittest.skipUnless(PROGRAM, "EADT_TEST_PROGRAM names no program")
class TestGuard(unittest.TestCase):
    def test_a_freeze_is_asked_for_obeyed_and_taken_back_when_loss_leaves_its_trend(self) -> None:
        with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as folder:
            frozen = Path(folder, "frozen")
            exporter = Exporter(lambda: FROZEN_WATTS if frozen.exists() else WATTS, gpus=2, job="gpt")
            settings = Path(folder, "eadt.toml")
            settings.write_text(SETTINGS.format(exporter=exporter.url))
            program = RealCollector(PROGRAM, data, settings)
            try:
                multiprocessing.spawn(rank_main, args=(folder, program.url), nprocs=2)
            finally:
                program.stop()
                exporter.close()
            ranks = [json.loads(Path(folder, f"rank-{rank}.json").read_text()) for rank in range(2)]
            decisions, directives, progress = (
                events_of(PROGRAM, data, topic) for topic in ("decisions", "directives", "training.progress")
            )
        reasons = "\n".join(f"{decision['time']} {decision['action']} {decision['reason']}" for decision in decisions)
        leader = ranks[0]
        self.assertGreater(leader["parameters"], 900_000)

        # Asked, and obeyed by both ranks at the same step.
        [freeze] = [decision for decision in decisions if decision["action"] == "freeze_layers"][:1] or [None]
        self.assertIsNotNone(freeze, reasons)
        asked = [directive for directive in directives if directive.get("decision_id") == freeze["id"]]
        self.assertEqual([directive["frozen_prefix_layers"] for directive in asked], [leader["frozen"]] * len(asked))
        self.assertTrue(asked, directives)
        self.assertEqual([rank["answers"][0] for rank in ranks], [[freeze["id"], None]] * 2)
        self.assertEqual(ranks[0]["frozen_at"], ranks[1]["frozen_at"])

        # Loss really rose, and the guard reports it.
        at_freeze = [loss for step, loss in leader["evaluations"] if step <= leader["frozen_at"]][-1]
        self.assertGreater(max(loss for _, loss in leader["evaluations"]), 1.2 * at_freeze)
        [revert] = [decision for decision in decisions if decision["action"] == "revert"][:1] or [None]
        self.assertIsNotNone(revert, reasons)
        self.assertIn("frozen blocks train again: validation loss is", revert["reason"])
        self.assertIn("above its trend", revert["reason"])
        self.assertEqual((revert["validation"], revert["concerns"]), ("failed", freeze["id"]))
        self.assertGreater(revert["time"], freeze["time"])

        # Taken back by both at the same step: all blocks train again, and the job reports so.
        self.assertIsNotNone(leader["unfrozen_at"], reasons)
        self.assertEqual(ranks[0]["unfrozen_at"], ranks[1]["unfrozen_at"])
        self.assertTrue(all(rank["moved"] > 0 for rank in ranks), ranks)
        self.assertEqual(progress[-1]["frozen_prefix_layers"], 0)
        self.assertTrue(any(event.get("decision_id") == freeze["id"] and event.get("frozen_prefix_layers") for event in progress))


if __name__ == "__main__":
    unittest.main()
