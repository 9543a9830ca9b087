"""Hugging Face transformers: the callback in a real Trainer."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.parallelism_config import ParallelismConfig
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from eadt.freeze import BlockFreezer
from eadt.hf import EadtCallback, _data_ranks, _epoch_of, _loaded_by, _refusal_of_trainer
from eadt.training import Job
from tests.models import CONTEXT, VOCABULARY, batches, moved, weights
from tests.servers import Harmful, Recorder, wait_for

torch.set_num_threads(1)
os.environ["EADT_WORKLOAD"] = "n/a"


def small(**options: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def dataset(samples: int) -> list[dict[str, torch.Tensor]]:
    rows = torch.cat(list(batches(samples // 8)))[:, :CONTEXT]
    return [{"input_ids": row, "labels": row} for row in rows]


#: As docs/use/training.md has it.
IGNORED = "Checkpoint included callbacks not included in current configuration. Ignoring. (eadt)"


class Keyed(torch.utils.data.Dataset):
    """A dataset whose attributes are its columns."""

    def __len__(self) -> int:
        return 48

    def __getattr__(self, name: str) -> Any:
        return {}[name]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.arange(48))


class Rows(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), 0.1), "labels": torch.tensor(1.0)}


class RowStream(torch.utils.data.IterableDataset):
    def __init__(self, count: int) -> None:
        self.rows = Rows(count)

    def __iter__(self) -> Any:
        return (self.rows[index] for index in range(self.rows.count))


class RowStreamOfKnownLength(RowStream):
    def __len__(self) -> int:
        return self.rows.count


class Small(torch.nn.Module):
    """Counts the rows that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.seen = 0

    def forward(self, x: Any = None, labels: Any = None, **_: Any) -> dict[str, torch.Tensor]:
        x = x.rows if isinstance(x, Wrapped) else x
        self.seen += len(x) * self.training
        for block in self.blocks:
            x = block(x)
        return {"loss": x.mean(), "logits": x}


class SizesOfItsOwn:
    """A batch sampler without a batch size."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        yield from ([0, 1], [2, 3, 4, 5, 6], [7])


def in_one_row(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Collates as padding-free training does: the samples one after another."""
    return {"x": torch.stack([row["x"] for row in rows]).mean(0, keepdim=True), "labels": torch.ones(1)}


class Wrapped:
    """A tensor that no hook sees."""

    def __init__(self, rows: list[dict[str, torch.Tensor]]) -> None:
        self.rows = torch.stack([row["x"] for row in rows])


class Waits(TrainerCallback):
    """Lets the steps begin when the directive is there: a busy machine may be through with them before."""

    def __init__(self, case: TestTrainer) -> None:
        self.case = case

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        job = self.case.callback.job
        assert job is not None
        # The answer to the start asks nothing.
        wait_for(lambda: job.client.report() or job.client.directive()[0])


class TestTrainer(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.server = Recorder()
        self.addCleanup(self.server.close)

    def trainer(
        self,
        model: GPT2LMHeadModel,
        steps: int,
        url: str | None = None,
        callbacks: Any = (),
        optimizers: Any = (None, None),
        samples: int = 64,
        **options: Any,
    ) -> Trainer:
        arguments = TrainingArguments(
            output_dir=self.folder,
            max_steps=steps,
            report_to=[],
            logging_steps=5,
            use_cpu=True,
            disable_tqdm=True,
            learning_rate=1e-3,
            **{"per_device_train_batch_size": 8, "save_strategy": "no", **options},
        )
        self.callback = EadtCallback(url=url or self.server.url, interval_seconds=0.05, agree_every=2)
        return Trainer(
            model,
            arguments,
            train_dataset=dataset(64)[:samples],
            eval_dataset=dataset(16),
            callbacks=[self.callback, *callbacks],
            optimizers=optimizers,
        )

    def count(self, data: Any, loader: Any = None, collate: Any = None, step: Any = None, **options: Any) -> tuple[int, Trainer]:
        """Trains on batches of 4, and returns the rows that the model saw, and the trainer."""
        given = {"per_device_train_batch_size": 4, "num_train_epochs": 2, **options}
        arguments = TrainingArguments(
            output_dir=self.folder, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no", **given
        )
        self.callback = EadtCallback(url=self.server.url, interval_seconds=0.05)
        model = Small()
        trainer = Trainer(model, arguments, train_dataset=data, data_collator=collate, callbacks=[self.callback])
        if loader is not None:
            trainer.get_train_dataloader = lambda: loader(trainer)  # type: ignore[method-assign]
        if step is not None:
            trainer.training_step = step  # type: ignore[method-assign]
        self.server.events.clear()
        trainer.train()
        return model.seen, trainer

    def test_the_samples_are_those_of_the_batches_that_passed(self) -> None:
        def of_sizes(trainer: Trainer) -> Any:
            return torch.utils.data.DataLoader(trainer.train_dataset, batch_sampler=SizesOfItsOwn(), collate_fn=trainer.data_collator)

        def listed(trainer: Trainer) -> Any:
            return [trainer.data_collator([trainer.train_dataset[0]] * size) for size in (3, 2)]

        accumulated = "gradient_accumulation_steps"
        for name, data, loader, options, expected, batch in (
            ("sizes of a batch sampler", Rows(8), of_sizes, {}, 16, None),
            ("a list", Rows(8), listed, {"max_steps": 4}, 10, None),
            ("a stream", RowStream(10), None, {"max_steps": 9}, 30, 4),
            ("a stream, steps over the end", RowStream(10), None, {"max_steps": 6, accumulated: 2}, 58, 8),
            ("a stream of known length", RowStreamOfKnownLength(10), None, {}, 20, 4),
            ("a stream of known length, steps of two", RowStreamOfKnownLength(10), None, {accumulated: 2}, 20, 8),
            ("fewer rows than a batch", RowStream(3), None, {"max_steps": 2}, 6, 4),
            ("a row more than a batch", Rows(5), None, {}, 10, 4),
        ):
            with self.subTest(name):
                seen, _ = self.count(data, loader, **options)
                started = next(event for event in self.server.events if event.get("phase") == "started")
                end = self.server.events[-1]
                self.assertEqual((seen, end["samples_total"], end["phase"]), (expected, expected, "finished"))
                self.assertEqual(started.get("global_batch_size"), batch)

    def test_batches_without_a_row_for_each_sample_count_what_the_loader_takes(self) -> None:
        for data, options, expected in ((Rows(10), {}, 20), (RowStream(10), {"max_steps": 3}, 12)):
            with self.subTest(type(data).__name__):
                seen, _ = self.count(data, collate=in_one_row, **options)
                self.assertEqual((seen, self.server.events[-1]["samples_total"]), (2 * 3 if not options else 3, expected))

    def test_samples_that_nothing_reports_are_unknown_and_reported_so(self) -> None:
        def loader(trainer: Trainer) -> Any:
            return [{"x": Wrapped([trainer.train_dataset[0]] * 3)}]

        with self.assertLogs("eadt", logging.WARNING) as logs:
            self.count(Rows(8), loader)
        self.assertFalse([event for event in self.server.events if event.get("samples_total")])
        job = self.callback.job
        assert job is not None
        self.assertEqual((job.steps_total, job.steps_without_samples, job.joules_per_sample()), (2, 2, None))
        self.assertEqual(len([line for line in logs.output if "samples are unknown" in line]), 1)

    def test_a_trainer_has_its_own_step_again_after_the_training(self) -> None:
        _, trainer = self.count(Rows(8))
        self.assertNotIn("training_step", vars(trainer))
        kept: list[Any] = []

        def step(*arguments: Any) -> Any:
            kept.append(arguments)
            return Trainer.training_step(trainer, *arguments)

        seen, trainer = self.count(Rows(8), step=step)
        self.assertEqual((trainer.training_step, len(kept), seen), (step, 4, 16))

    def test_ranks_count_as_many_samples_each(self) -> None:
        callback = EadtCallback(url=self.server.url)
        loader = torch.utils.data.DataLoader(RowStream(10), batch_size=4)

        class Ranks:
            """As a trainer calls its callbacks."""

            state = TrainerState(max_steps=3)

            def training_step(self, model: Any, inputs: Any) -> None:
                pass

            def train(self, arguments: TrainingArguments, calls: bool) -> None:
                model = Small()
                callback.on_train_begin(arguments, self.state, TrainerControl(), model=model, train_dataloader=loader)
                for batch in loader:
                    if calls:
                        self.training_step(model, batch)
                    self.state.global_step += 1
                    callback.on_step_end(arguments, self.state, TrainerControl())
                callback.on_train_end(arguments, self.state, TrainerControl())
                self.state.global_step = 0
                self.state.stateful_callbacks.clear()

        arguments = TrainingArguments(output_dir=self.folder, use_cpu=True, per_device_train_batch_size=4)
        with mock.patch.object(TrainingArguments, "world_size", 2):
            # One with a loop of its own, which calls another step, has batches of the loader's size.
            for calls, expected in ((True, 20.0), (False, 24.0)):
                Ranks().train(arguments, calls)
                self.assertEqual(callback._samples, expected)

    def test_an_evaluation_after_the_training_is_none_of_the_job(self) -> None:
        trainer = self.trainer(small(), 2)
        trainer.train()
        trainer.evaluate()
        assert self.callback.job is not None
        self.callback.job.client.close()
        self.assertEqual(self.server.events[-1]["phase"], "finished")
        self.assertFalse([event for event in self.server.events if "validation_loss" in event])

    def test_of_several_evaluation_data_sets_one_is_followed(self) -> None:
        for name, expected in ((None, "eval_a_loss"), ("eval_b_loss", "eval_b_loss"), ("x", None)):
            with self.subTest(name):
                self.server.events.clear()
                trainer = self.trainer(small(), 4, eval_strategy="steps", eval_steps=2)
                trainer.eval_dataset = {"a": dataset(8), "b": dataset(16)}
                trainer.remove_callback(self.callback)
                callback = EadtCallback(url=self.server.url, interval_seconds=0.05, validation_loss=name)
                trainer.add_callback(callback)
                with self.assertLogs("eadt", logging.WARNING) as logs:
                    logging.getLogger("eadt").warning("a line")
                    trainer.train()
                reported = [event["validation_loss"] for event in self.server.events if "validation_loss" in event]
                logged = [entry[expected] for entry in trainer.state.log_history if expected in entry]
                self.assertEqual(reported, logged)
                missing = [line for line in logs.output if "without x" in line and "eval_a_loss" in line]
                self.assertEqual((len(reported), len(missing)), (2, 0) if expected else (0, 1))

    def test_options_that_are_none_are_refused_where_the_callback_is_made(self) -> None:
        for options, error, text in (
            ({"intervall_seconds": 3}, TypeError, "'interval_seconds' is meant"),
            ({"validation_los": "x"}, TypeError, "'validation_loss' is meant"),
            ({"freezer": None}, TypeError, "freezer"),
            ({"interval_seconds": 0}, ValueError, "interval_seconds"),
            ({"agree_every": "2"}, TypeError, "agree_every"),
            ({"precision": "int3"}, ValueError, "precision"),
            ({"validation_loss": 3}, TypeError, "validation_loss"),
        ):
            with self.subTest(options), self.assertRaisesRegex(error, text):
                EadtCallback(**options)
        EadtCallback(url="x:1", workload="n/a", token_file="x", agree_every=2, plasticity_every=5, scaler=None, client=None)

    def test_a_precision_is_refused_as_what_the_trainer_fixes(self) -> None:
        body = {"decision_id": "d-1", "precision": "bf16"}
        self.server.answer = {"directives": [{"workload": "n/a", "revision": 1, "directive": body}]}
        self.trainer(small(), 30, callbacks=[Waits(self)]).train()
        acknowledged = [event for event in self.server.events if event.get("decision_id") == "d-1"]
        self.assertIn("TrainingArguments", acknowledged[-1]["directive_refused"])

    def test_one_line_reports_progress_loss_and_the_learning_rate(self) -> None:
        trainer = self.trainer(small(), 30, eval_strategy="steps", eval_steps=10)
        trainer.train()
        events = self.server.events
        self.assertEqual((events[0]["phase"], events[-1]["phase"]), ("started", "finished"))
        self.assertEqual((events[-1]["samples_total"], events[-1]["steps_total"]), (240, 30))
        for field in ("loss", "learning_rate", "gradient_norm", "validation_loss", "precision", "layers", "epoch"):
            self.assertTrue(any(field in event for event in events), field)
        self.assertEqual([e["layers"] for e in events if "layers" in e][-1], 4)

    def test_a_directive_freezes_after_a_checkpoint_and_the_blocks_do_not_move(self) -> None:
        seen: dict[str, Any] = {}
        case = self

        class Watch(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                if case.callback.job is not None and case.callback.job.frozen_layers == 2 and "before" not in seen:
                    seen["before"] = [weights(block) for block in model.transformer.h]
                    seen["step"] = state.global_step

        body = {"decision_id": "d-1", "frozen_prefix_layers": 2}
        self.server.answer = {"directives": [{"workload": "n/a", "revision": 1, "directive": body}]}
        model = small()
        self.trainer(model, 60, callbacks=[Waits(self), Watch()]).train()
        self.assertLess(seen["step"], 60)
        changes = [moved(block, then) for block, then in zip(model.transformer.h, seen["before"])]
        self.assertEqual(changes[:2], [0.0, 0.0])
        self.assertTrue(all(change > 0 for change in changes[2:]))
        self.assertTrue(any(name.startswith("checkpoint-") for name in os.listdir(self.folder)), "a checkpoint was written first")
        acknowledged = [event for event in self.server.events if event.get("decision_id") == "d-1"]
        self.assertEqual(acknowledged[-1]["frozen_prefix_layers"], 2)

    def ask(self, **body: object) -> None:
        directive = {"decision_id": "d-1", **body}
        self.server.answer = {"directives": [{"workload": "n/a", "revision": 1, "directive": directive}]}

    def test_a_checkpoint_for_a_directive_that_cannot_be_written_is_refused_and_training_goes_on(self) -> None:
        full = OSError("no space left")

        class Reads(TrainerCallback):
            """As W&B does with a checkpoint."""

            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                os.listdir(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))

        for asked in ({"checkpoint_now": True}, {"frozen_prefix_layers": 2}):
            # The trainer removes older checkpoints after the last part.
            for part in ("save_model", "_save_rng_state"):
                with self.subTest(asked=asked, part=part):
                    self.ask(**asked)
                    whole = Path(self.folder, "checkpoint-1")
                    whole.mkdir(exist_ok=True)
                    trainer = self.trainer(small(), 20, callbacks=[Waits(self), Reads()], save_total_limit=1)
                    setattr(trainer, part, mock.Mock(side_effect=full))
                    trainer.train()
                    self.assertEqual((trainer.state.global_step, self.callback.job.frozen_layers), (20, 0))
                    self.assertEqual(self.callback.job.answers, [("d-1", "no checkpoint was written: no space left")])
                    self.assertEqual([path.name for path in Path(self.folder).glob("checkpoint-*")], [whole.name])
                    self.assertFalse([event for event in self.server.events if "checkpoint_time" in event])
                    self.assertEqual({"_save_checkpoint", "save_to_json"} & {*vars(trainer), *vars(trainer.state)}, set())

    def test_a_checkpoint_of_the_trainers_own_that_cannot_be_written_raises_as_without_the_callback(self) -> None:
        trainer = self.trainer(small(), 4, save_strategy="steps", save_steps=2)
        trainer._save_rng_state = mock.Mock(side_effect=OSError("no space left"))  # type: ignore[method-assign]
        with self.assertRaisesRegex(OSError, "no space left"):
            trainer.train()

    def test_weights_alone_are_no_checkpoint_but_a_freeze_is_taken_up_with_them(self) -> None:
        refused = "no training goes on from weights alone: leave out save_only_model=True of TrainingArguments"
        for asked, answer, frozen in (
            ({"checkpoint_now": True}, refused, 0),
            # As the actuator asks.
            ({"frozen_prefix_layers": 2, "checkpoint_now": True}, None, 2),
        ):
            with self.subTest(asked=asked):
                self.ask(**asked)
                options = {"save_strategy": "steps", "save_steps": 10, "save_only_model": True}
                self.trainer(small(), 30, callbacks=[Waits(self)], **options).train()
                self.assertEqual((self.callback.job.answers, self.callback.job.frozen_layers), ([("d-1", answer)], frozen))
                self.assertFalse([event for event in self.server.events if "checkpoint_time" in event])
                self.assertNotIn("checkpoint_now", self.server.events[-1]["live_knobs"])

    def test_a_directive_is_refused_where_the_trainer_writes_checkpoints_in_an_unknown_way(self) -> None:
        self.ask(checkpoint_now=True)
        arguments, state, control = TrainingArguments(output_dir=self.folder, use_cpu=True), TrainerState(max_steps=9), TrainerControl()
        self.callback = EadtCallback(url=self.server.url, interval_seconds=0.05, agree_every=1)
        self.callback.on_train_begin(arguments, state, control, model=small())
        Waits(self).on_train_begin()
        for state.global_step in (1, 2):
            self.callback.on_step_end(arguments, state, control)
        self.callback.on_train_end(arguments, state, control)
        self.assertFalse(control.should_save)
        self.assertEqual([decision for decision, refusal in self.callback.job.answers if "not known" in refusal], ["d-1"])

    def test_what_a_training_froze_is_in_the_optimizer_of_the_next_one_however_it_ended(self) -> None:
        case, model = self, small()

        class Ends(TrainerCallback):
            raises = False

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                case.callback.job._freezer.freeze(2)
                if self.raises:
                    model.lm_head.register_forward_pre_hook(mock.Mock(side_effect=KeyboardInterrupt))

        for raises in (False, True):
            ends = Ends()
            ends.raises = raises
            with contextlib.suppress(KeyboardInterrupt):
                self.trainer(model, 2, callbacks=[ends]).train()
            self.assertEqual(self.callback.job.steps_total, 1 if raises else 2)
            self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))
        model.lm_head._forward_pre_hooks.clear()
        # One that raised where nothing of this package sees it.
        freezer = BlockFreezer(model)
        freezer.freeze(1)
        trainer = self.trainer(model, 1)
        trainer.train()
        self.assertEqual(sum(len(group["params"]) for group in trainer.optimizer.param_groups), len(list(model.parameters())))

    def test_blocks_train_again_if_a_training_is_interrupted_between_its_steps(self) -> None:
        case = self

        class Interrupts(TrainerCallback):
            """Freezes blocks with the first step; the second one ends with an interrupt, where that is."""

            place = ""

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 1:
                    case.callback.job._freezer.freeze(2)
                if state.global_step == 2:
                    case.assertEqual(case.callback.job.frozen_layers, 2)
                    control.should_evaluate = self.place == "evaluation"
                    control.should_save = self.place == "checkpoint"
                    if self.place == "callback":
                        raise KeyboardInterrupt

        for place, method in (("callback", ""), ("evaluation", "evaluation_loop"), ("checkpoint", "_save"), ("data", "")):
            with self.subTest(place):
                interrupts, model = Interrupts(), small()
                interrupts.place = place
                trainer = self.trainer(model, 4, callbacks=[interrupts])
                raising = mock.Mock(side_effect=KeyboardInterrupt)
                if method:
                    setattr(trainer, method, raising)
                if place == "data":
                    rows = trainer.train_dataset
                    trainer.data_collator = mock.Mock(side_effect=[*(trainer.data_collator(rows[:8]) for _ in range(3)), KeyboardInterrupt])
                with self.assertRaises(KeyboardInterrupt):
                    trainer.train()
                self.assertIn(trainer.state.global_step, (1, 2))
                self.assertTrue(all(parameter.requires_grad for parameter in model.parameters()))
                # The next training has everything of its own again.
                self.callback.on_train_end(None, None, None)
                self.assertNotIn("call_event", vars(trainer.callback_handler))
                self.assertNotIn("_maybe_log_save_evaluate", vars(trainer))

    def test_reentrant_checkpointing_is_refused_with_the_reason(self) -> None:
        body = {"decision_id": "d-1", "frozen_prefix_layers": 2}
        self.server.answer = {"directives": [{"workload": "n/a", "revision": 1, "directive": body}]}
        options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
        trainer = self.trainer(small(), 40, callbacks=[Waits(self)], **options)
        trainer.train()
        acknowledged = [event for event in self.server.events if event.get("decision_id") == "d-1"]
        self.assertIn("use_reentrant", acknowledged[-1]["directive_refused"])
        self.assertEqual(acknowledged[-1]["frozen_prefix_layers"], 0)

    def test_a_freeze_that_would_leave_nothing_to_train_is_refused_and_training_goes_on(self) -> None:
        body = {"decision_id": "d-1", "frozen_prefix_layers": 2}
        for place in ("blocks", "positions"):
            with self.subTest(place):
                self.server.answer = {"directives": [{"workload": "n/a", "revision": 1, "directive": body}]}
                model = small()
                model.requires_grad_(False)
                (model.transformer.h[:2] if place == "blocks" else model.transformer.wpe).requires_grad_(True)
                trainer = self.trainer(model, 30, callbacks=[Waits(self)])
                trainer.train()
                self.assertEqual(trainer.state.global_step, 30)
                self.assertIn("nothing would be left to train", self.callback.job.answers[-1][1])

    def test_the_precision_of_a_compiled_model_is_reported(self) -> None:
        for bf16 in (False, True):
            with self.subTest(bf16=bf16):
                torch._dynamo.reset()
                self.trainer(small(), 3, bf16=bf16, torch_compile=True, torch_compile_backend="eager").train()
                self.assertEqual(self.callback.job.effective_precision, "bf16" if bf16 else "fp32")

    def test_frozen_blocks_of_a_tied_gpt_2_compute_no_gradients(self) -> None:
        model = small()
        self.assertIs(model.lm_head.weight, model.transformer.wte.weight)
        ran: list[int] = []
        for index, block in enumerate(model.transformer.h):
            block.register_full_backward_hook(lambda *_, index=index, ran=ran: ran.append(index))
        rows = torch.stack([row["input_ids"] for row in dataset(8)])
        for frozen, expected in ((0, [0, 1, 2, 3]), (2, [2, 3])):
            freezer = BlockFreezer(model)
            freezer.freeze(frozen)
            ran.clear()
            model(input_ids=rows, labels=rows).loss.backward()
            self.assertEqual(sorted(ran), expected)

    def test_fp16_on_a_cpu_is_reported_as_what_is_computed(self) -> None:
        self.trainer(small(), 10, fp16=True).train()
        self.assertEqual([e["precision"] for e in self.server.events if "precision" in e][-1], "fp32")

    def test_the_trainers_own_ddp_is_refused_where_it_would_wait_for_every_gradient(self) -> None:
        model = small()
        for options, part in (({"ddp_find_unused_parameters": False}, "ddp_find_unused_parameters=True"), ({}, None)):
            arguments = TrainingArguments(output_dir=self.folder, use_cpu=True, **options)
            self.assertIsNone(_refusal_of_trainer(arguments, model), "one process")
            with mock.patch.object(TrainingArguments, "world_size", 2):
                refusal = _refusal_of_trainer(arguments, model)
            self.assertEqual(refusal is None, part is None)
            self.assertIn(part or "", refusal or "")

    def test_bf16_is_reported_as_it_is(self) -> None:
        self.trainer(small(), 10, bf16=True).train()
        self.assertEqual([e["precision"] for e in self.server.events if "precision" in e][-1], "bf16")

    def test_plasticity_is_measured_if_that_is_wanted(self) -> None:
        model = small()
        trainer = self.trainer(model, 20)
        self.callback._options["plasticity_every"] = 5
        trainer.train()
        reports = [event["plasticity"] for event in self.server.events if "plasticity" in event]
        self.assertTrue(reports and all(value > 0 for value in reports[-1]) and len(reports[-1]) == 4, reports)

    def test_a_training_that_raised_has_ended_when_the_next_one_begins(self) -> None:
        class Fails(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 5:
                    raise RuntimeError("no memory")

        trainer = self.trainer(small(), 10, callbacks=[Fails()])
        with self.assertRaisesRegex(RuntimeError, "no memory"):
            trainer.train()
        trainer.remove_callback(Fails)
        trainer.train()
        phases = [(event["phase"], event.get("steps_total")) for event in self.server.events if "phase" in event]
        self.assertEqual(phases, [("started", None), ("finished", 5), ("started", None), ("finished", 10)])

    def test_counters_go_on_from_a_checkpoint(self) -> None:
        class Saves(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_save = state.global_step == 10

        self.trainer(small(), 10, callbacks=[Saves()]).train()
        self.server.events.clear()
        self.trainer(small(), 16).train(resume_from_checkpoint=True)
        samples = [event["samples_total"] for event in self.server.events if "samples_total" in event]
        self.assertEqual((samples, samples[-1]), (sorted(samples), 128.0))
        self.assertEqual(samples[0], 80.0)
        self.assertEqual(self.server.events[-1]["steps_total"], 16)
        job = self.callback.job
        assert job is not None
        job.energy.joules = 96.0
        self.assertEqual(job.joules_per_sample(), 2.0, "of the 48 samples since the checkpoint")

    def resumed(
        self, steps: int, first: dict[str, Any], then: dict[str, Any], change: Any = None, loaded: int | None = None
    ) -> tuple[list[float], int, int]:
        """Returns the samples that a training reports which goes on, and those that both trainings saw: up to the checkpoint, and since.

        ``loaded``: the batch that the trainer takes then, whatever its arguments are.
        """
        seen: list[int] = []
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

        def train(steps: int, resume: bool, options: dict[str, Any]) -> int:
            seen.clear()
            model = small()
            model.register_forward_pre_hook(lambda _, args, given: seen.append(len(given["input_ids"])), with_kwargs=True)
            trainer = self.trainer(model, steps, save_steps=steps, **{"save_strategy": "steps", "samples": 44, **options})
            if resume and loaded is not None:
                trainer._train_batch_size = loaded
            trainer.train(resume_from_checkpoint=resume or None)
            return sum(seen)

        before = train(steps, False, first)
        path = Path(self.folder, f"checkpoint-{steps}", "trainer_state.json")
        if change is not None:
            kept = json.loads(path.read_text())
            change(kept)
            path.write_text(json.dumps(kept))
        self.server.events.clear()
        since = train(3 * steps, True, then)
        return [event["samples_total"] for event in self.server.events if "samples_total" in event], before, since

    def test_samples_go_on_from_a_checkpoint_of_another_batch_or_accumulation(self) -> None:
        batch, accumulated = "per_device_train_batch_size", "gradient_accumulation_steps"
        for first, then in (
            ({batch: 4}, {batch: 8}),
            ({batch: 8}, {batch: 2}),
            ({batch: 4, accumulated: 3}, {batch: 4}),
            ({batch: 4}, {batch: 4, accumulated: 2}),
            ({batch: 8}, {batch: 8, "ignore_data_skip": True}),
            ({batch: 4}, {batch: 4, "restore_callback_states_from_checkpoint": True}),
            ({batch: 4, "auto_find_batch_size": True}, {batch: 8, "auto_find_batch_size": True}),
        ):
            with self.subTest(first=first, then=then):
                samples, before, since = self.resumed(4, first, then)
                self.assertEqual((samples[0], samples[-1], samples), (before, before + since, sorted(samples)))
                job = self.callback.job
                assert job is not None, "the trainer made another callback"
                self.assertEqual((job.samples_total, job.steps_total), (before + since, 12))
                job.energy.joules, job.energy.devices = 3.0 * since, 1
                self.assertEqual(job.joules_per_sample(), 3.0)

    def test_that_transformers_ignores_the_entry_among_callbacks_is_only_logged(self) -> None:
        options = {"per_device_train_batch_size": 4, "restore_callback_states_from_checkpoint": True}
        with self.assertLogs("transformers.trainer", logging.WARNING) as logs:
            samples, before, since = self.resumed(4, options, options)
        warnings = [line for line in logs.output if "callbacks not included" in line]
        self.assertEqual([line.partition("trainer:")[2] for line in warnings], [IGNORED])
        self.assertEqual((samples[0], samples[-1]), (before, before + since))

    def test_the_batch_of_a_checkpoint_that_the_trainer_takes_over_counts_and_not_that_of_the_arguments(self) -> None:
        def without(kept: dict[str, Any]) -> None:
            del kept["stateful_callbacks"]["eadt"]

        # Trainer.train of older transformers takes it over without condition. Four steps are more than an epoch of batches of 16.
        for batch, arguments in ((8, 16), (16, 8)):
            for change in (None, without):
                with self.subTest(batch=batch, change=change):
                    first, then = ({"per_device_train_batch_size": size} for size in (batch, arguments))
                    samples, before, since = self.resumed(4, first, then, change, loaded=batch)
                    self.assertEqual((self.callback._batch, before), (batch, {8: 32, 16: 60}[batch]))
                    self.assertEqual((samples[0], samples[-1], samples), (before, before + since, sorted(samples)))
                    started = next(event for event in self.server.events if event.get("phase") == "started")
                    self.assertEqual(started["global_batch_size"], batch)

    def test_the_batch_of_all_ranks_is_that_which_their_loaders_have(self) -> None:
        arguments = TrainingArguments(output_dir=self.folder, use_cpu=True, per_device_train_batch_size=16)
        # Which loaders have one process only, and load for all, is asked of the state.
        Accelerator(cpu=True)
        rows = list(torch.arange(48))
        for data in (rows, Stream()):
            for is_split in (False, True):
                with self.subTest(data=type(data), is_split=is_split), mock.patch.object(TrainingArguments, "world_size", 2):
                    loader = torch.utils.data.DataLoader(data, batch_size=8)
                    ranks = [prepare_data_loader(loader, None, 2, rank, split_batches=is_split) for rank in range(2)]
                    seen = sum(len(next(iter(rank))) for rank in ranks)
                    self.assertEqual((_loaded_by(ranks[0], arguments), seen), ((8, 1), 8) if is_split else ((8, 2), 16))
                    self.assertEqual(_loaded_by(loader, arguments), (8, 2), "each rank has its own")
                    # Rank 0 loads for all.
                    dispatched = prepare_data_loader(loader, None, 2, 0, split_batches=is_split, dispatch_batches=True, put_on_device=True)
                    self.assertEqual(_loaded_by(dispatched, arguments), (8, 1 if is_split else 2))
                    callback = EadtCallback(url=self.server.url)
                    state = TrainerState(global_step=2, max_steps=6, train_batch_size=8)
                    callback.on_train_begin(arguments, state, TrainerControl(), model=small(), train_dataloader=ranks[0])
                    assert callback.job is not None
                    callback.job.close()
                    self.assertEqual((callback._batch, callback.job.samples_total), (seen, 2.0 * seen))
        sampler = torch.utils.data.BatchSampler(range(48), 8, False)
        loader = torch.utils.data.DataLoader(rows, sampler=sampler, batch_size=None)
        self.assertEqual(_loaded_by(loader, arguments), (8, 1))
        self.assertIsNone(_loaded_by(None, arguments))
        self.assertIsNone(_loaded_by(torch.utils.data.DataLoader(Keyed(), batch_size=8), arguments))
        for options in ({"batch_size": None}, {"batch_sampler": [[0, 1], [2]]}):
            self.assertIsNone(_loaded_by(torch.utils.data.DataLoader(rows, **options), arguments))

    def test_samples_go_on_from_a_checkpoint_of_another_number_of_ranks(self) -> None:
        self.trainer(small(), 4, save_strategy="steps", save_steps=4).train()
        state = TrainerState.load_from_json(os.path.join(self.folder, "checkpoint-4", "trainer_state.json"))
        arguments = TrainingArguments(output_dir=self.folder, use_cpu=True, per_device_train_batch_size=8, max_steps=6)
        callback = EadtCallback(url=self.server.url)
        with mock.patch.object(TrainingArguments, "world_size", 2):
            callback.on_train_begin(arguments, state, TrainerControl(), model=small())
            self.assertEqual((callback._samples_at(4), callback._samples_at(6)), (32.0, 64.0))
            state.global_step = 5
            callback.on_step_end(arguments, state, TrainerControl())
        assert callback.job is not None
        callback.job.close()
        self.assertEqual(state.stateful_callbacks["eadt"]["attributes"], {"samples_total": 48.0, "steps_total": 5})

    def test_a_checkpoint_without_samples_is_counted_by_its_batch(self) -> None:
        def without(kept: dict[str, Any]) -> None:
            del kept["stateful_callbacks"]["eadt"]

        def broken(kept: dict[str, Any]) -> None:
            kept["stateful_callbacks"]["eadt"] = {"attributes": {"samples_total": "x"}}

        def earlier(kept: dict[str, Any]) -> None:
            # Two steps were made without the callback.
            kept["stateful_callbacks"]["eadt"]["attributes"] = {"samples_total": 8.0, "steps_total": 2}

        for change in (without, broken, earlier):
            with self.subTest(change.__name__):
                # As the trainer keeps it; the earlier steps of the last one had the same batch as now.
                first = {"per_device_train_batch_size": 4}
                then = first if change is earlier else {"per_device_train_batch_size": 8}
                samples, before, since = self.resumed(4, first, then, change)
                self.assertEqual((samples[0], samples[-1]), (16.0, 16.0 + since))
                self.assertEqual(before, 16)

    def test_a_state_of_transformers_before_4_41_is_trained_with_all_the_same(self) -> None:
        arguments = TrainingArguments(output_dir=self.folder, use_cpu=True, per_device_train_batch_size=8)
        callback = EadtCallback(url=self.server.url)
        state = TrainerState(global_step=3, max_steps=6, train_batch_size=8)
        del state.stateful_callbacks
        callback.on_train_begin(arguments, state, TrainerControl(), model=small())
        state.global_step = 4
        callback.on_step_end(arguments, state, TrainerControl())
        assert callback.job is not None
        callback.job.close()
        self.assertEqual((callback.job.samples_total, callback.job.client.last_error), (32.0, None))

    def test_a_scheduler_without_a_learning_rate_does_not_reach_training(self) -> None:
        class Unready(torch.optim.lr_scheduler.LambdaLR):
            def get_last_lr(self) -> list[float]:
                raise AssertionError("need to call step() first")

        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        trainer = self.trainer(model, 4, optimizers=(optimizer, Unready(optimizer, lambda _: 1.0)))
        # As the trainer does with DeepSpeed.
        trainer._get_learning_rate = lambda: 0.0  # type: ignore[method-assign]
        trainer.train()
        self.assertEqual(trainer.state.global_step, 4)
        self.assertEqual([e["learning_rate"] for e in self.server.events if "learning_rate" in e][-1], 1e-3)

    def test_what_goes_wrong_in_the_callback_does_not_reach_training(self) -> None:
        trainer = self.trainer(small(), 4, eval_strategy="steps", eval_steps=2)
        with (
            mock.patch.object(Job, "step", side_effect=RuntimeError("no step")),
            mock.patch.object(Job, "evaluated", side_effect=RuntimeError("no evaluation")),
        ):
            trainer.train()
        self.assertEqual(trainer.state.global_step, 4)

    def test_samples_are_those_of_all_devices_and_of_ranks_with_their_own(self) -> None:
        model = small()
        arguments = TrainingArguments(output_dir=self.folder, use_cpu=True, per_device_train_batch_size=8, gradient_accumulation_steps=3)
        callback = EadtCallback(url=self.server.url)
        # Two GPUs of one process: the trainer doubles the batch.
        with mock.patch.object(TrainingArguments, "n_gpu", 2):
            callback.on_train_begin(arguments, TrainerState(train_batch_size=16, max_steps=10), TrainerControl(), model=model)
        self.assertEqual((callback._batch, callback._samples_at(2)), (48, 96.0))
        # One that the trainer found by trying.
        arguments.auto_find_batch_size = True
        callback.on_train_begin(arguments, TrainerState(train_batch_size=4, max_steps=10), TrainerControl(), model=model)
        self.assertEqual((callback._batch, callback._samples_at(2)), (12, 24.0))
        with mock.patch.object(TrainingArguments, "world_size", 8):
            arguments.parallelism_config = ParallelismConfig(dp_shard_size=2, tp_size=2, cp_size=2)
            self.assertEqual(_data_ranks(arguments), 2)
            arguments.parallelism_config = None
            self.assertEqual(_data_ranks(arguments), 8)
        assert callback.job is not None
        callback.job.close()

    def test_what_a_trainer_carries_into_the_next_epoch_is_not_counted_as_a_step(self) -> None:
        loader = torch.utils.data.DataLoader(range(20), batch_size=8)
        for version, accumulated, epoch in (("4.45.2", 2, None), ("4.45.2", 1, (3, 20.0)), ("4.46.0", 2, (2, 20.0)), ("5.0", 2, (2, 20.0))):
            arguments = TrainingArguments(output_dir=self.folder, use_cpu=True, gradient_accumulation_steps=accumulated)
            with self.subTest(version=version, accumulated=accumulated), mock.patch("transformers.__version__", version):
                self.assertEqual(_epoch_of(loader, arguments, 8 * accumulated), epoch)

    def test_the_last_batches_of_an_epoch_count_as_large_as_they_are(self) -> None:
        for samples, options in ((24, {}), (20, {}), (20, {"dataloader_drop_last": True}), (44, {"gradient_accumulation_steps": 4})):
            with self.subTest(samples=samples, options=options):
                model, seen = small(), []
                model.register_forward_pre_hook(lambda _, args, given, seen=seen: seen.append(len(given["input_ids"])), with_kwargs=True)
                trainer = self.trainer(model, 5, samples=samples, **options)
                trainer.train()
                self.assertEqual((self.server.events[-1]["samples_total"], self.callback.job.samples_total), (sum(seen), sum(seen)))

    def test_steps_that_the_gradient_scaler_skips_are_counted(self) -> None:
        arguments = TrainingArguments(output_dir=self.folder, use_cpu=True)
        # The optimizer asks it what kind of training this is; arguments begin anew.
        Accelerator(cpu=True)
        model = small()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        optimizer = AcceleratedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), scaler=scaler)
        state, control = TrainerState(max_steps=3, train_batch_size=8), TrainerControl()
        callback = EadtCallback(url=self.server.url, interval_seconds=0.05)
        callback.on_train_begin(arguments, state, control, model=model, optimizer=optimizer)
        rows = torch.stack([row["input_ids"] for row in dataset(8)])
        for step, factor in enumerate((1.0, float("inf"), 1.0), start=1):
            optimizer.zero_grad()
            scaler.scale(model(input_ids=rows, labels=rows).loss * factor).backward()
            optimizer.step()
            state.global_step = step
            callback.on_step_end(arguments, state, control, model=model, optimizer=optimizer)
        callback.on_train_end(arguments, state, control)
        skips = [event["overflow_skips_total"] for event in self.server.events if "overflow_skips_total" in event]
        self.assertEqual((skips[-1], self.server.events[-1]["loss_scale"]), (1, 2.0**15))

    def test_a_server_that_hangs_does_not_slow_the_trainer(self) -> None:
        import time

        server = Harmful("hang")
        self.addCleanup(server.close)
        self.trainer(small(), 5).train()
        durations = {}
        for url in (self.server.url, server.url):
            trainer = self.trainer(small(), 20, url=url)
            begun = time.monotonic()
            trainer.train()
            durations[url] = time.monotonic() - begun
        # The end may wait two seconds; a callback that posts on the training thread waits five or more for every report.
        self.assertLess(durations[server.url], durations[self.server.url] + 30.0)


if __name__ == "__main__":
    unittest.main()
