"""DeepSpeed on the CPU: ZeRO moves weights that do not require gradients; groups of learning rate 0 do not."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import unittest
from typing import Any

with socket.create_server(("127.0.0.1", 0)) as listener:
    PORT = listener.getsockname()[1]
os.environ.update(
    RANK="0",
    LOCAL_RANK="0",
    WORLD_SIZE="1",
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT=str(PORT),
    DS_ACCELERATOR="cpu",
    EADT_WORKLOAD="n/a",
    EADT_RANK="0",
)

import deepspeed
import torch

import eadt.deepspeed
from eadt.directives import Directive
from tests.models import SmallGpt, batches, loss_of
from tests.servers import Recorder, absent_url, wait_for

torch.set_num_threads(1)
# Faster exchange between processes of one CPU, which is compiled for minutes: there is one process here.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def engine_of(stage: int, grouped: bool, scheduler: bool = False, offload: bool = False, accumulated: int = 1) -> Any:
    torch.manual_seed(0)
    model = SmallGpt(blocks=4, width=32)
    parameters = eadt.deepspeed.parameter_groups(model) if grouped else list(model.parameters())
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": accumulated,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": False},
    }
    if offload:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        config["zero_force_ds_cpu_optimizer"] = False
    if scheduler:
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 50}}
    # PyTorch's own optimizer: DeepSpeed's for CPUs is compiled for minutes.
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def block_weights(engine: Any) -> list[list[torch.Tensor]]:
    everything = [list(block.parameters()) for block in engine.module.blocks]
    kept = []
    for block in everything:
        with deepspeed.zero.GatheredParameters(block):
            kept.append([parameter.detach().clone() for parameter in block])
    return kept


def moves(first: list[list[torch.Tensor]], second: list[list[torch.Tensor]]) -> list[float]:
    return [max(float((a - b).abs().max()) for a, b in zip(x, y)) for x, y in zip(first, second)]


def train(engine: Any, steps: int) -> None:
    for text in batches(steps):
        engine.backward(loss_of(engine, text))
        engine.step()


class TestDeepSpeed(unittest.TestCase):
    def test_without_the_package_frozen_weights_move(self) -> None:
        engine = engine_of(2, grouped=False)
        train(engine, 5)
        for parameter in engine.module.blocks[0].parameters():
            parameter.requires_grad_(False)
        before = block_weights(engine)
        train(engine, 5)
        self.assertGreater(moves(before, block_weights(engine))[0], 0.0)

    def test_groups_of_learning_rate_0_do_not_move_and_train_again_under_a_scheduler(self) -> None:
        for stage in (2, 3):
            for scheduler, offload in ((False, False), (True, False), (True, True)):
                with self.subTest(stage=stage, scheduler=scheduler, offload=offload):
                    engine = engine_of(stage, grouped=True, scheduler=scheduler, offload=offload)
                    freezer = eadt.deepspeed.GroupFreezer(engine)
                    self.assertEqual(len(freezer.blocks), 4)
                    train(engine, 3)
                    freezer.freeze(2)
                    before = block_weights(engine)
                    train(engine, 5)
                    changes = moves(before, block_weights(engine))
                    self.assertEqual(changes[:2], [0.0, 0.0])
                    self.assertTrue(all(change > 0 for change in changes[2:]), changes)
                    freezer.freeze(0)
                    before = block_weights(engine)
                    train(engine, 2)
                    self.assertTrue(all(change > 0 for change in moves(before, block_weights(engine))))

    def test_blocks_with_rates_of_their_own_have_them_again_as_the_schedule_has_gone_on(self) -> None:
        torch.manual_seed(0)
        model = SmallGpt(blocks=4, width=32)
        groups = eadt.deepspeed.parameter_groups(model)
        for group in groups:
            # Layer-wise decay: 1/8, 1/4, 1/2 and 1 of the rate of the rest.
            group["lr"] = 1e-2 * 0.5 ** (3 - group[eadt.deepspeed.BLOCK]) if group[eadt.deepspeed.BLOCK] >= 0 else 1e-2
        optimizer = torch.optim.AdamW(groups, lr=1e-2)
        # Each step multiplies what is there: a rate of 0 would stay 0.
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
        freezer = eadt.deepspeed.GroupFreezer(engine)
        train(engine, 3)
        freezer.freeze(3)
        train(engine, 4)
        # A checkpoint has their own.
        self.assertTrue(all(block["lr"] > 0 for block in freezer.blocks))
        for frozen in (1, 2, 0):
            freezer.freeze(frozen)
            train(engine, 2)
        rest = max(group["lr"] for group in engine.optimizer.param_groups if group[eadt.deepspeed.BLOCK] < 0)
        self.assertAlmostEqual(rest, 1e-2 * 0.9**13)
        for block, share in zip(freezer.blocks, (0.125, 0.25, 0.5, 1.0)):
            self.assertAlmostEqual(block["lr"] / rest, share)

    def test_blocks_train_in_what_goes_on_from_a_checkpoint_of_a_job_that_froze_them_and_after_its_end(self) -> None:
        engine = engine_of(2, grouped=True)
        step = engine.optimizer.step
        with tempfile.TemporaryDirectory() as folder:
            with eadt.deepspeed.wrap(engine, workload="n/a", url=absent_url()) as job:
                train(engine, 1)
                job._take_up(Directive("d-1", frozen_prefix_layers=2))
                train(engine, 1)
                engine.save_checkpoint(folder)
                before = block_weights(engine)
                train(engine, 1)
                self.assertEqual((job.frozen_layers, moves(before, block_weights(engine))[:2]), (2, [0.0, 0.0]))
            self.assertEqual((job.frozen_layers, engine.optimizer.step), (2, step))
            later = engine_of(2, grouped=True)
            freezer = eadt.deepspeed.GroupFreezer(later)
            later.load_checkpoint(folder)
            # Loaded groups are others.
            freezer.freeze(1)
            freezer.freeze(0)
        for goes_on in (engine, later):
            before = block_weights(goes_on)
            train(goes_on, 1)
            self.assertTrue(all(change > 0 for change in moves(before, block_weights(goes_on))))

    def test_a_directive_is_taken_up_and_precision_is_refused(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        body = {"decision_id": "d-1", "frozen_prefix_layers": 2}
        server.answer = {"directives": [{"workload": "n/a", "revision": 1, "directive": body}]}
        engine = engine_of(2, grouped=True)
        with eadt.deepspeed.wrap(engine, url=server.url, interval_seconds=0.05, agree_every=2) as job:
            for text in batches(400):
                loss = loss_of(engine, text)
                engine.backward(loss)
                engine.step()
                job.step(samples=len(text), loss=loss)
                if job.checkpoint_due():
                    job.checkpointed()
                if len(job.answers) == 1:
                    body = {"decision_id": "d-2", "precision": "bf16"}
                    server.answer = {"directives": [{"workload": "n/a", "revision": 2, "directive": body}]}
                if len(job.answers) == 2:
                    break
        self.assertEqual(job.answers[0], ("d-1", None))
        self.assertIn("fixes its precision", job.answers[1][1])

    def test_micro_batches_add_up_to_steps_and_a_directive_waits_for_the_last_one(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        body = {"decision_id": "d-1", "frozen_prefix_layers": 2}
        server.answer = {"directives": [{"workload": "n/a", "revision": 1, "directive": body}]}
        engine = engine_of(2, grouped=True, accumulated=4)
        taken = []
        with eadt.deepspeed.wrap(engine, url=server.url, interval_seconds=0.05, agree_every=2) as job:
            wait_for(lambda: job.client.report() or job.client.directive()[0])
            for index, text in enumerate(batches(22)):
                loss = loss_of(engine, text)
                engine.backward(loss)
                engine.step()
                job.step(samples=len(text), loss=loss)
                if job.checkpoint_due():
                    taken.append(index % 4)
                    job.checkpointed()
        end = server.events[-1]
        self.assertEqual((engine.global_steps, end["steps_total"], end["samples_total"]), (5, 5, 5 * 4 * 8.0))
        self.assertEqual((taken, job.answers), ([3], [("d-1", None)]))

    def test_options_of_a_job_are_taken_and_what_cannot_be_measured_is_refused(self) -> None:
        engine = engine_of(3, grouped=True)
        options: dict[str, Any] = {"workload": "n/a", "url": absent_url(), "plasticity_every": 1}
        with self.assertLogs("eadt", "WARNING") as logs, eadt.deepspeed.wrap(engine, layers="auto", **options) as job:
            job.step(samples=8)
        self.assertEqual((job.frozen_layers, [line for line in logs.output if "ZeRO-3 counts passes" in line]), (0, logs.output[:1]))
        self.assertIsNone(eadt.deepspeed.wrap(engine, layers=None, **options).frozen_layers)
        with self.assertRaisesRegex(TypeError, "give 'auto'"):
            eadt.deepspeed.wrap(engine, layers=2, **options)

    def test_ranks_that_share_their_samples_count_once(self) -> None:
        engine = engine_of(2, grouped=True)
        self.assertEqual(engine.dp_world_size, 1)
        engine.dp_world_size = 4
        self.assertEqual(eadt.deepspeed.wrap(engine, workload="n/a").of_all_ranks(8.0), 32.0)

    def test_the_plain_freezer_refuses_an_engine(self) -> None:
        from eadt.freeze import BlockFreezer

        self.assertIn("eadt.deepspeed.wrap", BlockFreezer(engine_of(2, grouped=True)).refusal(2) or "")


if __name__ == "__main__":
    unittest.main()
