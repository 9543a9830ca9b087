"""``Trainer(..., callbacks=[EadtCallback()])`` for Hugging Face transformers."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sys
from collections.abc import Iterable
from typing import Any, Final

import transformers
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .batches import ranks_with_samples
from .callbacks import ValidationLoss, check_options
from .freeze import BlockFreezer, give_back
from .passed import MethodReplacement, PassedBatches, first_failure_of, note_outcomes, watch_loop
from .training import Job, quiet, words

#: The callback's entry in a checkpoint, among those of stateful callbacks. Not the name of the class: of a class with an entry the trainer
#: may make a new callback (``restore_callback_states_from_checkpoint``), without the options of this one.
ENTRY: Final = "eadt"
#: The trainer's ``should_save`` where only a directive asks for a checkpoint: the trainer and other callbacks set a ``bool``.
ASKED: Final = 1
#: What the trainer writes last into the folder of a checkpoint, before it removes older ones.
LAST_WRITTEN: Final = "trainer_state.json"


class EadtCallback(TrainerCallback):  # type: ignore[misc]
    """Reports steps, samples, loss and learning rate; freezes blocks when asked, at a checkpoint that it has written.

    ``validation_loss``: its name among the metrics; else ``eval_loss``, or the first one of several evaluation data sets.
    """

    def __init__(self, layers: Any = "auto", *, validation_loss: str | None = None, **options: Any) -> None:
        check_options(layers, options, EadtCallback.__init__)
        self._validation_loss = ValidationLoss(validation_loss, _usual_loss)
        self._layers, self._options = layers, options
        self.job: Job | None = None
        #: After the training, `evaluate` evaluates what is no job any more.
        self._is_training = False
        #: The batch that is loaded, and how many of them all ranks load at once. Those of the arguments, if the loader has no fixed one.
        self._loaded, self._at_once = 0, 1
        self._is_loaded_known = True
        #: Samples of a step, and steps and samples of an epoch, if they are known.
        self._batch = 0
        self._epoch: tuple[int, float] | None = None
        #: Samples of all ranks up to the last step.
        self._samples = 0.0
        #: Samples up to a checkpoint beyond those that this batch would have had, and steps before the first epoch of this training.
        self._computed_before, self._steps_before = 0.0, 0
        #: Counts the batches that are trained on, from the samples at the start on; ``None``: the trainer was not found.
        self._passed: PassedBatches | None = None
        #: Whether a checkpoint that only a directive asks for cannot end the training, and whether the newest one was not written.
        self._are_saves_guarded = self._is_save_lost = False
        #: What gives frozen blocks back if the training raises between two steps, and guards the saves.
        self._guards: list[MethodReplacement] = []
        self._samples_at_start = 0.0
        #: Steps that the gradient scaler skipped; ``None``: there is no scaler.
        self._skips: int | None = None

    @quiet
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Before the trainer makes an optimizer of what trains: a training that raised may have left blocks frozen.
        model = kwargs.get("model")
        if model is not None:
            give_back(model)

    @quiet
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A training that raised has no end of its own; another one begins.
        self._end()
        model = kwargs.get("model")
        optimizer = kwargs.get("optimizer")
        freezer = None
        if model is not None and self._layers is not None:
            blocks = None if isinstance(self._layers, str) else list(self._layers)
            optimizers = [optimizer] if optimizer is not None else []
            freezer = BlockFreezer(model, optimizers, blocks, lambda: _refusal_of_trainer(args, model))
        scaler = getattr(optimizer, "scaler", None)
        self._skips = None if scaler is None else 0
        self.job = Job(model, optimizer, freezer=freezer, **{"scaler": scaler, **self._options})
        self.job.precision_refusal = "transformers fixes its precision at the start: restart with another one in TrainingArguments"
        if _saves_weights_alone(args):
            self.job.checkpoint_refusal = "no training goes on from weights alone: leave out save_only_model=True of TrainingArguments"
        self._is_training = True
        self._learn_batch(args, state, kwargs.get("train_dataloader"))
        self._go_on(args, state)
        self.job.steps_total = state.global_step
        self.job.samples_total = self._samples = self._samples_at_start = self._samples_at(state.global_step)
        self._watch(args, state, model)
        batch = self._batch if self._is_loaded_known else None
        self.job.start(global_batch_size=batch, steps_remaining=max(0, state.max_steps - state.global_step))

    def _on_error(self) -> None:
        """Leaves no block frozen where a training raises: it has no end of its own, and another one may begin without this callback."""
        if self.job is not None:
            self.job.release()

    def _learn_batch(self, args: Any, state: Any, dataloader: Any) -> None:
        # A batch that was found by trying, and in older transformers one of a checkpoint, is not that of the arguments.
        found = getattr(state, "train_batch_size", None) if args.auto_find_batch_size else None
        loaded = _loaded_by(dataloader, args)
        self._is_loaded_known = loaded is not None or dataloader is None
        self._loaded, self._at_once = loaded or (found or args.train_batch_size, _data_ranks(args))
        self._batch = self._loaded * args.gradient_accumulation_steps * self._at_once
        self._epoch = _epoch_of(dataloader, args, self._batch) if self._is_loaded_known else None

    def _watch(self, args: Any, state: Any, model: Any) -> None:
        """Has the batches counted that the trainer trains on from now on, and the blocks given back if it raises."""
        with contextlib.suppress(Exception):
            trainer = _trainer_of(state)
            if trainer is not None:
                of_rank = self._loaded * self._at_once // _data_ranks(args) if self._is_loaded_known else None
                self._passed = PassedBatches(trainer, getattr(model, "main_input_name", None), of_rank, self._on_error)
                self._guards = watch_loop(trainer, self._on_error)
                self._guards.append(MethodReplacement(trainer.callback_handler, "on_save", lambda call: self._make_on_save(trainer, call)))
                self._guards.append(MethodReplacement(trainer, "_save_checkpoint", lambda save: self._make_save(trainer, save)))
                self._are_saves_guarded = True

    def _make_save(self, trainer: Any, save: Any) -> Any:
        """Returns what the trainer calls to write a checkpoint: where only a directive asks for it, a failure refuses the directive."""

        def save_checkpoint(*arguments: Any, **options: Any) -> Any:
            job, self._is_save_lost = self.job, False
            if job is None or not job.checkpoint_due() or type(trainer.control.should_save) is not int:
                return save(*arguments, **options)
            # It is written into the checkpoint.
            trainer.control.should_save = True
            folder = _checkpoint_folder(trainer, arguments, options)
            is_new = folder is not None and not os.path.exists(folder)
            failure = job.first_failure(lambda: _write_checkpoint(trainer, lambda: save(*arguments, **options)))
            if failure is not None:
                self._is_save_lost = True
                # With a part of it alone, the trainer would go on from none.
                if folder is not None and is_new and trainer.args.should_save and not os.path.exists(os.path.join(folder, LAST_WRITTEN)):
                    shutil.rmtree(folder, ignore_errors=True)
                job.checkpoint_failed(failure)
            return None

        return save_checkpoint

    def _make_on_save(self, trainer: Any, call: Any) -> Any:
        def on_save(*arguments: Any, **options: Any) -> Any:
            is_lost, self._is_save_lost = self._is_save_lost, False
            if not is_lost:
                return call(*arguments, **options)
            # No callback is given a checkpoint that is not there.
            trainer.control.should_save = False
            return trainer.control

        return on_save

    @quiet
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        job = self.job
        if job is None:
            return control
        self._validation_loss.warn_if_missing()
        fields: dict[str, Any] = {
            "steps_total": state.global_step,
            "steps_remaining": max(0, state.max_steps - state.global_step),
        }
        rank_samples = 0.0
        samples = self._samples_now(args, state.global_step)
        if samples is None:
            self._note_unknown_samples(job)
        else:
            rank_samples, self._samples = (samples - self._samples) / max(1, args.world_size), samples
            fields["samples_total"] = samples
            # Before the trainer writes a checkpoint of this step.
            _keep(state, samples)
        if state.epoch is not None:
            fields["epoch"] = state.epoch
        if state.num_input_tokens_seen:
            fields["tokens_total"] = float(state.num_input_tokens_seen)
        rate = _learning_rate(kwargs.get("lr_scheduler"), kwargs.get("optimizer"))
        if rate is not None:
            fields["learning_rate"] = rate
        if self._skips is not None:
            self._skips += bool(getattr(kwargs.get("optimizer"), "step_was_skipped", False))
            fields["overflow_skips_total"] = self._skips
        job.step(rank_samples, **fields)
        if job.checkpoint_due() and self._are_saves_guarded:
            control.should_save = control.should_save or ASKED
        elif job.checkpoint_due():
            job.checkpoint_failed("the trainer writes checkpoints in a way that is not known")
        return control

    def _go_on(self, args: Any, state: Any) -> None:
        """Takes the samples up to a checkpoint from it, since its batch, ranks and accumulated gradients may have been others."""
        step = state.global_step
        kept = _kept(state)
        if kept is not None:
            # Steps without the callback are taken to be like those of now.
            since = self._regular(step) - self._regular(kept[0]) if self._is_loaded_known else 0.0
            total = kept[1] + max(0.0, since)
        elif not self._is_loaded_known:
            total = 0.0
        else:
            then = getattr(state, "train_batch_size", None) or self._loaded
            is_other = then != self._loaded
            total = float(step * then * args.gradient_accumulation_steps * self._at_once) if is_other else self._regular(step)
        # Else the trainer goes on in the middle of an epoch.
        self._steps_before = step if args.ignore_data_skip else 0
        self._computed_before = total - self._regular(step - self._steps_before)

    def _samples_now(self, args: Any, step: int) -> float | None:
        """Returns the samples of all ranks up to now; ``None``: unknown.

        Those that were counted, if a batch has a row for each; else as many as the loader takes for a batch.
        """
        passed = self._passed
        if passed is not None and passed.batches == 0:
            # A trainer with a loop of its own.
            passed = None
        if passed is not None and passed.samples is not None:
            return self._samples_at_start + passed.samples * _data_ranks(args)
        if not self._is_loaded_known:
            return None
        if passed is None or self._epoch is not None:
            return self._samples_at(step)
        # Without a length, epochs may end anywhere.
        return self._samples_at_start + float(passed.batches * self._loaded * self._at_once)

    def _note_unknown_samples(self, job: Job) -> None:
        """Notes a step whose samples are not counted: once in the log, all of them in the summary."""
        if job.steps_without_samples == 0:
            job.client.note_failure("samples are unknown: the loader has no batch size, and a batch no tensor")
        job.steps_without_samples += 1

    def _samples_at(self, step: int) -> float:
        """Returns the samples of all ranks up to a step of this training, if each batch is as large as that of the loader."""
        return self._computed_before + self._regular(step - self._steps_before)

    def _regular(self, step: int) -> float:
        """Returns the samples of so many steps of this batch: the last one of an epoch has fewer where the data does not divide."""
        if self._epoch is None:
            return float(step * self._batch)
        steps, samples = self._epoch
        epochs, rest = divmod(step, steps)
        return epochs * samples + float(rest * self._batch)

    @quiet
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.job is None or not state.is_world_process_zero or not logs:
            return
        fields = {"loss": logs.get("loss"), "gradient_norm": logs.get("grad_norm")}
        known = {name: value for name, value in fields.items() if value is not None}
        if known:
            self.job.client.report(**known)

    @quiet
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if self.job is None or not self._is_training or not metrics:
            return
        loss = self._validation_loss.of(metrics)
        if loss is not None:
            self.job.evaluated(loss)

    @quiet
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.job is None or not self._is_training:
            return
        if _saves_weights_alone(args):
            self.job.take_up_due()
        else:
            self.job.checkpointed()

    @quiet
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end()

    def _end(self) -> None:
        passed, self._passed = self._passed, None
        guards, self._guards = self._guards, []
        self._are_saves_guarded = False
        if passed is not None:
            passed.close()
        for guard in guards:
            guard.close()
        if self._is_training:
            self._validation_loss.warn_if_missing()
        self._is_training = False
        if self.job is not None:
            self.job.close()


def _usual_loss(names: Iterable[str]) -> str | None:
    """Returns ``eval_loss``, or ``eval_NAME_loss`` of one of several data sets: the shortest, since metrics may be called so, too."""
    losses = [name for name in names if name == "eval_loss" or re.fullmatch("eval_.*_loss", name)]
    return min(losses, key=len, default=None)


def _trainer_of(state: Any) -> Any:
    """Returns the trainer that calls this callback; ``None``: another one does. Callbacks are not given it, and its batches neither."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if getattr(caller, "state", None) is state and callable(getattr(caller, "training_step", None)):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _saves_weights_alone(args: Any) -> bool:
    return bool(getattr(args, "save_only_model", False))


def _checkpoint_folder(trainer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """Returns where ``_save_checkpoint(model, trial)`` writes; ``None``: a trainer of another kind writes elsewhere."""
    try:
        trial = options["trial"] if "trial" in options else arguments[1]
        return os.path.join(trainer._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}")
    except Exception:
        return None


def _write_checkpoint(trainer: Any, save: Any) -> str | None:
    """Writes a checkpoint; returns why that failed. A rank that cannot write the weights comes all the same to where the others wait.

    Ranks that write together (FSDP, DeepSpeed) may wait inside for one that fails.
    """
    outcomes: list[str | None] = []

    def make(save_state: Any) -> Any:
        def save_unless_failed(*arguments: Any, **options: Any) -> None:
            failure = first_failure_of(outcomes)
            if failure is not None:
                # Older checkpoints are removed after it.
                raise OSError(failure)
            save_state(*arguments, **options)

        return save_unless_failed

    replaced = [note_outcomes(trainer, "save_model", outcomes), MethodReplacement(trainer.state, "save_to_json", make)]
    try:
        save()
    except Exception as error:
        outcomes.append(words(error))
    finally:
        for one in replaced:
            one.close()
    return first_failure_of(outcomes)


def _keep(state: Any, samples: float) -> None:
    """Puts the samples into the next checkpoint; transformers before 4.41 keep nothing of callbacks."""
    entries = getattr(state, "stateful_callbacks", None)
    if isinstance(entries, dict):
        entries[ENTRY] = {"args": {}, "attributes": {"samples_total": samples, "steps_total": state.global_step}}


def _kept(state: Any) -> tuple[int, float] | None:
    """Returns the steps and samples that a checkpoint has; ``None``: it has none, as one of other versions."""
    try:
        kept = state.stateful_callbacks[ENTRY]["attributes"]
        steps, samples = int(kept["steps_total"]), float(kept["samples_total"])
    except Exception:
        return None
    return (steps, samples) if steps >= 0 and math.isfinite(samples) and samples >= 0 else None


def _loaded_by(dataloader: Any, args: Any) -> tuple[int, int] | None:
    """Returns the batch of a loader, and how many the ranks have at once: one each, or one that Accelerate splits; ``None``: not known.

    Not its ``total_batch_size``: that has the ranks in it or not, as the kind of the dataset is, and where rank 0 loads for all it raises.
    """
    try:
        data: Any = getattr(dataloader, "dataset", None)
        sampler: Any = getattr(dataloader, "batch_sampler", None)
        if sampler is None:
            sampler = dataloader.sampler
        # Of a dataset without a length the shard of a rank knows the batch before it is split.
        is_shard_split = getattr(data, "split_batches", False) is True
        size = int((data if is_shard_split else sampler).batch_size)
        is_split = is_shard_split or any(getattr(part, "split_batches", False) is True for part in (dataloader, sampler))
    except Exception:
        # A loader or a dataset of another kind, which may raise what it likes.
        return None
    return (size, 1 if is_split else _data_ranks(args)) if size > 0 else None


def _epoch_of(dataloader: Any, args: Any, batch: int) -> tuple[int, float] | None:
    """Returns the steps of an epoch and its samples; ``None`` if its length is not known, or ranks share their samples."""
    try:
        batches = len(dataloader)
    except Exception:
        return None
    accumulated = args.gradient_accumulation_steps
    if batches <= 0 or _data_ranks(args) != max(1, args.world_size):
        return None
    # Before 4.46 the trainer carries the batches after the last whole step into the next epoch: epochs then do not have the same steps.
    if batches % accumulated and not _steps_at_ends_of_epochs():
        return None
    samples = batches * batch / accumulated
    sampler = getattr(dataloader, "batch_sampler", None)
    # Of several ranks Accelerate fills the last batches up.
    if args.world_size <= 1 and not getattr(sampler, "drop_last", True):
        rows: Any = getattr(sampler, "sampler", None)
        if not hasattr(rows, "__len__"):
            # Of a dataset that is only iterated, and has a length.
            rows = getattr(dataloader, "dataset", None)
        given = len(rows) if hasattr(rows, "__len__") else samples
        if samples - batch / accumulated < given < samples:
            samples = float(given)
    return -(-batches // accumulated), samples


def _steps_at_ends_of_epochs() -> bool:
    """Returns whether this version of transformers makes a step of the last batches of an epoch, however few they are."""
    numbers = re.match(r"(\d+)\.(\d+)", str(transformers.__version__))
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= (4, 46)


def _data_ranks(args: Any) -> int:
    return ranks_with_samples(args.world_size, getattr(args, "parallelism_config", None))


def _learning_rate(scheduler: Any, optimizer: Any) -> float | None:
    """Returns the highest learning rate; ``None`` if it is not known yet: DeepSpeed's schedulers have none before their first step."""
    try:
        return float(max(scheduler.get_last_lr()))
    except Exception:
        groups = getattr(optimizer, "param_groups", None) or []
        return max((float(group["lr"]) for group in groups if "lr" in group), default=None)


def _refusal_of_trainer(args: Any, model: Any) -> str | None:
    """The trainer wraps the model where callbacks do not see it: its arguments show how."""
    if getattr(args, "deepspeed", None):
        return "the trainer runs DeepSpeed, which moves weights that do not require gradients: train by eadt.deepspeed instead"
    if args.world_size <= 1 or getattr(args, "fsdp", None):
        return None
    unused = args.ddp_find_unused_parameters
    if unused is None:
        # As the trainer decides by itself.
        unused = not getattr(model, "is_gradient_checkpointing", False)
    return None if unused else "DDP waits for every gradient: set ddp_find_unused_parameters=True"
