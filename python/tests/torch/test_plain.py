"""Plain loops: each trap of freezing, on the real library."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import os
import pickle
import random
import tempfile
import threading
import unittest
import warnings
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import eadt
from eadt.client import Client
from eadt.directives import Directive
from eadt.events import plain_event
from eadt.freeze import BlockFreezer, FreezeRefused, find_blocks
from eadt.plasticity import PlasticityMeter
from tests.models import Block, SmallGpt, batches, loss_of, moved, weights
from tests.servers import Recorder, wait_for

torch.set_num_threads(1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, set_to_none: bool = True, seed: int = 0) -> None:
    for text in batches(steps, seed=seed):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(model, text).backward()
        optimizer.step()


def small(**options: object) -> SmallGpt:
    torch.manual_seed(0)
    return SmallGpt(blocks=4, width=32, **options)  # type: ignore[arg-type]


class TestValues(unittest.TestCase):
    def test_numbers_of_numpy_and_tensors_fit_their_fields_and_what_has_more_costs_that_field_alone(self) -> None:
        fits = {
            "layers": np.int64(12),
            "world_size": np.float32(2.0),
            "frozen_prefix_layers": torch.tensor(3),
            "global_batch_size": torch.tensor([64.0]),
            "rank": np.array(1),
            "last": np.True_,
            "loss": torch.tensor(0.5, requires_grad=True).detach(),
            "learning_rate": np.float64(0.25),
            "tokens_total": np.uint64(2**40),
            "plasticity": torch.tensor([0.5, float("nan")]),
            "precision": torch.bfloat16,
            "span": np.str_("a"),
        }
        does_not = {"gradient_norm": torch.ones(2), "epoch": np.ones(3), "steps_remaining": torch.tensor(1j), "validation_loss": []}
        refused: list[str] = []
        event = plain_event({**fits, **does_not}, lambda name, instead: refused.append(f"{name} is {instead}"))
        expected = {"layers": 12, "world_size": 2, "frozen_prefix_layers": 3, "global_batch_size": 64, "rank": 1, "last": True, "loss": 0.5}
        expected |= {"learning_rate": 0.25, "tokens_total": 2.0**40, "plasticity": [0.5, None], "precision": "bf16", "span": "a"}
        self.assertEqual(json.loads(json.dumps(event)), expected)
        self.assertEqual([type(event[name]) for name in ("layers", "world_size", "rank", "last")], [int, int, int, bool])
        self.assertEqual([line.split()[0] for line in refused], list(does_not))

    def test_a_loss_of_which_a_gradient_is_wanted_is_read_without_a_warning(self) -> None:
        loss, weight = torch.tensor(0.5, requires_grad=True), nn.Parameter(torch.tensor([1.0]))
        always = torch.is_warn_always_enabled()
        self.addCleanup(torch.set_warn_always, always)
        torch.set_warn_always(True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with self.assertRaisesRegex(UserWarning, "requires_grad=True"):
                float(loss)
            event = plain_event({"loss": loss * 3, "layers": weight, "plasticity": [loss, weight]}, self.fail)
        self.assertEqual(event, {"loss": 1.5, "layers": 1, "plasticity": [0.5, 1.0]})
        (loss * weight).backward()
        self.assertEqual(float(loss.grad), 1.0)


class TestFreeze(unittest.TestCase):
    def test_the_blocks_are_the_longest_list_of_one_class(self) -> None:
        model = small()
        self.assertEqual([id(block) for block in find_blocks(model)], [id(block) for block in model.blocks])
        self.assertEqual(find_blocks(nn.Linear(2, 2)), [])

    def test_frozen_weights_move_by_exactly_nothing_and_train_again_afterwards(self) -> None:
        for name, make in {
            "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
            "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1),
        }.items():
            for set_to_none in (True, False):
                with self.subTest(f"{name} {set_to_none}"):
                    model = small()
                    optimizer = make(model.parameters())
                    freezer = BlockFreezer(model, [optimizer])
                    train(model, optimizer, 5, set_to_none)
                    freezer.freeze(2)
                    before = [weights(block) for block in model.blocks]
                    train(model, optimizer, 10, set_to_none)
                    self.assertEqual([moved(block, then) for block, then in zip(model.blocks, before)][:2], [0.0, 0.0])
                    self.assertTrue(all(moved(block, then) > 0 for block, then in zip(model.blocks[2:], before[2:])))
                    freezer.freeze(0)
                    train(model, optimizer, 2, set_to_none)
                    self.assertTrue(all(moved(block, then) > 0 for block, then in zip(model.blocks, before)))

    def test_without_the_package_zeros_as_gradients_move_frozen_weights(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, 5, set_to_none=False)
        model.blocks[0].requires_grad_(False)
        before = weights(model.blocks[0])
        train(model, optimizer, 10, set_to_none=False)
        self.assertGreater(moved(model.blocks[0], before), 0.0)

    def test_tied_embeddings_do_not_make_frozen_blocks_compute_gradients(self) -> None:
        for tied in (True, False):
            with self.subTest(tied=tied):
                model = small(tied=tied)
                freezer = BlockFreezer(model, [])
                ran: list[int] = []
                for index, block in enumerate(model.blocks):
                    block.register_full_backward_hook(lambda *_, index=index, ran=ran: ran.append(index))
                freezer.freeze(2)
                loss_of(model, next(batches(1))).backward()
                self.assertEqual(sorted(ran), [2, 3])
                # Tied, the embedding still trains by the head; alone, it is behind the boundary and frozen, too.
                self.assertEqual((model.embedding.weight.grad is not None, model.position.weight.grad), (tied, None))

    def test_reentrant_checkpointing_is_refused_and_the_other_kind_is_not(self) -> None:
        model = small(checkpointing=True)
        optimizer = torch.optim.AdamW(model.parameters())
        freezer = BlockFreezer(model, [optimizer])
        train(model, optimizer, 1)
        with self.assertRaisesRegex(FreezeRefused, "reentrant"):
            freezer.freeze(2)
        self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))
        model = small(checkpointing=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        freezer = BlockFreezer(model, [optimizer])
        train(model, optimizer, 1)
        freezer.freeze(2)
        before = weights(model.blocks[1])
        train(model, optimizer, 3)
        self.assertEqual(moved(model.blocks[1], before), 0.0)

    def test_blocks_train_again_whatever_began_since_they_were_frozen(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        refusal: list[str] = []
        freezer = BlockFreezer(model, [optimizer], None, lambda: next(iter(refusal), None))
        freezer.freeze(2)
        refusal.append("the wrapper changed")
        with self.assertRaisesRegex(FreezeRefused, "the wrapper changed"):
            freezer.freeze(1)
        self.assertEqual(freezer.frozen, 2)
        freezer.freeze(0)
        self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_an_evaluation_is_no_reentrant_checkpointing(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters())
        freezer = BlockFreezer(model, [optimizer])
        with torch.no_grad():
            loss_of(model, next(batches(1)))
        train(model, optimizer, 1)
        self.assertIsNone(freezer.refusal(2))

    def test_a_compiled_model_is_compiled_once_more_and_reports_it(self) -> None:
        model = small()
        compiled = torch.compile(model, backend="eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        freezer = BlockFreezer(compiled, [optimizer])
        train(compiled, optimizer, 2)
        freezer.freeze(2)
        before = weights(model.blocks[1])
        train(compiled, optimizer, 2)
        self.assertEqual((moved(model.blocks[1], before), freezer.recompilations), (0.0, 1))

    def test_weights_that_other_parts_use_as_well_are_not_frozen(self) -> None:
        # One block for all layers, as in ALBERT: with it every layer would be frozen.
        shared = small()
        shared.blocks = nn.ModuleList([shared.blocks[0]] * 4)
        head_of_a_block = small()
        head_of_a_block.extra = head_of_a_block.blocks[0].out
        for model in (shared, head_of_a_block):
            freezer = BlockFreezer(model)
            self.assertIn("the first 2 blocks share weights with other parts of the model", freezer.refusal(2) or "")
            with self.assertRaises(FreezeRefused):
                freezer.freeze(2)
            self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_weights_that_frozen_blocks_share_train_again(self) -> None:
        # As ALBERT's groups, and as m[1].weight = m[0].weight.
        model = small()
        first, second = model.blocks[0], model.blocks[1]
        model.blocks = nn.ModuleList([first, first, second, second])
        tied = small()
        tied.blocks[1].out.weight = tied.blocks[0].out.weight
        for name, shared in {"blocks": model, "a weight": tied}.items():
            with self.subTest(name):
                freezer = BlockFreezer(shared)
                freezer.freeze(2)
                self.assertEqual([all(p.requires_grad for p in block.parameters()) for block in shared.blocks], [False, False, True, True])
                # What is refused from the start is refused from here, too.
                self.assertIn("the first 1 blocks share weights", freezer.refusal(1) or "")
                freezer.freeze(0)
                self.assertTrue(all(parameter.requires_grad for parameter in shared.parameters()))

    def test_layers_that_a_loop_thaws_meanwhile_are_not_frozen_again(self) -> None:
        model = small()
        model.blocks[:1].requires_grad_(False)
        freezer = BlockFreezer(model)
        freezer.freeze(2)
        model.blocks[:1].requires_grad_(True)
        freezer.freeze(0)
        self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_what_an_earlier_job_froze_of_the_same_model_trains_again(self) -> None:
        model = small()
        model.blocks[:1].requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        earlier = BlockFreezer(model, [optimizer])
        earlier.freeze(3)
        another = small()
        BlockFreezer(another)
        self.assertEqual(earlier.frozen, 3)
        # As the callbacks do where a trainer trains once more.
        later = BlockFreezer(model, [optimizer])
        self.assertEqual((earlier.frozen, later.frozen, len(optimizer._optimizer_step_pre_hooks)), (0, 0, 0))
        trained = [all(parameter.requires_grad for parameter in block.parameters()) for block in model.blocks]
        self.assertEqual(trained, [False, True, True, True], "the loop's own are left to it")
        before = weights(model.blocks[1])
        train(model, optimizer, 2)
        self.assertGreater(moved(model.blocks[1], before), 0.0)

    def test_layers_that_a_loop_thaws_itself_go_on_training(self) -> None:
        model = small()
        model.blocks[:3].requires_grad_(False)
        freezer = BlockFreezer(model)
        # After some epochs, as in gradual unfreezing.
        model.blocks[1:].requires_grad_(True)

        def trained() -> list[bool]:
            return [all(parameter.requires_grad for parameter in block.parameters()) for block in model.blocks]

        freezer.freeze(2)
        self.assertEqual(trained(), [False, False, True, True])
        freezer.freeze(1)
        self.assertEqual(trained(), [False, True, True, True])
        freezer.freeze(3)
        self.assertEqual(trained(), [False, False, False, True])
        freezer.freeze(0)
        self.assertEqual(trained(), [False, True, True, True])

    def test_all_blocks_or_none_found_is_refused(self) -> None:
        self.assertIn("at least the last one trains", BlockFreezer(small()).refusal(4) or "")
        self.assertIn("no blocks were found", BlockFreezer(nn.Linear(2, 2)).refusal(1) or "")


WIDTH = 8


class Part(nn.Module):
    """A block, which may take a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, condition: torch.Tensor | None = None) -> torch.Tensor:
        x = x if condition is None else x * condition
        return x + self.two(torch.relu(self.one(x)))


class Body(nn.Module):
    """An embedding and blocks, without a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Part() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return x


class Whole(nn.Module):
    """A body and a head, tied or not; ``module`` is what wrappers call what they have, too."""

    skips = False

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.module = Body()
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        if tied:
            self.head.weight = self.module.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.module(x)
        return self.head(hidden + self.module.embedding(x) if self.skips else hidden)


class Past(Body):
    """A way past the blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.embedding(x)


class Conditioned(Body):
    """Each block takes a condition, whose embedding is listed beside the blocks, and whose layer behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.layer, self.head = nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        condition = self.layer(self.kind(x))
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, condition)
        return self.head(x)


class Lookahead(torch.optim.SGD):
    """Goes back a part of the way every third step, as optimizers do that average weights."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()
        weights = [weight for group in self.param_groups for weight in group["params"]]
        self.slow = getattr(self, "slow", None) or [weight.detach().clone() for weight in weights]
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps % 3 == 0:
            for weight, slow in zip(weights, self.slow):
                weight.data.lerp_(slow, 0.5)
                slow.copy_(weight.data)


class TestExact(unittest.TestCase):
    """What is not frozen keeps its gradient, or the freeze is refused."""

    def setUp(self) -> None:
        torch.manual_seed(0)
        self.batch = torch.randint(WIDTH, (4, 5))

    def gradients(self, run: Callable[[torch.Tensor], torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
        model.zero_grad()
        run(self.batch).pow(2).mean().backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}

    def answer(self, model: nn.Module, run: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer) -> str | None:
        """Returns why two blocks of a model that trains are not frozen; ``None``: they are."""
        freezer = BlockFreezer(model, [optimizer])
        for frozen in (0, 2):
            why = freezer.refusal(frozen)
            if why is not None:
                return why
            freezer.freeze(frozen)
            freezer.begin_check()
            settled = False
            for step in range(5):
                if isinstance(optimizer, torch.optim.LBFGS):
                    optimizer.step(lambda: (self.gradients(run, model), torch.zeros(()))[1])
                else:
                    self.gradients(run, model)
                    optimizer.step()
                settled, why = freezer.check(step == 4)
                if why is not None:
                    freezer.freeze(0)
                    self.assertTrue(all(weight.requires_grad for weight in model.parameters()))
                    return why
                if settled and step > 0:
                    break
            self.assertTrue(settled)
            freezer.end_check()
        whole = self.gradients(run, freezer.model)
        frozen = {id(weight) for weight in freezer.frozen_parameters()}
        freezer.freeze(0)
        freed = self.gradients(run, freezer.model)
        for name, weight in model.named_parameters():
            if id(weight) not in frozen:
                # A tied embedding trains by the head.
                self.assertEqual(name in whole, name in freed, name)
                if not name.endswith("embedding.weight"):
                    torch.testing.assert_close(whole[name], freed[name])
        return None

    def test_weights_that_what_was_not_seen_uses_train_on_or_are_refused(self) -> None:
        outside, wrapper, past, skip = Whole(True), Whole(True), Past(), Whole(False)
        skip.skips = True
        method = Conditioned()
        for name, model, run, part in (
            ("a tied head that a loop calls itself", outside, lambda x: outside.head(outside.module(x)), None),
            ("a tied head of what has a `module`", wrapper, wrapper, None),
            ("an embedding past the blocks", past, past, "on a part of their gradients"),
            ("the same outside of the module", skip, skip, "on a part of their gradients"),
            ("the same in the loop", skip, lambda x: skip.head(skip.module(x) + skip.module.embedding(x)), "on a part of their gradients"),
            ("a method that is not forward", method, method.forward, None),
        ):
            with self.subTest(name):
                answer = self.answer(model, run, torch.optim.SGD(model.parameters(), lr=0.01))
                self.assertIn(part or "None", str(answer))

    def test_an_input_of_the_blocks_that_a_loop_uses_as_well_is_refused(self) -> None:
        model, kept = Whole(True), []
        model.module.embedding.register_forward_hook(lambda _, __, output: kept.append(output))
        answer = self.answer(model, lambda x: model.head(model.module(x)) + kept[-1], torch.optim.SGD(model.parameters(), lr=0.01))
        self.assertIn("what is in front of the blocks is used by other parts as well", answer or "")

    def test_what_cannot_be_seen_of_a_compiled_model_is_refused_and_a_usual_one_freezes(self) -> None:
        for model, part in ((Conditioned(), "on a part of their gradients: kind.weight, layer.weight"), (Whole(True), None)):
            with self.subTest(type(model).__name__):
                torch._dynamo.reset()
                compiled = torch.compile(model, backend="eager")
                answer = self.answer(compiled, compiled, torch.optim.SGD(model.parameters(), lr=0.01))
                self.assertIn(part or "None", str(answer))

    def test_a_freeze_between_two_passes_of_a_step_keeps_gradients_behind_the_blocks_of_a_compiled_model(self) -> None:
        torch._dynamo.reset()
        model = Whole(False)
        compiled = torch.compile(model, backend="eager")
        freezer = BlockFreezer(compiled, [torch.optim.SGD(model.parameters(), lr=0.01)])
        compiled(self.batch).sum().backward()
        freezer.freeze(1)
        self.assertIsNotNone(model.head.weight.grad)

    def test_a_weight_to_which_compiled_code_hands_no_gradient_got_none(self) -> None:
        # As PyTorch's own backends do; their hooks run all the same.
        model = Whole(False)
        freezer = BlockFreezer(model)
        freezer.freeze(1)
        freezer.begin_check()
        check = freezer._changes.check
        assert check is not None
        check._on_received(model.head.weight)
        self.assertEqual(check._received, set())

    def test_optimizers_that_move_weights_without_a_gradient_are_refused(self) -> None:
        for kind in (torch.optim.LBFGS, Lookahead):
            with self.subTest(kind.__name__):
                model = Whole(False)
                self.assertIn("frozen weights moved all the same", self.answer(model, model, kind(model.parameters(), lr=0.01)) or "")

    def test_ranks_that_exchange_gradients_by_hand_are_refused(self) -> None:
        with mock.patch("eadt.freeze.rank_and_world", return_value=(0, 2)):
            self.assertIn("exchanges gradients between ranks itself", BlockFreezer(Whole(False)).refusal(1) or "")

    def test_ranks_that_do_not_train_together_by_torch_distributed_are_refused(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        for named in (
            {"WORLD_SIZE": "2"},
            {"OMPI_COMM_WORLD_SIZE": "2"},
            {"SLURM_STEP_NUM_TASKS": "2"},
            {"RANK": "1"},
            {"WORLD_SIZE": "1"},
        ):
            with self.subTest(named), mock.patch.dict(os.environ, named):
                model = Whole(False)
                with eadt.job(model, None, layers="auto", url=server.url, workload="n/a") as job:
                    with job.autocast():
                        model(self.batch).sum().backward()
                    job.step()
                    for asked in ({"frozen_prefix_layers": 2}, {"precision": "bf16"}):
                        refusal = job._own_refusal(Directive("d-1", **asked))
                        is_refused = refusal is not None and "that cannot agree on it" in refusal
                        self.assertEqual(is_refused, named != {"WORLD_SIZE": "1"}, refusal)
                    for asked in ({}, {"checkpoint_now": True}):
                        self.assertIsNone(job._own_refusal(Directive("d-1", **asked)))


class TestEnds(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Recorder()
        self.addCleanup(self.server.close)

    def job(self, model: nn.Module) -> eadt.job:
        return eadt.job(model, torch.optim.SGD(model.parameters(), lr=0.01), layers="auto", url=self.server.url, workload="n/a")

    def step(self, job: eadt.job, model: nn.Module) -> None:
        model(torch.randint(WIDTH, (2, 3))).sum().backward()
        job.step(samples=1)

    def test_a_job_that_ends_gives_all_weights_back_and_reports_what_was_frozen(self) -> None:
        for way in ("closed", "raised", "collected"):
            with self.subTest(way):
                model = Whole(True)
                job = self.job(model)
                with contextlib.suppress(RuntimeError):
                    if way == "collected":
                        freezer = BlockFreezer(model)
                        freezer.freeze(2)
                        del job, freezer
                        gc.collect()
                    else:
                        with job:
                            self.step(job, model)
                            job._take_up(Directive("d-1", frozen_prefix_layers=2))
                            self.step(job, model)
                            self.assertEqual((job.answers, job._freezer.frozen), ([("d-1", None)], 2))
                            if way == "raised":
                                raise RuntimeError
                self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))
                if way != "collected":
                    self.assertFalse(any(module._forward_pre_hooks or module._forward_hooks for module in model.modules()))
                    self.assertEqual((job.frozen_layers, job._freezer.frozen), (2, 0))
                    # Nothing is taken up after the end.
                    job._pending = Directive("d-2", frozen_prefix_layers=1)
                    job.checkpointed()
                    self.assertEqual(job._freezer.frozen, 0)

    def test_a_job_that_nothing_refers_to_ends_and_its_blocks_train_again_while_its_client_runs(self) -> None:
        model = Whole(True)
        job = eadt.job(model, None, layers="auto", url=self.server.url, workload="n/a", interval_seconds=0.02)
        job.start()
        self.step(job, model)
        job._take_up(Directive("d-1", frozen_prefix_layers=2))
        self.step(job, model)
        self.assertEqual((job.answers, job._freezer.frozen), ([("d-1", None)], 2))
        wait_for(lambda: self.server.events)
        left, thread = weakref.ref(job), job.client._thread
        assert thread is not None and thread.is_alive()
        del job
        # The thread may be in a call of the job.
        wait_for(lambda: gc.collect() is None or left() is None)
        self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))
        thread.join(60.0)
        self.assertFalse(thread.is_alive())
        last = self.server.events[-1]
        self.assertEqual((last["phase"], last["steps_total"], last["samples_total"]), ("finished", 2, 2))

    def left(self, has_optimizer: bool = True, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, eadt.job]:
        """Returns a job with frozen blocks, whose client's thread waits and holds nothing of it."""
        model = Whole(True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        options |= {"layers": "auto", "url": self.server.url, "workload": "n/a", "interval_seconds": 600.0}
        job = eadt.job(model, optimizer if has_optimizer else None, **options)
        self.step(job, model)
        job._take_up(Directive("d-1", frozen_prefix_layers=2))
        self.step(job, model)
        self.assertEqual((job.answers, job._freezer.frozen), ([("d-1", None)], 2))
        return model, optimizer, job

    def test_the_last_reference_to_a_job_ends_it_at_once_without_a_collector(self) -> None:
        gc.disable()
        self.addCleanup(gc.enable)
        model, _, job = self.left(plasticity_every=100)
        client = job.client
        del job
        self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))
        self.assertFalse(any(module._forward_pre_hooks or module._forward_hooks for module in model.modules()))
        ending = client.begin_exit()
        assert ending is not None
        ending.join(60.0)
        last = self.server.events[-1]
        self.assertEqual((last["phase"], last["steps_total"]), ("finished", 2))

    def test_a_collector_or_another_thread_changes_nothing_in_the_middle_of_a_step(self) -> None:
        batch = torch.randint(WIDTH, (2, 3))
        for way in ("collector", "in the optimizer's step", "thread"):
            for ends_by in ("step", "the second pass"):
                with self.subTest(way, ends_by=ends_by):
                    model, optimizer, job = self.left()
                    blocks = model.module.blocks
                    last = [job]
                    if way != "thread":
                        job.own = job
                        last.clear()
                    del job
                    loss = model(batch).sum()
                    if way == "in the optimizer's step":
                        for collect in (lambda *_: gc.collect() and None, lambda *_: None):
                            optimizer.register_step_pre_hook(collect)
                    elif way == "collector":
                        gc.collect()
                    else:
                        thread = threading.Thread(target=last.clear)
                        thread.start()
                        thread.join()
                    self.assertFalse(any(parameter.requires_grad for parameter in blocks[0].parameters()))
                    loss.backward()
                    self.assertIsNone(next(blocks[1].parameters()).grad)
                    if ends_by == "the second pass" and way != "in the optimizer's step":
                        # The second one of the same step: half of the gradients would be there.
                        model(batch).sum().backward()
                        self.assertIsNone(next(blocks[0].parameters()).grad)
                    optimizer.step()
                    self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))
                    self.assertFalse(blocks[0]._forward_pre_hooks)

    def test_a_job_that_is_collected_between_two_steps_has_its_blocks_train_in_the_next_one(self) -> None:
        for has_optimizer in (True, False):
            with self.subTest(has_optimizer=has_optimizer):
                model, optimizer, job = self.left(has_optimizer=has_optimizer)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                job.own = job
                del job
                gc.collect()
                self.assertFalse(any(parameter.requires_grad for parameter in model.module.blocks[0].parameters()))
                for _ in range(2):
                    model(torch.randint(WIDTH, (2, 3))).sum().backward()
                    self.assertIsNotNone(next(model.module.blocks[0].parameters()).grad)

    def test_a_job_that_is_collected_does_not_end_the_next_one_of_its_client(self) -> None:
        client = Client(self.server.url, "n/a", interval_seconds=0.02)
        for _ in range(2):
            model = Whole(True)
            job = eadt.job(model, None, layers="auto", client=client)
            self.step(job, model)
            gc.collect()
        self.assertIsNone(client._left)
        self.assertTrue(client.is_open())
        job.close()

    def test_frozen_weights_that_move_later_are_reported_once_and_the_freeze_is_taken_back(self) -> None:
        model = Whole(True)
        with self.job(model) as job:
            self.step(job, model)
            job._take_up(Directive("d-1", frozen_prefix_layers=2))
            self.step(job, model)
            with torch.no_grad():
                model.module.blocks[1].two.bias[3] += 1e-3
            job._take_up(Directive("d-2", frozen_prefix_layers=3))
            job._look_again()
            for _ in range(2):
                job._agree()
            reason = "it was taken back: frozen weights moved later all the same"
            self.assertEqual(job.answers, [("d-1", None), ("d-2", "3 of 3 blocks: at least the last one trains"), ("d-1", reason)])
            self.assertEqual(job.frozen_layers, 0)
            self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_another_job_begins_with_what_the_model_was_and_its_withdrawal_thaws(self) -> None:
        model = Whole(True)
        left = BlockFreezer(model)
        left.freeze(2)
        with self.job(model) as job:
            self.assertEqual((job.frozen_layers, left.frozen), (0, 0))
            for layers in (1, None):
                job._take_up(Directive("d-1", frozen_prefix_layers=layers))
                self.step(job, model)
            self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_a_freeze_that_fails_leaves_nothing_of_it(self) -> None:
        class Unhooked(torch.optim.Optimizer):
            """As wrappers of an optimizer that do not call PyTorch's own constructor."""

            def __init__(self, inner: torch.optim.Optimizer) -> None:
                self.param_groups, self.step, self.zero_grad = inner.param_groups, inner.step, inner.zero_grad

        model = Whole(False)
        inner = torch.optim.SGD(model.parameters(), lr=0.01)
        model(torch.randint(WIDTH, (2, 3))).sum().backward()
        with eadt.job(model, [inner, Unhooked(inner)], layers="auto", url=self.server.url, workload="n/a") as job:
            job._take_up(Directive("d-1", frozen_prefix_layers=2))
            [(_, answer)] = job.answers
            self.assertIn("all blocks train again", answer or "")
            self.assertIn("_optimizer_step_pre_hooks", answer or "")
            self.assertEqual((job.frozen_layers, len(inner._optimizer_step_pre_hooks)), (0, 0))
            for parameter in model.parameters():
                self.assertTrue(parameter.requires_grad and parameter.grad is not None)
            # And where blocks were frozen before it.
            job._freezer._optimizers.pop()
            job._freezer.freeze(1)
            with mock.patch("eadt.freeze.Fingerprint", side_effect=MemoryError):
                job._take_up(Directive("d-2", frozen_prefix_layers=2))
            self.assertEqual((job.answers[-1][1], job.frozen_layers), ("it failed, and all blocks train again: MemoryError", 0))
            self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_weights_that_replace_frozen_ones_train_again(self) -> None:
        for way in ("agreed", "closed"):
            with self.subTest(way):
                model = Whole(False)
                with self.job(model) as job:
                    self.step(job, model)
                    job._take_up(Directive("d-1", frozen_prefix_layers=2))
                    self.step(job, model)
                    self.assertEqual(job.answers, [("d-1", None)])
                    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
                    self.assertFalse(next(model.module.blocks[0].parameters()).requires_grad)
                    if way == "agreed":
                        job._agree()
                        self.assertIn("weights of frozen blocks were replaced", job.answers[-1][1] or "")
                        self.assertEqual(job.frozen_layers, 0)
                self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))

    def test_blocks_with_a_scripted_part_train_again(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            blocks = [nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.LayerNorm(4))) for _ in range(3)]
        model = nn.Sequential(*blocks, nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        freezer = BlockFreezer(model, [optimizer], blocks)
        for end in (lambda: freezer.freeze(0), freezer.close):
            freezer.freeze(2)
            before = weights(blocks[1])
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            self.assertIsNone(freezer.opened())
            self.assertEqual(moved(blocks[1], before), 0.0)
            end()
            self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))
            self.assertFalse(optimizer._optimizer_step_pre_hooks or blocks[0]._forward_pre_hooks)

    def test_a_frozen_weight_that_was_replaced_by_one_that_cannot_train_keeps_no_other_from_it(self) -> None:
        model = Whole(False)
        freezer = BlockFreezer(model, [torch.optim.SGD(model.parameters(), lr=0.01)], list(model.module.blocks))
        freezer.freeze(2)
        owner = next(module for module in model.module.blocks[0].modules() if isinstance(module, nn.Linear))
        before, owner.weight = owner.weight, nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
        freezer.close()
        self.assertTrue(before.requires_grad)
        self.assertEqual([parameter for parameter in model.parameters() if not parameter.requires_grad], [owner.weight])

    def test_exports_are_not_of_the_job(self) -> None:
        model, given = Whole(False), torch.randint(WIDTH, (2, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with eadt.job(model, optimizer, url=self.server.url, workload="n/a") as job:
            for _ in range(2):
                self.assertFalse(any([*module._forward_hooks, *module._forward_pre_hooks] for module in model.modules()))
                self.step(job, model)
                job._look_again()
        with self.job(model) as job:
            self.step(job, model)
            job._take_up(Directive("d-1", frozen_prefix_layers=2))
            self.step(job, model)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # It traces twice, and compares.
                torch.jit.trace(model, given)
                torch.export.export(model, (given,))
                with self.assertRaisesRegex(AttributeError, "or use torch.jit.trace or torch.export"):
                    torch.jit.script(model)
            job._agree()
            self.assertEqual((job.answers, job.frozen_layers), ([("d-1", None)], 2))

    def test_a_model_can_be_pickled_and_copied_at_any_time_and_copies_have_no_part_of_the_job(self) -> None:
        for name in ("eager", "in place"):
            torch._dynamo.reset()
            model = Conditioned()
            if name == "in place":
                model.compile(backend="eager")
            with self.subTest(name), self.job(model) as job:
                for step in range(4):
                    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), AveragedModel(model).module]
                    for copied in copies if step == 3 and name == "eager" else ():
                        copied.requires_grad_(True)
                        copied(torch.randint(WIDTH, (2, 3))).sum().backward()
                        self.assertIsNotNone(copied.embedding.weight.grad, "its blocks are not cut off")
                    job._look_again(whole=True)
                    self.step(job, model)
                    if step == 2:
                        job._take_up(Directive("d-1", frozen_prefix_layers=2))
                self.assertEqual(job._freezer.frozen, 2 if name == "eager" else 0)
            self.assertNotIn(b"eadt", pickle.dumps(model))


class Pictured(nn.Module):
    """Takes pictures beside text in some passes."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.picture = nn.Linear(4, WIDTH), nn.Linear(4, WIDTH)
        # DDP sends it in each pass.
        self.register_buffer("sent", torch.zeros(1))
        self.fails = False
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(4))

    def forward(self, text: torch.Tensor, picture: torch.Tensor | None) -> torch.Tensor:
        if self.fails and not self.training:
            raise MemoryError("none for a pass of evaluation")
        x = self.text(text)
        x = x if picture is None else x + self.picture(picture)
        for block in self.blocks:
            x = block(x)
        return x


#: Ranks that wait for each other end the test.
WAIT = timedelta(seconds=300)


def rank_main(rank: int, folder: str) -> None:
    """Trains where one rank has pictures: at the look before a freeze, at its check, or later; and where something fails on it."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), EADT_DISABLED="1")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=WAIT)
    found = {}
    # The steps in which the second rank alone has pictures; the directive is there in step 2, seen in step 3, and taken up after step 4.
    for name, pictured in {"look": (3, 9), "check": (5, 9), "later": (8, 9), "failure": ()}.items():
        torch.manual_seed(0)
        plain = Pictured()
        model = DistributedDataParallel(plain, find_unused_parameters=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(1 + rank)
        frozen, gradients = [], []
        plain.fails = is_failing = rank == 1 and name == "failure"
        every = 3 if name == "failure" else 0
        failing = mock.patch("eadt.freeze.Boundary", side_effect=MemoryError) if is_failing else contextlib.nullcontext()
        with eadt.job(model, optimizer, layers="auto", workload="n/a", agree_every=1, plasticity_every=every) as job, failing:
            for step in range(1, 13):
                if step == 2 and rank == 0:
                    job.client._answer = (1, Directive("d-1", frozen_prefix_layers=2))
                picture = torch.randn(4, 4) if rank == 1 and step in pictured else None
                model(torch.randn(4, 4), picture).pow(2).mean().backward()
                optimizer.step()
                gradients.append(plain.text.weight.grad is not None)
                optimizer.zero_grad()
                job.step(samples=4)
                if job.checkpoint_due() and step >= 4:
                    job.checkpointed()
                frozen.append(job.frozen_layers)
        ranks: list[Any] = [None, None]
        distributed.all_gather_object(ranks, [weight.tolist() for weight in plain.parameters()])
        found[name] = {"same": ranks[0] == ranks[1], "answers": job.answers, "frozen": frozen, "gradients": gradients}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


class TestRanks(unittest.TestCase):
    def test_ranks_that_see_other_weights_in_front_of_the_blocks_are_not_frozen_and_stay_equal(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(rank_main, args=(folder,), nprocs=2)
            ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]
        self.assertEqual(ranks[0], ranks[1])
        differ, checked, later = (
            "other weights lead to the blocks on rank 1 than on rank 0",
            "it was taken back: rank 0: weights in front of the blocks",
            # Rank 0 has their gradients alone.
            "it was taken back: rank 1: weights lead to the blocks that did not in the step before the freeze",
        )
        failed = "it failed, and all blocks train again: rank 1: MemoryError"
        expected = (("look", [differ], 0), ("check", [checked], 1), ("later", [None, later], 4), ("failure", [failed], 0))
        for name, answers, frozen in expected:
            with self.subTest(name):
                found = ranks[0][name]
                self.assertTrue(found["same"], found)
                self.assertEqual(len(found["answers"]), len(answers))
                for (_, given), part in zip(found["answers"], answers):
                    self.assertIn(part or "None", str(given))
                self.assertEqual(found["frozen"], [0] * 3 + [2] * frozen + [0] * (9 - frozen))
                self.assertTrue(all(found["gradients"][4 + frozen :]), found)


class TestDistributed(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        distributed.init_process_group("gloo", init_method=f"file://{cls.folder.name}/store", rank=0, world_size=1)

    @classmethod
    def tearDownClass(cls) -> None:
        distributed.destroy_process_group()
        cls.folder.cleanup()

    def test_ddp_that_waits_for_every_gradient_is_refused_and_the_other_kind_freezes(self) -> None:
        for options, part in [({}, "find_unused_parameters=True"), ({"static_graph": True}, "static_graph")]:
            model = DistributedDataParallel(small(), **options)
            self.assertIn(part, BlockFreezer(model).refusal(2) or "")
        model = DistributedDataParallel(small(), find_unused_parameters=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, 2)
        freezer = BlockFreezer(model, [optimizer])
        freezer.freeze(2)
        before = weights(model.module.blocks[1])
        train(model, optimizer, 3)
        self.assertEqual(moved(model.module.blocks[1], before), 0.0)

    def test_fsdp_1_is_refused_with_flat_weights_and_freezes_with_the_original_ones(self) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        def wrapped(use_orig_params: bool) -> FullyShardedDataParallel:
            policy, model = ModuleWrapPolicy({Block}), small(tied=False)
            return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=use_orig_params, device_id=torch.device("cpu"))

        model = wrapped(False)
        self.assertIn("use_orig_params=True", BlockFreezer(model, blocks=model.module.blocks).refusal(2) or "")
        model = wrapped(True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        freezer = BlockFreezer(model, [optimizer])
        train(model, optimizer, 2)
        freezer.freeze(2)
        before = [weights(block) for block in model.module.blocks]
        train(model, optimizer, 3)
        changes = [moved(block, then) for block, then in zip(model.module.blocks, before)]
        self.assertEqual(changes[:2], [0.0, 0.0])
        self.assertTrue(all(change > 0 for change in changes[2:]), changes)

    def test_nothing_left_to_train_is_refused_whatever_wraps_the_model(self) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

        def sharded(model: nn.Module) -> nn.Module:
            return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))

        for wrap in (lambda model: DistributedDataParallel(model, find_unused_parameters=True), fully_shard, sharded):
            model = small(tied=False)
            model.requires_grad_(False)
            model.blocks[:2].requires_grad_(True)
            wrapped = wrap(model)
            freezer = BlockFreezer(wrapped)
            loss_of(wrapped, next(batches(1))).backward()
            self.assertIn("nothing would be left to train", freezer.refusal(2) or "")
            self.assertIsNone(freezer.refusal(1))

    def test_without_the_package_ddp_raises_once_weights_are_frozen(self) -> None:
        model = DistributedDataParallel(small())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, 2)
        model.module.blocks[0].requires_grad_(False)
        with self.assertRaisesRegex(RuntimeError, "find_unused_parameters"):
            train(model, optimizer, 3)

    def test_fsdp_2_freezes(self) -> None:
        from torch.distributed.fsdp import fully_shard

        model = small()
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        freezer = BlockFreezer(model, [optimizer])
        train(model, optimizer, 2)
        freezer.freeze(2)
        before = [p.full_tensor().detach().clone() for p in model.blocks[1].parameters()]
        train(model, optimizer, 3)
        after = [p.full_tensor() for p in model.blocks[1].parameters()]
        self.assertEqual(max(float((a - b).abs().max()) for a, b in zip(after, before)), 0.0)


class TestJob(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Recorder()
        self.addCleanup(self.server.close)
        os.environ["EADT_WORKLOAD"] = "n/a"

    def ask(self, revision: int, **body: object) -> None:
        directive = {"decision_id": f"d-{revision}", **body} if body else None
        self.server.answer = {"directives": [{"workload": "n/a", "revision": revision, "directive": directive}]}

    def run_job(self, job: eadt.job, model: nn.Module, optimizer: torch.optim.Optimizer, until: object, limit: int = 4000) -> None:
        for text in batches(limit):
            optimizer.zero_grad()
            with job.autocast():
                loss = loss_of(model, text)
            loss.backward()
            optimizer.step()
            job.step(samples=len(text), loss=loss)
            if job.checkpoint_due():
                job.checkpointed()
            if until():
                return
        self.fail("not within the steps")

    def job(self, model: nn.Module, optimizer: torch.optim.Optimizer, **options: object) -> eadt.job:
        return eadt.job(model, optimizer, layers="auto", url=self.server.url, interval_seconds=0.05, agree_every=2, **options)

    def test_a_directive_freezes_at_a_checkpoint_is_acknowledged_and_withdrawn(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with self.job(model, optimizer) as job:
            self.run_job(job, model, optimizer, lambda: job.steps_total >= 5)
            self.ask(3, frozen_prefix_layers=2)
            self.run_job(job, model, optimizer, lambda: job.frozen_layers == 2)
            before = weights(model.blocks[1])
            self.run_job(job, model, optimizer, lambda: any(e.get("decision_id") == "d-3" for e in self.server.events))
            self.assertEqual(moved(model.blocks[1], before), 0.0)
            acknowledged = [event for event in self.server.events if event.get("decision_id") == "d-3"][-1]
            self.assertEqual((acknowledged["frozen_prefix_layers"], acknowledged["layers"]), (2, 4))
            self.assertNotIn("directive_refused", acknowledged)
            self.ask(4)
            self.run_job(job, model, optimizer, lambda: job.frozen_layers == 0)
        self.assertEqual(job.answers, [("d-3", None)])
        self.assertEqual(self.server.events[-1]["phase"], "finished")
        self.assertIn("J/sample unknown", job.summary() if job.energy.joules is None else "J/sample unknown")

    def test_a_freeze_that_leaves_an_optimizer_nothing_is_refused_beside_a_scaler(self) -> None:
        for shares, answer in ((1, "an optimizer would have nothing to train"), (2, None)):
            with self.subTest(blocks_of_the_first_optimizer=shares):
                model = small(tied=False)
                first = [*model.embedding.parameters(), *model.position.parameters(), *model.blocks[:shares].parameters()]
                rest = [parameter for parameter in model.parameters() if all(parameter is not other for other in first)]
                optimizers, scaler = [torch.optim.AdamW(first), torch.optim.AdamW(rest)], torch.amp.GradScaler("cpu")
                job = eadt.job(model, optimizers, layers="auto", scaler=scaler, url=self.server.url, workload="n/a")
                job._take_up(Directive(decision_id="d-1", frozen_prefix_layers=1))
                refusals = [refusal for _, refusal in job.answers]
                self.assertEqual([answer in (refusal or "") for refusal in refusals], [True] if answer else [])
                for text in batches(2):
                    scaler.scale(loss_of(model, text)).backward()
                    for optimizer in optimizers:
                        scaler.step(optimizer)
                        optimizer.zero_grad()
                    scaler.update()
                job.close()

    def test_a_scaler_that_is_off_and_an_optimizer_that_moves_nothing_anyway_refuse_nothing(self) -> None:
        def answer(enabled: bool, other: bool) -> str | None:
            model, critic = small(tied=False), nn.Linear(2, 2).requires_grad_(False)
            first = [*model.embedding.parameters(), *model.position.parameters(), *model.blocks[:1].parameters()]
            optimizers = [torch.optim.SGD(critic.parameters() if other else first, lr=0.1)]
            scaler = torch.amp.GradScaler("cpu", enabled=enabled)
            job = eadt.job(model, optimizers, layers="auto", scaler=scaler, url=self.server.url, workload="n/a")
            job._take_up(Directive(decision_id="d-1", frozen_prefix_layers=1))
            job.close()
            # A freeze is acknowledged after a step.
            return job.answers[-1][1] if job.answers else None

        self.assertIn("nothing to train", answer(enabled=True, other=False) or "")
        self.assertIsNone(answer(enabled=False, other=False))
        # The other network of a GAN, which waits for its turn.
        self.assertIsNone(answer(enabled=True, other=True))

    def test_precision_changes_where_the_loop_lets_it_and_is_the_effective_one(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with self.job(model, optimizer) as job:
            self.run_job(job, model, optimizer, lambda: job.effective_precision == "fp32")
            self.assertIn("precision", job.live_knobs())
            saved: list[int] = []
            take_up = job._take_up
            job._take_up = lambda directive: (saved.append(job.steps_total), take_up(directive))
            self.ask(7, precision="fp32")
            self.run_job(job, model, optimizer, lambda: len(job.answers) == 1)
            self.assertEqual((job.answers, saved), ([("d-7", None)], []), "it computes in that already")
            job.answers.clear()
            self.ask(1, precision="bf16")
            self.run_job(job, model, optimizer, lambda: job.effective_precision == "bf16")
            self.ask(8, precision="bf16")
            self.run_job(job, model, optimizer, lambda: len(job.answers) == 2)
            self.ask(2, precision="fp16")
            self.run_job(job, model, optimizer, lambda: len(job.answers) == 3)
            self.assertEqual(len(saved), 1)
            self.assertIn("scaler", job.answers[-1][1])
            self.assertEqual(job.effective_precision, "bf16", "a refused directive changes nothing")
            wait_for(lambda: job.client.report(steps_total=1) or any("directive_refused" in event for event in self.server.events))
        self.assertTrue(any(event.get("precision") == "bf16" for event in self.server.events))

    def test_fp16_is_refused_where_no_scaler_scales(self) -> None:
        for scaler, refusal in (
            (None, "a gradient scaler that is enabled"),
            (torch.amp.GradScaler("cpu", enabled=False), "a gradient scaler that is enabled"),
            (torch.amp.GradScaler("cpu"), "FP16 on a CPU"),
        ):
            with self.subTest(scaler), eadt.job(small(), scaler=scaler, url=self.server.url, workload="n/a") as job:
                with job.autocast():
                    pass
                job._take_up(Directive(decision_id="d-1", precision="fp16"))
                self.assertIn(refusal, job.answers[-1][1] or "")

    def test_without_layers_the_precision_that_is_computed_in_already_asks_for_no_checkpoint(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with eadt.job(model, optimizer, url=self.server.url, workload="n/a", agree_every=1) as job:
            self.run_job(job, model, optimizer, lambda: job.steps_total == 1)
            for number, precision, is_due in ((1, "fp32", False), (2, "bf16", True)):
                job.client._answer = (number, Directive(f"d-{number}", precision=precision))
                with job.autocast():
                    model(next(batches(1))[:, :-1])
                job.step(1)
                self.assertEqual((job.checkpoint_due(), len(job.answers)), (is_due, 1), precision)
            self.assertEqual(job.answers, [("d-1", None)])

    def test_a_precision_of_another_name_is_computed_in(self) -> None:
        for name in ("bfloat16", "bf16-mixed", "torch.bfloat16"):
            with self.subTest(name):
                model = small()
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
                with self.job(model, optimizer, precision=name) as job:
                    self.run_job(job, model, optimizer, lambda: True)
                self.assertEqual(job.effective_precision, "bf16")

    def test_a_job_without_layers_refuses_to_freeze(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with eadt.job(model, optimizer, url=self.server.url, interval_seconds=0.05, agree_every=2) as job:
            self.ask(1, frozen_prefix_layers=1)
            self.run_job(job, model, optimizer, lambda: job.answers)
            self.assertIn("layers='auto'", job.answers[0][1])

    def test_plasticity_is_measured_every_so_many_steps_if_that_is_wanted(self) -> None:
        model = small()
        # Some modules may be kept from training on purpose.
        model.norm.eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        passes: list[int] = []
        model.blocks[0].register_forward_hook(lambda block, *_: passes.append(job.steps_total) if not block.training else None)
        with self.job(model, optimizer, plasticity_every=7) as job:
            self.run_job(job, model, optimizer, lambda: job.steps_total == 20)
            self.assertEqual(passes, [7, 14])
            wait_for(lambda: any("plasticity" in event for event in self.server.events))
            self.ask(1, frozen_prefix_layers=2)
            self.run_job(job, model, optimizer, lambda: job.frozen_layers == 2)
            at = job.steps_total
            self.run_job(job, model, optimizer, lambda: job.steps_total >= at + 14)
            self.assertFalse(model.norm.training)
            self.assertTrue(model.blocks[0].training)
        reports = [event["plasticity"] for event in self.server.events if "plasticity" in event]
        first, last = reports[0], reports[-1]
        self.assertTrue(all(value > 1e-6 for value in first) and len(first) == 4, first)
        self.assertEqual(last[:2], [None, None], "frozen blocks have none")
        self.assertTrue(all(value > 1e-6 for value in last[2:]), last)

    def test_plasticity_that_cannot_be_measured_does_not_reach_training(self) -> None:
        class Once(SmallGpt):
            def forward(self, text: torch.Tensor) -> torch.Tensor:
                if not self.training:
                    raise RuntimeError("trains only")
                return super().forward(text)

        model = Once(blocks=4, width=32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with self.job(model, optimizer, plasticity_every=2) as job, self.assertLogs("eadt", "WARNING") as log:
            self.run_job(job, model, optimizer, lambda: job.steps_total == 9)
        self.assertEqual([line for line in log.output if "plasticity" in line and "trains only" in line], log.output)
        self.assertEqual((len(log.output), model.training), (1, True))

    def test_the_loss_of_a_step_is_read_by_another_thread(self) -> None:
        model = small()
        with self.job(model, None) as job:
            loss = loss_of(model, next(batches(1)))
            job.step(samples=1, loss=loss)
        losses = [event["loss"] for event in self.server.events if "loss" in event]
        self.assertAlmostEqual(losses[-1], float(loss), places=5)


class TestHooks(unittest.TestCase):
    """A module or an optimizer with a hook is slower in each step, so hooks go when they have seen what they look for."""

    def setUp(self) -> None:
        self.server = Recorder()
        self.addCleanup(self.server.close)

    def train(self, job: eadt.job, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for text in batches(steps):
            optimizer.zero_grad()
            loss = loss_of(model, text)
            loss.backward()
            optimizer.step()
            job.step(samples=len(text), loss=loss)

    def test_passes_between_two_looks_have_no_hook(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        hooks = model.blocks[0]._forward_pre_hooks
        with eadt.job(model, optimizer, layers="auto", url=self.server.url) as job:
            self.assertEqual(len(hooks), 2)
            self.train(job, model, optimizer, 1)
            self.assertEqual((len(hooks), job.effective_precision), (2, "fp32"), "the first step has hooks look once more")
            seen = []
            for _ in range(240):
                self.train(job, model, optimizer, 1)
                seen.append(len(hooks))
            self.assertEqual(seen[0], 0)
            self.assertLessEqual(sum(1 for count in seen if count), 3)
            self.assertGreaterEqual(sum(1 for count in seen if count), 2)

    def test_an_optimizer_has_a_hook_while_blocks_are_frozen(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        freezer = BlockFreezer(model, [optimizer])
        counts = []
        for layers in (0, 2, 1, 0):
            freezer.freeze(layers)
            counts.append(len(optimizer._optimizer_step_pre_hooks))
        self.assertEqual(counts, [0, 1, 1, 0])

    def test_reentrant_checkpointing_that_begins_later_is_seen_at_the_next_look(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        freezer = BlockFreezer(model, [optimizer])
        train(model, optimizer, 2)
        self.assertIsNone(freezer.refusal(2))
        model.checkpointing = True
        freezer.look_again()
        train(model, optimizer, 1)
        self.assertIn("reentrant", freezer.refusal(2) or "")

    def test_reentrant_checkpointing_that_begins_between_two_looks_is_seen_before_a_freeze(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with eadt.job(model, optimizer, layers="auto", url=self.server.url, agree_every=1) as job:
            self.train(job, model, optimizer, 5)
            model.checkpointing = True
            self.train(job, model, optimizer, 5)
            job.client._answer = (1, Directive("d-1", frozen_prefix_layers=2))
            while not job.checkpoint_due() and job.steps_total < 20:
                self.train(job, model, optimizer, 1)
            job.checkpointed()
            self.assertEqual((job.frozen_layers, job.steps_total), (0, 12))
            self.assertIn("reentrant", job.answers[0][1] or "")

    def test_looks_do_not_compile_a_model_anew(self) -> None:
        compiled: list[int] = []

        def backend(graph: torch.fx.GraphModule, _: object) -> object:
            compiled.append(1)
            return graph.forward

        for is_trained_before in (False, True):
            with self.subTest(is_trained_before=is_trained_before):
                torch._dynamo.reset()
                model = small()
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
                with eadt.job(model, optimizer, layers="auto", url=self.server.url) as job:
                    if is_trained_before:
                        self.train(job, model, optimizer, 3)
                    model.compile(backend=backend)
                    self.train(job, model, optimizer, 3)
                    first = len(compiled)
                    self.train(job, model, optimizer, 250)
                    self.assertEqual(len(compiled), first)


class TestPlasticity(unittest.TestCase):
    def test_a_frozen_block_has_none_and_one_that_trains_has_some(self) -> None:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        meter = PlasticityMeter(model, model.blocks)
        self.assertIsNone(meter.measure())
        meter.keep_batch(next(batches(1))[:, :-1])
        self.assertIsNone(meter.measure(), "the first one is the snapshot")
        standing = meter.measure() or []
        self.assertTrue(all(value is not None and value < 1e-9 for value in standing), standing)
        train(model, optimizer, 10)
        self.assertTrue(all(value is not None and value > 1e-6 for value in meter.measure() or []))
        self.assertTrue(model.training)

    def test_outputs_that_are_no_numbers_have_no_plasticity(self) -> None:
        model = small()
        meter = PlasticityMeter(model, model.blocks)
        meter.keep_batch(next(batches(1))[:, :-1])
        meter.measure()
        with torch.no_grad():
            model.blocks[2].out.bias.fill_(float("nan"))
        plasticity = meter.measure() or []
        self.assertTrue(all(value is not None and value < 1e-9 for value in plasticity[:2]), plasticity)
        self.assertEqual(plasticity[2:], [None, None])

    def test_a_model_that_draws_in_each_pass_is_compared_with_the_same_numbers_and_trained_with_its_own(self) -> None:
        class Masked(Body):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                draws = torch.rand(()) + random.random() + float(np.random.rand())
                return super().forward((x + (draws * WIDTH).long()) % WIDTH)

        model = Masked()
        meter = PlasticityMeter(model, model.blocks)
        meter.keep_batch(torch.arange(WIDTH))
        meter.measure()
        drawn = []
        for is_measured in (False, True):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            if is_measured:
                self.assertTrue(all(value is not None and value < 1e-9 for value in meter.measure() or [None]))
            drawn.append((float(torch.rand(())), random.random(), float(np.random.rand())))
        self.assertEqual(drawn[0], drawn[1])

    def test_a_pass_that_changes_what_the_model_keeps_is_undone_and_refused(self) -> None:
        class Keeping(Body):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("mean", torch.zeros(WIDTH))
                self.calls, self.hidden, self.seen, self.norm = 0, None, [], torch.ones(1)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = super().forward(x)
                self.calls, self.hidden, self.new = self.calls + 1, x.detach(), 1
                self.loss, self.attentions = x.mean(), (x, [x])
                self.mean.lerp_(self.hidden.mean(0), 0.5)
                self.seen.append(self.hidden)
                self.norm.mul_(2)
                return x

        model = Keeping()
        meter = PlasticityMeter(model, model.blocks)
        meter.keep_batch(torch.arange(WIDTH))
        with self.assertRaisesRegex(ValueError, "calls, seen, norm and 2 more"):
            meter.measure()
        self.assertEqual((model.calls, model.hidden, model.seen, float(model.norm), hasattr(model, "new")), (0, None, [], 1.0, False))
        self.assertFalse(model.mean.any() or hasattr(model, "loss") or hasattr(model, "attentions"))

    def test_a_pass_that_only_leaves_what_it_computed_is_undone_and_measured(self) -> None:
        class Leaving(Body):
            def __init__(self, front: nn.Module) -> None:
                super().__init__()
                self.front, self.loss = front, 0.0
                self.register_buffer("sparse", torch.eye(4).to_sparse())
                self.register_buffer("rows", torch.eye(4).to_sparse_csr())

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = super().forward(x)
                self.loss, self.attentions = self.front(x).mean(), (x,)
                return x

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fronts = [
                nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)),
                nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
                torch.jit.script(nn.BatchNorm1d(WIDTH)),
            ]
            models = [Leaving(front) for front in fronts]
        for model in models:
            meter = PlasticityMeter(model, model.blocks)
            meter.keep_batch(torch.arange(WIDTH))
            self.assertIsNone(meter.measure())
            model(torch.arange(WIDTH))
            loss, weight = model.loss, model.front.weight
            self.assertEqual(len(meter.measure() or []), 3)
            self.assertTrue(model.loss is loss and model.front.weight is weight)

    def test_what_cannot_be_compared_and_buffers_of_scripted_parts_are_put_back(self) -> None:
        class Counting(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("calls", torch.zeros(1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.calls.add_(1)
                return x

        class Sparse(Counting):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("calls", torch.eye(2).to_sparse())

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.calls.mul_(2)
                return x

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts = [torch.jit.script(Counting()), Sparse()]
        for part in parts:
            block = nn.Linear(2, 2)
            model = nn.Sequential(part, block, Counting())
            meter = PlasticityMeter(model, [block])
            meter.keep_batch(torch.ones(2, 2))
            before = part.calls.clone()
            with self.assertRaisesRegex(ValueError, "evaluation: 0.calls, 2.calls"):
                meter.measure()
            self.assertTrue(torch.equal(part.calls.to_dense(), before.to_dense()))
            self.assertEqual(float(model[2].calls), 0.0)

    def test_ddp_is_left_out_whatever_is_compiled(self) -> None:
        class DistributedDataParallel(nn.Module):
            """Has the name of what exchanges gradients."""

            def __init__(self, module: nn.Module) -> None:
                super().__init__()
                self.module = module

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.module(x)

        def compiled(model: nn.Module) -> nn.Module:
            return torch.compile(model, backend="eager")

        for wrap in (
            lambda model: compiled(DistributedDataParallel(model)),
            lambda model: DistributedDataParallel(compiled(model)),
            lambda model: compiled(DistributedDataParallel(compiled(model))),
        ):
            block = nn.Linear(2, 2)
            model = wrap(nn.Sequential(block))
            meter = PlasticityMeter(model, [block])
            self.assertIsNone(meter.refusal(2))
            meter.keep_next_batch()
            model(torch.randn(8, 2))
            self.assertIsNone(meter.measure())
            self.assertEqual(len(meter.measure() or []), 1)

    def test_ranks_that_exchange_weights_in_a_pass_have_none(self) -> None:
        class FSDPModule(nn.Linear):
            """Has the name of what shards weights."""

        block = FSDPModule(2, 2)
        meter = PlasticityMeter(nn.Sequential(block), [block])
        self.assertIsNone(meter.refusal(1))
        self.assertIn("ranks exchange weights", meter.refusal(2) or "")

    def test_a_batch_is_kept_as_it_was(self) -> None:
        model = small()
        meter = PlasticityMeter(model, model.blocks)
        batch = next(batches(1))[:, :-1].clone()
        meter.keep_batch(batch)
        meter.measure()
        batch.zero_()
        self.assertTrue(all(value is not None and value < 1e-9 for value in meter.measure() or [None]))

    def test_outputs_that_are_only_rotated_and_scaled_have_no_plasticity(self) -> None:
        block = nn.Linear(8, 8, bias=False)
        meter = PlasticityMeter(block, [block])
        meter.keep_batch(torch.randn(64, 8))
        meter.measure()
        rotation, _ = torch.linalg.qr(torch.randn(8, 8))
        with torch.no_grad():
            block.weight.copy_(3 * rotation @ block.weight)
        [rotated] = meter.measure() or [None]
        assert rotated is not None
        self.assertAlmostEqual(rotated, 0.0, places=5)
        with torch.no_grad():
            block.weight.copy_(torch.cat([torch.randn(1, 8), torch.zeros(7, 8)]))
        [other] = meter.measure() or [None]
        assert other is not None
        self.assertGreater(other, 0.2)


if __name__ == "__main__":
    unittest.main()
