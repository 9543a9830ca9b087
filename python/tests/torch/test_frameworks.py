"""Lightning and Accelerate, on the real libraries."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import tempfile
import unittest
from typing import Any, ClassVar, Final
from unittest import mock

import lightning.pytorch as pl
import torch
import torch.distributed as distributed
from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy, SingleDeviceStrategy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import BatchEncoding

import eadt.accelerate
from eadt.accumulation import AccumulatingJob
from eadt.lightning import EadtCallback, _data_ranks, _refusal_of_strategy, batch_size
from eadt.training import Job
from tests.models import SmallGpt, batches, loss_of, moved, weights
from tests.servers import Recorder, wait_for

torch.set_num_threads(1)
os.environ["EADT_WORKLOAD"] = "n/a"


#: Options of a trainer on the CPU that writes nothing by itself.
PLAIN: Final[dict[str, Any]] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


class Lit(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = SmallGpt(blocks=4, width=32)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return loss_of(self.model, batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Alternating(Lit):
    """Two optimizers, of which the second one steps every third batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=1e-3) for part in (self.model.blocks, self.model.head)]

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss_of(self.model, batch[0]))
        first, second = self.optimizers()
        first.step()
        if index % 3 == 2:
            second.step()


class Twice(Lit):
    """Two steps of one optimizer for each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[torch.Tensor], _: int) -> None:
        optimizer = self.optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            self.manual_backward(loss_of(self.model, batch[0]))
            optimizer.step()


class Saves(pl.Callback):
    """Writes a checkpoint after a batch."""

    def __init__(self, path: str, index: int) -> None:
        self.path, self.index = path, index

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if index == self.index:
            trainer.save_checkpoint(self.path)


class Waits(pl.Callback):
    """Lets the batches begin when the directive is there: a busy machine may be through with them before."""

    def __init__(self, callback: EadtCallback) -> None:
        self.callback = callback

    def on_train_start(self, *_: Any) -> None:
        job = self.callback.job
        assert job is not None
        # The answer to the start asks nothing.
        wait_for(lambda: job.client.report() or job.client.directive()[0])


class Frameworks(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Recorder()
        self.addCleanup(self.server.close)

    def ask(self, **body: object) -> None:
        directive = {"decision_id": "d-1", **body}
        self.server.answer = {"directives": [{"workload": "n/a", "revision": 1, "directive": directive}]}

    def acknowledgement(self) -> dict[str, Any]:
        return [event for event in self.server.events if event.get("decision_id") == "d-1"][-1]


class TestLightning(Frameworks):
    def test_blocks_freeze_and_do_not_move(self) -> None:
        self.ask(frozen_prefix_layers=2)
        seen: dict[str, Any] = {}
        callback = EadtCallback(url=self.server.url, interval_seconds=0.05, agree_every=2)

        class Watch(pl.Callback):
            def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
                if callback.job is not None and callback.job.frozen_layers == 2 and "before" not in seen:
                    seen["before"] = [weights(block) for block in module.model.blocks]

        rows = torch.cat(list(batches(100)))
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8)
        module = Lit()
        with tempfile.TemporaryDirectory() as folder:
            callback._folder = folder
            trainer = pl.Trainer(
                max_epochs=1,
                callbacks=[callback, Waits(callback), Watch()],
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module, loader)
            self.assertTrue(os.listdir(folder), "a checkpoint was written first")
        changes = [moved(block, then) for block, then in zip(module.model.blocks, seen["before"])]
        self.assertEqual(changes[:2], [0.0, 0.0])
        self.assertTrue(all(change > 0 for change in changes[2:]))
        self.assertEqual((self.acknowledgement()["frozen_prefix_layers"], self.server.events[-1]["phase"]), (2, "finished"))
        self.assertEqual(self.server.events[-1]["samples_total"], 800)

    def checkpoints(self) -> set[str]:
        """Returns the times of checkpoints that were reported."""
        return {event["checkpoint_time"] for event in self.server.events if "checkpoint_time" in event}

    def test_a_checkpoint_is_written_where_the_trainer_writes_its_own_and_is_where_a_training_goes_on(self) -> None:
        self.ask(checkpoint_now=True)
        for own, expected in (({}, "checkpoints"), ({"dirpath": "own", "every_n_epochs": 9}, "own")):
            with self.subTest(expected), tempfile.TemporaryDirectory() as folder:
                self.server.events.clear()
                callback = EadtCallback(url=self.server.url, interval_seconds=0.05, agree_every=2)
                kept = [ModelCheckpoint(**{**own, "dirpath": f"{folder}/own"})] if own else []
                options: dict[str, Any] = {**PLAIN, "enable_checkpointing": bool(own), "default_root_dir": folder}
                pl.Trainer(max_epochs=1, callbacks=[callback, Waits(callback), *kept], **options).fit(Lit(), self.loader(8))
                written = [name for name in os.listdir(f"{folder}/{expected}") if name.startswith("last-eadt-")]
                assert callback.job is not None
                self.assertEqual((len(written), len(self.checkpoints())), (1, 1))
                self.assertEqual(callback.job.answers, [("d-1", None)])
                if not own:
                    continue
                # It is the last one for Lightning.
                later = pl.Trainer(max_epochs=1, callbacks=[EadtCallback(url=self.server.url), *kept], **options)
                self.server.events.clear()
                later.fit(Lit(), self.loader(8), ckpt_path="last", weights_only=False)
                begun = min(event["steps_total"] for event in self.server.events if "steps_total" in event)
                self.assertEqual(f"last-eadt-{begun}.ckpt", written[0])
                # The next one is in its place, also if another process wrote it.
                self.ask(checkpoint_now=True, decision_id="d-2")
                callback = EadtCallback(url=self.server.url, interval_seconds=0.05, agree_every=2)
                later = pl.Trainer(max_epochs=2, callbacks=[callback, Waits(callback), *kept], **options)
                later.fit(Lit(), self.loader(8), ckpt_path="last", weights_only=False)
                self.assertEqual(callback.job and callback.job.answers, [("d-2", None)])
                [last] = [name for name in os.listdir(f"{folder}/{expected}") if name.startswith("last-eadt-")]
                self.assertNotEqual(last, written[0])

    def test_a_checkpoint_that_cannot_be_written_is_refused_once_and_no_rank_waits(self) -> None:
        self.ask(checkpoint_now=True)
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(SingleDeviceStrategy, "barrier") as barrier:
            open(f"{folder}/file", "w").close()
            callback = EadtCallback(checkpoint_folder=f"{folder}/file/in", url=self.server.url, interval_seconds=0.05, agree_every=2)
            trainer = pl.Trainer(max_epochs=1, callbacks=[callback, Waits(callback)], default_root_dir=folder, **PLAIN)
            trainer.fit(Lit(), self.loader(8))
        self.assertEqual(barrier.mock_calls.count(mock.call("Trainer.save_checkpoint")), 1)
        self.assertEqual((trainer.global_step, self.checkpoints()), (8, set()))
        self.assertNotIn("save_checkpoint", vars(trainer.strategy))
        self.assertIn("no checkpoint was written", self.acknowledgement()["directive_refused"])

    def test_checkpoints_of_the_trainer_are_reported_if_a_training_goes_on_from_them(self) -> None:
        for weights_alone, expected in ((False, 2), (True, 0)):
            with self.subTest(weights_alone=weights_alone), tempfile.TemporaryDirectory() as folder:
                self.server.events.clear()
                callback = EadtCallback(url=self.server.url, interval_seconds=0.05)
                own = ModelCheckpoint(dirpath=folder, every_n_train_steps=3, save_top_k=-1, save_weights_only=weights_alone)
                options = {**PLAIN, "enable_checkpointing": True}
                pl.Trainer(max_epochs=1, callbacks=[own, callback], default_root_dir=folder, **options).fit(Lit(), self.loader(8))
                self.assertEqual((len(os.listdir(folder)), len(self.checkpoints())), (2, expected))
                steps = {event["steps_total"] for event in self.server.events if "checkpoint_time" in event}
                self.assertEqual(steps, {3, 6} if expected else set())

    def test_a_checkpoint_that_was_not_written_is_not_reported(self) -> None:
        class Careful(pl.Callback):
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                if trainer.global_step in (2, 5):
                    with contextlib.suppress(OSError):
                        trainer.save_checkpoint(f"{trainer.default_root_dir}/file/in.ckpt")

        for raises_in in ("writing", "collecting"):
            with self.subTest(raises_in), tempfile.TemporaryDirectory() as folder:
                self.server.events.clear()
                open(f"{folder}/file", "w").close()
                module = Lit()
                if raises_in == "collecting":
                    module.on_save_checkpoint = mock.Mock(side_effect=OSError)  # type: ignore[method-assign]
                self.trainer(Careful(), max_epochs=1, default_root_dir=folder).fit(module, self.loader(8))
                self.assertEqual((self.server.events[-1]["steps_total"], self.checkpoints()), (8, set()))

    def test_the_loss_of_several_batches_a_step_is_that_of_a_batch(self) -> None:
        class Constant(Lit):
            def training_step(self, batch: torch.Tensor, _: int) -> Any:
                return {"loss": 0.0 * loss_of(self.model, batch[0]) + 3.0}

        for accumulated in (1, 4):
            with self.subTest(accumulated), tempfile.TemporaryDirectory() as folder:
                self.server.events.clear()
                self.trainer(max_epochs=1, accumulate_grad_batches=accumulated, default_root_dir=folder).fit(Constant(), self.loader(8))
                self.assertEqual({event["loss"] for event in self.server.events if "loss" in event}, {3.0})

    def test_ranks_that_share_their_samples_count_once(self) -> None:
        sampler = mock.PropertyMock(return_value={"num_replicas": 3, "rank": 0})
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(pl.Trainer, "distributed_sampler_kwargs", sampler):
            options = {"accumulate_grad_batches": 4, "default_root_dir": folder}
            path = f"{folder}/saved.ckpt"
            self.trainer(Saves(path, 1), max_epochs=1, **options).fit(Lit(), self.loader(8))
            ends = [self.server.events[-1]["samples_total"]]
            self.trainer(max_epochs=1, **options).fit(Lit(), self.loader(8), ckpt_path=path, weights_only=False)
            ends.append(self.server.events[-1]["samples_total"])
        self.assertEqual(ends, [3 * 64.0, 3 * 64.0])

    def test_bf16_mixed_is_reported_as_it_is(self) -> None:
        self.trainer(max_epochs=1, precision="bf16-mixed").fit(Lit(), self.loader(4))
        self.assertEqual(self.server.events[-1]["precision"], "bf16")

    def trainer(self, *callbacks: Any, plasticity_every: int = 0, **options: Any) -> pl.Trainer:
        self.callback = EadtCallback(url=self.server.url, interval_seconds=0.05, plasticity_every=plasticity_every)
        return pl.Trainer(callbacks=[self.callback, *callbacks], **PLAIN, **options)

    def loader(self, count: int) -> Any:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.cat(list(batches(count)))), batch_size=8)

    def test_steps_of_several_batches_go_on_from_a_checkpoint_and_those_left_are_reported(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trainer = self.trainer(max_epochs=1, accumulate_grad_batches=2, default_root_dir=folder)
            trainer.fit(Lit(), self.loader(20))
            trainer.save_checkpoint(f"{folder}/at-10.ckpt")
            ends = [self.server.events[-1]]
            self.server.events.clear()
            trainer = self.trainer(max_epochs=2, accumulate_grad_batches=2, default_root_dir=folder)
            trainer.fit(Lit(), self.loader(20), ckpt_path=f"{folder}/at-10.ckpt", weights_only=False)
            ends.append(self.server.events[-1])
        self.assertEqual([(end["steps_total"], end["samples_total"]) for end in ends], [(10, 160.0), (20, 320.0)])
        left = [event["steps_remaining"] for event in self.server.events if "steps_remaining" in event]
        self.assertEqual((left[0], left[-1], left), (10, 0, sorted(left, reverse=True)))
        samples = [event["samples_total"] for event in self.server.events if "samples_total" in event]
        self.assertEqual((samples[0], samples), (160, sorted(samples)))

    def test_the_steps_left_are_those_of_each_epochs_accumulation(self) -> None:
        for limit, expected in ({}, 6 + 2 + 2), ({"max_steps": 7}, 7):
            with self.subTest(limit), tempfile.TemporaryDirectory() as folder:
                self.server.events.clear()
                schedule = GradientAccumulationScheduler({1: 3, 2: 5})
                self.trainer(schedule, max_epochs=3, default_root_dir=folder, **limit).fit(Lit(), self.loader(6))
                left = [event["steps_remaining"] for event in self.server.events if "steps_remaining" in event]
                self.assertEqual((left[0], left[-1], self.server.events[-1]["steps_total"]), (expected, 0, expected))

    def test_steps_of_modules_that_step_themselves_go_on_from_a_checkpoint(self) -> None:
        for kind in (Alternating, Twice):
            with self.subTest(kind.__name__), tempfile.TemporaryDirectory() as folder:
                self.server.events.clear()
                trainer = self.trainer(max_epochs=1, default_root_dir=folder)
                trainer.fit(kind(), self.loader(6))
                trainer.save_checkpoint(f"{folder}/at-6.ckpt")
                # The same trainer may go on as well.
                trainer.fit_loop.max_epochs = 2
                trainer.fit(trainer.lightning_module, self.loader(6))
                self.trainer(max_epochs=2, default_root_dir=folder).fit(
                    kind(), self.loader(6), ckpt_path=f"{folder}/at-6.ckpt", weights_only=False
                )
                ends = [event for event in self.server.events if event.get("phase") == "finished"]
                self.assertEqual([(end["steps_total"], end["samples_total"]) for end in ends], [(6, 48.0), (12, 96.0), (12, 96.0)])
                since = self.server.events[self.server.events.index(ends[0]) :]
                self.assertEqual(min(event["steps_total"] for event in since if "steps_total" in event), 6)
                self.assertFalse([event for event in self.server.events if "steps_remaining" in event])

    def test_a_checkpoint_has_the_samples_of_batches_without_a_step(self) -> None:
        for index, is_first in ((2, False), (2, True), (3, True), (3, False)):
            with self.subTest(index=index, is_first=is_first), tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/saved.ckpt"
                trainer = self.trainer(Saves(path, index), max_epochs=1, accumulate_grad_batches=4, default_root_dir=folder)
                if is_first:
                    trainer.callbacks.reverse()
                trainer.fit(Lit(), self.loader(8))
                self.server.events.clear()
                trainer = self.trainer(max_epochs=1, accumulate_grad_batches=4, default_root_dir=folder)
                trainer.fit(Lit(), self.loader(8), ckpt_path=path, weights_only=False)
                samples = [event["samples_total"] for event in self.server.events if "samples_total" in event]
                end = self.server.events[-1]
                self.assertEqual((samples[0], samples[-1], end["steps_total"]), (8.0 * (index + 1), 64.0, 2))

    def test_of_several_validation_loaders_one_is_followed_and_none_is_reported(self) -> None:
        class Validates(Lit):
            name = "val_loss"

            def validation_step(self, batch: list[torch.Tensor], index: int, dataloader_idx: int = 0) -> None:
                self.log(self.name, float(dataloader_idx + 1))

        last = {"validation_loss": "val_loss/dataloader_idx_1"}
        for name, options, expected in (("val_loss", {}, [1.0]), ("val_loss", last, [2.0]), ("score", {}, [])):
            with self.subTest(name, **options), tempfile.TemporaryDirectory() as folder:
                self.server.events.clear()
                trainer = self.trainer(max_epochs=1, default_root_dir=folder)
                self.callback = trainer.callbacks[0] = EadtCallback(url=self.server.url, interval_seconds=0.05, **options)
                module = Validates()
                module.name = name
                with self.assertLogs("eadt", logging.WARNING) as logs:
                    logging.getLogger("eadt").warning("a line")
                    trainer.fit(module, self.loader(2), [self.loader(1), self.loader(1)])
                    # After the training it is none of the job.
                    trainer.validate(module, [self.loader(1), self.loader(1)], verbose=False)
                assert self.callback.job is not None
                self.callback.job.client.close()
                self.assertEqual([event["validation_loss"] for event in self.server.events if "validation_loss" in event], expected)
                self.assertEqual(self.server.events[-1]["phase"], "finished")
                missing = [line for line in logs.output if "without a known loss" in line and "score/dataloader_idx_0" in line]
                self.assertEqual(len(missing), 0 if expected else 1)

    def test_options_that_are_none_are_refused_where_the_callback_is_made(self) -> None:
        for options, text in (({"checkpoint_foder": "x"}, "'checkpoint_folder' is meant"), ({"urll": "x"}, "'url' is meant")):
            with self.subTest(options), self.assertRaisesRegex(TypeError, text):
                EadtCallback(**options)

    def test_samples_and_losses_of_other_names_and_kinds_are_found(self) -> None:
        @dataclasses.dataclass
        class Fields:
            name: str
            text: torch.Tensor

        @dataclasses.dataclass
        class Slots:
            __slots__ = ("text",)
            text: torch.Tensor

        text = torch.zeros(5, 3)
        batches_of_five = {
            "tensor": text,
            "pair": (text, text),
            "tokenizer": BatchEncoding({"input_ids": text}),
            "names first": {"name": ["a"] * 5, "text": text},
            "scalar first": [torch.tensor(1.0), text],
            "fields": Fields("a", text),
            "texts": {"text": ["a"] * 5},
            "figures": [1, 2, 3, 4, 5],
            "slots": Slots(text),
            "samples as mappings": [{"image": torch.zeros(3, 8, 8)}] * 5,
            "samples as data classes": [Fields("a", torch.zeros(3))] * 5,
            "samples and their targets": ([{"image": torch.zeros(3, 8)}] * 5, [{"boxes": torch.zeros(2, 4)}] * 5),
            "inputs and targets": [{"image": text}, {"label": text}],
            "packed": torch.nn.utils.rnn.pack_sequence([torch.zeros(length, 3) for length in (4, 3, 2, 2, 1)]),
            "packed first": [torch.nn.utils.rnn.pack_sequence([torch.zeros(2, 3)] * 5), text],
        }
        self.assertEqual({name: batch_size(batch) for name, batch in batches_of_five.items()}, dict.fromkeys(batches_of_five, 5))
        self.assertEqual([batch_size(batch) for batch in (None, {}, [], object(), torch.tensor(1.0))], [None] * 5)
        job = mock.Mock()
        self.trainer()
        self.callback._count(job, {"a": object()})
        self.assertIn("a batch of the type dict has no tensor: give EadtCallback(samples_of=", job.client.note_failure.call_args.args[0])

    def test_a_module_may_name_its_loss_and_its_samples(self) -> None:
        class Named(Lit):
            name: ClassVar[str]

            def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
                self.log(self.name, loss_of(self.model, batch[0]))

        for name, options in (("valid/loss", {}), ("perplexity", {"validation_loss": "perplexity"})):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                self.server.events.clear()
                trainer = self.trainer(max_epochs=1, default_root_dir=folder)
                self.callback = trainer.callbacks[0] = EadtCallback(
                    url=self.server.url, samples_of=lambda batch: 2 * len(batch[0]), **options
                )
                Named.name = name
                trainer.fit(Named(), self.loader(4), self.loader(2))
                self.assertEqual(self.server.events[-1]["samples_total"], 64.0)
                self.assertEqual(len([event for event in self.server.events if "validation_loss" in event]), 1)

    def test_plasticity_is_measured_if_that_is_wanted(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            module = Lit()
            self.trainer(max_epochs=1, default_root_dir=folder, plasticity_every=5).fit(module, self.loader(20))
        reports = [event["plasticity"] for event in self.server.events if "plasticity" in event]
        self.assertTrue(reports and all(value > 0 for value in reports[-1]) and len(reports[-1]) == 4, reports)
        self.assertTrue(module.model.training)

    def test_an_exception_and_a_signal_end_the_job(self) -> None:
        class Ends(pl.Callback):
            def __init__(self, how: str) -> None:
                self.how = how

            def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
                if trainer.global_step == 3 and self.how == "raises":
                    raise RuntimeError("no memory")
                if trainer.global_step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)

        for how, error in (("raises", RuntimeError), ("SIGTERM", SystemExit)):
            with self.subTest(how), tempfile.TemporaryDirectory() as folder:
                self.server.events.clear()
                with self.assertRaises(error):
                    self.trainer(Ends(how), max_epochs=1, default_root_dir=folder).fit(Lit(), self.loader(20))
                self.assertEqual((self.server.events[-1]["phase"], self.server.events[-1]["steps_total"]), ("finished", 3))


class TestStrategies(unittest.TestCase):
    """What Lightning wraps the model in is known by its strategy."""

    def test_ddp_that_waits_for_every_gradient_is_refused(self) -> None:
        from lightning.pytorch.strategies import DDPStrategy

        with tempfile.TemporaryDirectory() as folder:
            distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
            self.addCleanup(distributed.destroy_process_group)
            for options, is_refused in (({}, True), ({"find_unused_parameters": True}, False)):
                strategy = DDPStrategy(**options)
                strategy.model = torch.nn.parallel.DistributedDataParallel(Lit(), **options)
                self.assertEqual("find_unused_parameters=True" in (_refusal_of_strategy(strategy) or ""), is_refused)

    def test_ranks_of_tensor_parallelism_share_their_samples(self) -> None:
        distributed.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
        self.addCleanup(distributed.destroy_process_group)
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=4)
        strategy._device_mesh = distributed.init_device_mesh("cpu", (2, 4), mesh_dim_names=("data_parallel", "tensor_parallel"))
        trainer = mock.Mock(distributed_sampler_kwargs=strategy.distributed_sampler_kwargs)
        ranks = [_data_ranks(trainer), _data_ranks(mock.Mock(distributed_sampler_kwargs=None))]
        self.assertEqual((ranks, [Job(workload="n/a", data_ranks=one).of_all_ranks(8.0) for one in ranks]), ([2, None], [16.0, 64.0]))

    def test_deepspeed_is_refused(self) -> None:
        from lightning.pytorch.strategies import DeepSpeedStrategy

        self.assertIn("eadt.deepspeed.wrap", _refusal_of_strategy(DeepSpeedStrategy.__new__(DeepSpeedStrategy)) or "")


class TestAccelerate(Frameworks):
    def train(self, precision: str, until: Any) -> Any:
        AcceleratorState._reset_state(True)
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
        torch.manual_seed(0)
        plain = SmallGpt(blocks=4, width=32)
        model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3))
        options = {"url": self.server.url, "interval_seconds": 0.05, "agree_every": 2}
        with eadt.accelerate.job(accelerator, model, optimizer, **options) as job:
            for text in batches(4000):
                optimizer.zero_grad(set_to_none=False)
                loss = loss_of(model, text)
                accelerator.backward(loss)
                optimizer.step()
                job.step(samples=len(text), loss=loss)
                if job.checkpoint_due():
                    job.checkpointed()
                if until(job, plain):
                    break
        return job

    def test_blocks_freeze_and_do_not_move(self) -> None:
        self.ask(frozen_prefix_layers=2)
        seen: list[Any] = []

        def until(job: Any, model: SmallGpt) -> bool:
            if job.frozen_layers == 2:
                seen.append([weights(block) for block in model.blocks])
            return len(seen) > 10

        self.train("no", until)
        first, last = seen[0], seen[-1]
        changes = [max(float((a - b).abs().max()) for a, b in zip(x, y)) for x, y in zip(first, last)]
        self.assertEqual(changes[:2], [0.0, 0.0])
        self.assertTrue(all(change > 0 for change in changes[2:]))

    def test_bf16_has_no_scaler_and_does_not_become_fp16(self) -> None:
        self.ask(precision="fp16")
        job = self.train("bf16", lambda job, _: bool(job.answers))
        self.assertEqual(job.effective_precision, "bf16")
        self.assertIn("started in BF16", job.answers[0][1])
        self.assertIn("started in BF16", self.acknowledgement()["directive_refused"])

    def test_micro_batches_add_up_to_steps_and_a_directive_waits_for_the_last_one(self) -> None:
        self.ask(frozen_prefix_layers=2)
        AcceleratorState._reset_state(True)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
        plain = SmallGpt(blocks=4, width=32)
        model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3))
        updates, taken = 0, []
        with eadt.accelerate.job(accelerator, model, optimizer, url=self.server.url, interval_seconds=0.05, agree_every=2) as job:
            wait_for(lambda: job.client.report() or job.client.directive()[0])
            for text in batches(20):
                with accelerator.accumulate(model):
                    loss = loss_of(model, text)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                updates += accelerator.sync_gradients
                job.step(samples=len(text), loss=loss, learning_rate=1e-3)
                if job.checkpoint_due():
                    taken.append((accelerator.sync_gradients, job.steps_total))
                    job.checkpointed()
        # The samples of two batches reached no weights.
        end = self.server.events[-1]
        self.assertEqual((updates, end["steps_total"], end["samples_total"]), (6, 6, 6 * 3 * 8.0))
        self.assertEqual((taken, job.answers), ([(True, 3)], [("d-1", None)]))
        self.assertEqual([event["learning_rate"] for event in self.server.events if "learning_rate" in event][-1], 1e-3)

    def test_ranks_that_share_their_samples_count_once(self) -> None:
        model = SmallGpt(blocks=4, width=32)
        for config, given, expected in (
            (None, {}, 8.0),
            (ParallelismConfig(tp_size=2, cp_size=2), {}, 16.0),
            (None, {"data_ranks": 3}, 24.0),
        ):
            accelerator = mock.Mock(num_processes=8, parallelism_config=config, mixed_precision="no", scaler=None)
            job = eadt.accelerate.job(accelerator, model, None, url=self.server.url, **given)
            job.step(samples=8)
            self.assertEqual(job.samples_total, expected)
            job.close()

    def test_a_micro_batch_whose_samples_are_none_costs_its_step_alone(self) -> None:
        ends = iter((False, False, True, False, True, True))
        job = AccumulatingJob(url=self.server.url, workload="n/a", made_step=lambda: next(ends))
        for samples in (2, torch.tensor(3), 4.0, float("nan"), 5, 6):
            job.step(samples)
        self.assertEqual((job.steps_total, job.samples_total, job.checkpoint_due()), (3, 15.0, False))
        job.close()
        self.assertEqual(job.steps_without_samples, 1)


if __name__ == "__main__":
    unittest.main()
