"""A training job: reports its progress, and takes up directives at checkpoints, on all ranks at the same step."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from time import time_ns
from types import TracebackType
from typing import Any, TypeVar

from .client import Client, default_rank
from .directives import Directive, first_refusal, gather, is_distributed, local_world, lonely_ranks, rank_and_world
from .events import clip_text, event_precision, event_time
from .measure import Measurement

logger = logging.getLogger("eadt")

#: Steps after which rank 0 sends the others whether there is a directive. A count, not a time: all ranks must be at the same step.
AGREE_EVERY = 20
#: Nanoseconds between two steps that are reported, at least; shorter steps between them are only counted.
REPORT_NS = 200_000_000
#: Nanoseconds after the start within which the first step is to end: counters of the start that are older are not added to it.
START_NS = 60_000_000_000
#: Steps that are only counted, at most.
MAX_COUNTED = 64
#: Steps after which hooks look at a forward pass again: they slow each pass while they are there.
LOOK_EVERY = 100
#: Steps after a freeze within which each block that trains is to get a gradient.
CHECKED_STEPS = 5

T = TypeVar("T")

#: Samples and fields of each step since the last one that was reported. Ranks that report nothing keep no fields.
Counted = list[tuple[Any, dict[str, Any] | None]]

#: Jobs of this process that began and did not end.
_begun_jobs: weakref.WeakSet[Job] = weakref.WeakSet()


class Job:
    """Reports of a plain loop, and its directives. Frameworks use it through their callbacks.

    ``layers``: the blocks that may be frozen: ``"auto"``, a list of them from the input side, or ``None``.
    ``scaler``: the ``GradScaler`` of the loop. ``precision``: with which ``autocast()`` starts: ``fp32``, ``bf16`` or ``fp16``.
    ``agree_every``: steps after which rank 0 sends the others a directive.
    ``plasticity_every``: steps between two measurements of the blocks' plasticity; 0: none.
    ``data_ranks``: ranks that have samples of their own, if others share theirs (tensor, pipeline or context parallelism); ``None``: all.
    ``client``: one of your own; else its options: ``url``, ``workload``, ``token_file``, ``ca_file``, ``directives_file``,
    ``interval_seconds`` (seconds between two requests, at least).
    """

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        layers: str | Sequence[Any] | None = None,
        scaler: Any = None,
        precision: str | None = None,
        client: Client | None = None,
        agree_every: int = AGREE_EVERY,
        plasticity_every: int = 0,
        freezer: Any = None,
        data_ranks: int | None = None,
        **client_options: Any,
    ) -> None:
        check_layers(layers)
        check_data_ranks(data_ranks)
        precision = autocast_precision(precision)
        self.model = model
        self.rank = default_rank()
        #: Not empty if a collector of cycles found the job: it adds to this before ``__del__``, and a last reference that goes after it.
        self._found: list[bool] = []
        weakref.finalize(self, self._found.append, True).atexit = False
        self._thread = threading.get_ident()
        self.client = client or Client(rank=self.rank, **client_options)
        # The client's thread must not keep a job, its model and its optimizer that nothing else refers to.
        self._client_state = self.client.state = _while_alive(self._state, {})
        self.client.demand = _while_alive(self._demand, None)
        self.client.ending = _while_alive(self._end, {})
        #: Samples and fields of the steps since the last one that was reported, and how many there may be.
        self._counted: Counted = []
        self._most_counted = 0
        #: Steps, samples and time of the last one that was reported, and how many steps take ``REPORT_NS``.
        self._steps, self._samples, self._moment, self._usual = 0, 0.0, 0, 1
        #: The newest loss that is not reported yet. Kept at each step where the last one that was reported had none.
        self._loss: Any = None
        self._keeps_loss = False
        #: The time of the start until the first step; then ``None``.
        self._begun: int | None = None
        self._look_at = 0
        self.checkpoints = 0
        self.energy = Measurement("job", _while_alive(self._computed, 0.0))
        #: Directives taken up and refused, newest last: ``(decision_id, refusal or None)``.
        self.answers: list[tuple[str, str | None]] = []
        #: Why W&B, MLflow or TensorBoard did not take figures the last time, by name.
        self.logger_failures: dict[str, str] = {}
        #: Steps whose samples are no number, or negative, and are not counted.
        self.steps_without_samples = 0
        #: Samples of a checkpoint, which were not computed by this process.
        self._restored_samples = 0.0
        #: Steps at the last ``close``; another one without steps in between does nothing.
        self._closed_at: int | None = None
        #: Blocks that were frozen when the job ended.
        self._frozen_at_end: int | None = None
        #: Whether frozen weights of this rank moved after the check.
        self._is_moved = False
        self.scaler = scaler
        self._agree_every = max(1, agree_every)
        self._revision = 0
        #: Whether the job began with the first step of its training; ``None`` until then: it may be set that it goes on from a checkpoint.
        self._is_fresh: bool | None = None
        self._pending: Directive | None = None
        #: The directive whose freeze is checked by the gradients of the next steps, these steps, and the blocks that were frozen before it.
        self._checked: tuple[Directive, int] | None = None
        self._checks_left = 0
        #: The last decision for which a checkpoint was written.
        self._checkpointed_for = ""
        #: The step from which on it may be taken up.
        self._due_at = 0
        #: The GPU by which ranks agree; ``None``: PyTorch's current one, or none.
        self._device: Any = None
        #: The others, as looked up at the start and whenever they agree, and how many there were at most.
        self._most_ranks = 1
        self._data_ranks = data_ranks
        self._look_up_rank()
        #: Measures the plasticity of the blocks every so many steps; 0: it does not.
        self._plasticity_every = max(0, plasticity_every)
        self._meter: Any = None
        self._probe: Any = None
        self._autocast: Any = None
        self._freezer = freezer
        #: Why precision is not changed, where a framework owns it.
        self.precision_refusal: str | None = None
        #: Why a framework writes no checkpoint from which a training goes on.
        self.checkpoint_refusal: str | None = None
        if model is not None:
            try:
                self._attach(model, optimizer, layers, precision)
            except Exception as error:
                # A model of an unexpected kind is still trained, in the precision that was requested.
                self._freezer = self._probe = self._meter = None
                logger.warning("EADT: %s: no blocks are frozen and no precision is reported: %s", self.client.workload, error)

    def _attach(self, model: Any, optimizer: Any, layers: str | Sequence[Any] | None, precision: str | None) -> None:
        from .freeze import BlockFreezer, find_blocks
        from .precision import AutocastControl, PrecisionProbe

        parameter = next(iter(model.parameters()), None)
        device = parameter.device.type if parameter is not None else "cpu"
        self._device = parameter.device if parameter is not None and device == "cuda" else None
        self._autocast = AutocastControl(device, precision, _while_alive(self._scales, False))
        optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer] if optimizer is not None else []
        blocks = find_blocks(model) if layers is None or isinstance(layers, str) else list(layers)
        if self._freezer is None and layers is not None:
            self._freezer = BlockFreezer(model, optimizers, blocks)
        # A model without layers has no hook, which an export of it would meet.
        self._probe = PrecisionProbe(model, blocks[0] if blocks else None, self._autocast, has_hooks=self._freezer is not None)
        if self._plasticity_every > 0 and blocks:
            from .plasticity import PlasticityMeter

            own = [block for block in getattr(self._freezer, "blocks", ()) if hasattr(block, "forward")]
            self._meter = PlasticityMeter(model, own or blocks)
            self._meter.keep_next_batch()

    @property
    def steps_total(self) -> int:
        """Optimiser steps since the first start."""
        return self._steps + len(self._counted)

    @steps_total.setter
    def steps_total(self, steps: int) -> None:
        number = _number(steps)
        if isinstance(number, str):
            self.client.note_failure(f"steps_total is {number}, and stays {self.steps_total}")
        else:
            self._steps, self._look_at, self._due_at = int(number) - len(self._counted), 0, 0
            self._demand()

    @property
    def samples_total(self) -> float:
        """Samples of all ranks since the first start. A job that goes on from a checkpoint sets it, and ``steps_total``."""
        return self._samples + self.of_all_ranks(_samples_of(self._counted))

    @samples_total.setter
    def samples_total(self, samples: float) -> None:
        number = _number(samples)
        if isinstance(number, str):
            self._note_samples(number)
        else:
            self._restored_samples += number - self.samples_total
            self._samples = number - self.of_all_ranks(_samples_of(self._counted))

    def of_all_ranks(self, samples: float) -> float:
        """Returns the samples of all ranks in a step where this one has ``samples``; ranks that share theirs count once."""
        return samples * (self._world if self._data_ranks is None else self._data_ranks)

    def _computed(self) -> float:
        """Returns the samples that were computed by this process and the other ranks."""
        return self.samples_total - self._restored_samples

    @property
    def frozen_layers(self) -> int | None:
        """Blocks that are frozen now, or were at the end of the job; ``None``: this job freezes none and cannot be asked to."""
        if self._frozen_at_end is not None and self._closed_at == self.steps_total:
            return self._frozen_at_end
        return None if self._freezer is None else int(self._freezer.frozen)

    @property
    def effective_precision(self) -> str | None:
        """The precision of the last forward pass that was looked at."""
        return None if self._probe is None else self._probe.effective

    def live_knobs(self) -> list[str]:
        """Returns what this job changes without a restart."""
        knobs = ["checkpoint_now"] if self.checkpoint_refusal is None else []
        if self._freezer is not None and self._freezer.blocks:
            knobs.append("frozen_prefix_layers")
        if self._autocast is not None and self._autocast.is_used and self.precision_refusal is None:
            knobs.append("precision")
        return knobs

    def __enter__(self) -> Job:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self, **fields: Any) -> None:
        """Reports that the job starts, with further fields of the event.

        Ends earlier jobs of this process for the same workload that were not ended, as in an interrupted cell of a notebook.
        """
        self._end_others()
        self._closed_at, self._is_fresh = None, None
        _begun_jobs.add(self)
        with contextlib.suppress(Exception):
            self.energy.__enter__()
        self._look_up_rank()
        if not self._is_leader:
            return
        # A job that goes on from a checkpoint reports so at once, if it knows it already: it is asked what its run before was.
        counters = {} if self._begins_afresh() else {"steps_total": self._steps, "samples_total": self._samples}
        self._begun = self.client.mark(**{**self._surroundings(), **counters, **fields, "phase": "started"})

    def _end_others(self) -> None:
        """Reports the end of other jobs of this workload and rank, before the start of this one, and does not wait for it."""
        client = self.client
        for other in list(_begun_jobs):
            old = other.client
            if other is self or (old.workload, old.url, other.rank) != (client.workload, client.url, self.rank):
                continue
            try:
                fields = other._end()
                thread = old.begin_close(fields) if old is not client else None
                if thread is not None:
                    client.follow(thread)
                elif old is client and fields:
                    client.mark(**fields)
            except Exception as error:
                client.note_failure(error)
        client.follow_left()

    def autocast(self) -> Any:
        """Returns the context of a forward pass: its precision may be changed by a directive."""
        if self._autocast is None:
            return contextlib.nullcontext()
        return self._autocast.context()

    def step(self, samples: float = 0.0, *, loss: Any = None, **fields: Any) -> None:
        """Counts one optimiser step of this rank's ``samples``; figures are read later, by another thread.

        Fields: ``learning_rate``, ``steps_remaining``, ``tokens_total``, ``epoch``, ``gradient_norm``, ``overflow_skips_total`` (steps),
        ``plasticity`` (0 to 1 for each block), and the others of ``eadt.events.PROGRESS_FIELDS``; counters are of all ranks.
        Steps shorter than 0.2 s are counted, and one in 0.2 s is reported: with its time and loss, and all fields given since the last one.
        """
        # Each line runs in every step: what can be done by the client's thread, or once in a while, is not done here.
        counted = self._counted
        counted.append((samples, fields if self._is_leader else None))
        if len(counted) >= self._most_counted:
            self._end_count(loss)
        elif loss is not None and self._keeps_loss:
            self._loss = _without_graph(loss)

    def _end_count(self, loss: Any) -> None:
        """Reports this step, and learns the directive where all ranks do."""
        self._report_step(loss)
        if getattr(self._freezer, "is_looking", False):
            with contextlib.suppress(Exception):
                self._freezer.end_look()
        if self._checked is not None:
            self._check(*self._checked)
        steps, every = self._steps, self._agree_every
        if steps >= self._look_at:
            self._look_again()
        if steps % every == 0:
            self._agree()
        # No rank counts past a step at which all agree, or measure.
        limit = every - steps % every
        if self._plasticity_every > 0:
            if steps % self._plasticity_every == 0:
                self._measure_plasticity()
            if self._plasticity_every > 0:
                limit = min(limit, self._plasticity_every - steps % self._plasticity_every)
        if self._checked is not None or getattr(self._freezer, "is_looking", False):
            limit = 1
        most = self._usual if self._is_leader else MAX_COUNTED
        self._most_counted = most if most < limit else limit

    def _report_step(self, loss: Any) -> None:
        """Adds the steps that were counted, and the loss of the last one or else the newest, to the client's queue."""
        counted, self._counted = self._counted, []
        if self._is_fresh is None:
            self._is_fresh = self._begins_afresh()
        if self._begun is not None:
            self._report_beginning()
        self._steps = steps = self._steps + len(counted)
        try:
            samples = 0.0
            fields: dict[str, Any] = {}
            for more, more_fields in counted:
                number = _number(more)
                if isinstance(number, str):
                    self._note_samples(number)
                else:
                    samples += number
                if more_fields:
                    fields.update(more_fields)
            self._samples += self.of_all_ranks(samples)
            if not self._is_leader:
                self._keeps_loss, self._loss = False, None
                return
            if loss is None:
                self._keeps_loss = True
                loss, self._loss = self._loss, None
            else:
                self._keeps_loss, self._loss = False, None
                loss = _without_graph(loss)
            moment = time_ns()
            elapsed, self._moment = moment - self._moment, moment
            # A clock that goes back, or far ahead, has the next step reported.
            usual = len(counted) * REPORT_NS // elapsed if elapsed > 0 else 1
            self._usual = MAX_COUNTED if usual > MAX_COUNTED else usual or 1
            client = self.client
            client.queue.append((moment, fields, (steps, self._samples, loss)))
            if len(client.queue) > client.most_queued:
                client.tend()
        except Exception as error:
            self.client.note_failure(error)

    def _report_beginning(self) -> None:
        """Reports what the counters were at the start, without which the steps up to the first report would count for nothing.

        At the start itself a job that goes on from a checkpoint may not have set them yet.
        """
        begun, self._begun = self._begun, None
        try:
            if begun is not None and time.time_ns() - begun < START_NS:
                self.client.add(begun, steps_total=self._steps, samples_total=self._samples)
        except Exception as error:
            self.client.note_failure(error)

    def _note_samples(self, refusal: str) -> None:
        """Notes samples that are not counted: the first of a job with the reason in the log, all of them in the summary."""
        self.steps_without_samples += 1
        if self.steps_without_samples == 1:
            self.client.note_failure(f"samples of step {self._steps} or before are {refusal}, and not counted")

    def _report_counted(self) -> None:
        """Reports the last step, before what comes after it."""
        if self._counted:
            self._report_step(None)
            # The next step counts anew to where all agree.
            self._demand()

    def _demand(self) -> None:
        """Has the next step reported, whatever steps took before. Called by the client's thread, too."""
        self._most_counted = 0

    def _measure_plasticity(self) -> None:
        """Reports how much each block changed since the last time: a forward pass of every rank, at the same step of all.

        Collectives: ranks agree before the pass whether all make it, and after it whether all did.
        """
        meter, measured = self._meter, []

        def measure() -> None:
            measured.append(meter.measure())

        refusal = self.first_failure(lambda: "no blocks were found" if meter is None else meter.refusal(self._world))
        refusal = refusal or self.first_failure(measure)
        try:
            if refusal is not None:
                self._plasticity_every, self._meter = 0, None
                logger.warning("EADT: the plasticity of the blocks of %s cannot be measured: %s", self.client.workload, refusal)
                if meter is not None:
                    meter.close()
            elif measured[0] is not None and self._is_leader:
                frozen = self.frozen_layers or 0
                self.client.report(plasticity=[None] * frozen + measured[0][frozen:])
        except Exception as error:
            self.client.note_failure(error)

    def first_failure(self, act: Callable[[], Any]) -> str | None:
        """Does something on every rank; returns why it failed on the first one where it did. A collective, whatever happens in it."""
        try:
            failure = act()
        except Exception as error:
            failure = words(error)
        return first_refusal(gather(failure, self._device))

    def evaluated(self, validation_loss: Any, **fields: Any) -> None:
        """Reports the loss on data that the job does not train on, in the unit of the training loss, with further fields of the event.

        ``steps_total``: the steps of the weights that were evaluated, if they are not those of now. After the end nothing is reported.
        """
        self._report_counted()
        if self._leads() and self._closed_at != self.steps_total:
            self.client.mark(**{"steps_total": self.steps_total, **fields, "validation_loss": validation_loss})

    def checkpoint_due(self) -> bool:
        """Returns whether the job should write a checkpoint now: a directive waits for it. The same on every rank."""
        return self._pending is not None and self.steps_total >= self._due_at

    def checkpointed(self) -> None:
        """Reports that a checkpoint is complete, and takes up what was asked. A collective: call it on every rank."""
        self.take_up_due()
        self.mark_checkpoint()

    def take_up_due(self) -> None:
        """Takes up what waits for a checkpoint, without reporting one. A collective: call it on every rank."""
        self._report_counted()
        self._agree()
        directive = self._pending
        if directive is not None and self.checkpoint_due() and self._closed_at != self.steps_total:
            self._pending = None
            self._take_up(directive)

    def mark_checkpoint(self) -> None:
        """Reports that a checkpoint is complete, at which nothing is taken up. No collective."""
        self.checkpoints += 1
        self._report_counted()
        if self._leads() and self._closed_at != self.steps_total:
            self.client.mark(checkpoint_time=event_time(), steps_total=self.steps_total, **self._state())

    def checkpoint_failed(self, why: str) -> None:
        """Refuses what waits for a checkpoint that was not written. The same on every rank."""
        directive, self._pending = self._pending, None
        if directive is not None:
            self._checkpointed_for = directive.decision_id
            self._acknowledge(directive, f"no checkpoint was written: {why}")

    def close(self) -> None:
        """Reports the end; returns within two seconds. A job that was not closed does so at the end of the interpreter."""
        try:
            if self._closed_at == self.steps_total:
                return
            fields = self._end()
            if fields:
                self.client.close(**fields)
        except Exception as error:
            self.client.note_failure(error)

    def __del__(self) -> None:
        """Has the blocks train again, and the client's thread report the end, of a job that nothing refers to any more.

        It may run at any place of any thread: it waits for nothing, and takes no lock that is held here. A collector may find the job, or
        another thread leave it, in the middle of a step: then the blocks train again at the next pass, or after the optimizer's step.
        """
        with contextlib.suppress(Exception):
            at_once = not self._found and self._thread == threading.get_ident()
            if self._closed_at == self.steps_total:
                return
            # Reading its scale would wait for the device.
            self.scaler = None
            # Another job may have its client now.
            if self.client.is_open() and self.client.state is self._client_state:
                self.client.leave(self._end(at_once))
            else:
                self.release(at_once)

    def _end(self, at_once: bool = True) -> dict[str, Any]:
        """Ends the measurement, and returns the fields of the last event; none for a rank that reports nothing."""
        _begun_jobs.discard(self)
        try:
            with contextlib.suppress(Exception):
                self.energy.__exit__(None, None, None)
            self._report_counted()
            self._closed_at = self.steps_total
            if not self._leads():
                return {}
            fields: dict[str, Any] = {"phase": "finished", "steps_total": self.steps_total, **self._state()}
            if self.samples_total > 0:
                fields["samples_total"] = self.samples_total
            return fields
        finally:
            self.release(at_once)

    def release(self, at_once: bool = True) -> None:
        """Has the model train as it did before the job: all blocks train again, and no hook is left but those in compiled code.

        In the middle of a step, not ``at_once``: hooks go by themselves, when they have looked.
        """
        try:
            frozen = None if self._freezer is None else int(self._freezer.frozen)
            # A freeze that is not checked yet was not acknowledged.
            self._frozen_at_end = frozen if self._checked is None else self._checked[1]
            self._checked = self._pending = None
            for part in (self._freezer, self._probe, self._meter) if at_once else (self._freezer,):
                close = (None if at_once else getattr(part, "leave", None)) or getattr(part, "close", None)
                if close is not None:
                    close()
        except Exception as error:
            self.client.note_failure(error)

    def joules_per_sample(self) -> float | None:
        """Joules of this machine's GPUs per sample, until the end or at most a second ago; ``None``: unknown."""
        joules, samples = self.energy.joules, self.energy.amount
        if joules is None or samples <= 0 or self._energy_refusal() is not None:
            return None
        return joules / samples

    def _energy_refusal(self) -> str | None:
        """Returns why the energy of all samples is unknown; ``None``: it is known."""
        if self.energy.joules is None:
            return self.energy.reason or "it was not measured"
        if self.energy.amount <= 0:
            return "there are no samples yet" if self.energy.is_running else "there are no samples"
        ranks, local = self._most_ranks, local_world()
        if ranks == 1:
            return None
        if local is not None and local < ranks:
            return f"{ranks - local} of {ranks} ranks are on other machines"
        if self.energy.devices < ranks:
            return f"rank 0 can use {self.energy.devices} GPUs, and there are {ranks} ranks"
        return None

    def figures(self) -> dict[str, float]:
        """Returns what is known, for loggers: samples, steps, blocks, joules, J/sample. An unknown figure is absent, never 0."""
        known: dict[str, float | None] = {
            "eadt/samples_total": self.samples_total or None,
            "eadt/steps_total": float(self.steps_total),
            "eadt/frozen_layers": None if self.frozen_layers is None else float(self.frozen_layers),
            "eadt/joules": self.energy.joules,
            "eadt/joules_per_sample": self.joules_per_sample(),
        }
        return {name: value for name, value in known.items() if value is not None}

    def _look_up_rank(self) -> None:
        """Looks whether there are other ranks, and whether this one reports."""
        ranks = rank_and_world()
        rank, self._world = (self.rank, 1) if ranks is None else ranks
        self._most_ranks = max(self._most_ranks, self._world)
        self._is_leader = rank == 0

    def _leads(self) -> bool:
        self._look_up_rank()
        return self._is_leader

    def _surroundings(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"world_size": self._world}
        if is_distributed():
            import torch.distributed as distributed

            fields["backend"] = str(distributed.get_backend())
        share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")
        if share.isdigit() and 1 <= int(share) <= 100:
            fields["mps_thread_percentage"] = int(share)
        return fields

    def _state(self) -> dict[str, Any]:
        """Returns what the job does now, as acknowledgement of what it was asked."""
        state: dict[str, Any] = {"live_knobs": self.live_knobs()}
        if self.effective_precision is not None:
            state["precision"] = self.effective_precision
        if self._freezer is not None and self._freezer.blocks:
            state["layers"] = len(self._freezer.blocks)
            # A freeze whose gradients are still checked may be taken back: it is no answer yet.
            if self._checked is None:
                state["frozen_prefix_layers"] = self.frozen_layers
        scaler = self.scaler
        with contextlib.suppress(Exception):
            if scaler is not None and scaler.is_enabled():
                state["loss_scale"] = scaler.get_scale()
        return state

    def _agree(self) -> None:
        """Every rank learns rank 0's directive, and whether all can: collectives, at the same step of all."""
        self._look_up_rank()
        gathered = gather((self._asked() if self._is_leader else None, self._changed_since()), self._device)
        answer = gathered[0][0]
        self._take_back(first_refusal([why for _, why in gathered]))
        # A rank of its own without torch.distributed receives nothing.
        if answer is None or answer[0] == self._revision:
            return
        self._revision, asked = answer
        # Nothing is asked any more: everything is as at the start.
        directive = asked if asked is not None else Directive(decision_id="")
        verdicts = gather((self._own_refusal(directive), self._is_in_force(directive)), self._device)
        refusal = first_refusal([own for own, _ in verdicts])
        if refusal is not None or (all(is_done for _, is_done in verdicts) and not self._needs_checkpoint(directive)):
            # No checkpoint is written for what changes nothing.
            self._pending = None
            self._acknowledge(directive, refusal)
            return
        self._pending = directive
        self._due_at = self.steps_total
        if self._looks_before(directive):
            self._look_again(whole=True)
            self._due_at += 1

    def _asked(self) -> tuple[int, Directive | None]:
        """Returns what this job is asked: not what an earlier one was, if it begins its training. One that goes on keeps it."""
        revision, directive = self.client.directive()
        if directive is None or revision == self._revision or directive.decision_id not in self.client.earlier_decisions:
            return revision, directive
        if not (self._begins_afresh() if self._is_fresh is None else self._is_fresh):
            return revision, directive
        logger.info("EADT: %s: directive %s was an earlier job's, and is not taken up", self.client.workload, directive.decision_id)
        return revision, None

    def _begins_afresh(self) -> bool:
        """Returns whether no steps or samples of a checkpoint were given, before the first step."""
        return self._steps == 0 and self._samples == 0

    def _is_in_force(self, directive: Directive) -> bool:
        """Returns whether this rank does already what is asked; not if that is unknown."""
        try:
            if (directive.frozen_prefix_layers or 0) != (self.frozen_layers or 0):
                return False
            autocast, precision = self._autocast, directive.precision
            if autocast is None or not autocast.is_used:
                return precision is None or precision == self.effective_precision
            return bool(autocast.is_set(precision, self._probe))
        except Exception as error:
            self.client.note_failure(error)
            return False

    def _needs_checkpoint(self, directive: Directive) -> bool:
        """Returns whether a checkpoint is asked for that was not written yet, whatever else is."""
        return directive.checkpoint_now and directive.decision_id != self._checkpointed_for

    def _looks_before(self, directive: Directive) -> bool:
        """Returns whether hooks look at one more step before this is taken up: blocks may be unfit to freeze since the last look."""
        layers = directive.frozen_prefix_layers or 0
        return hasattr(self._freezer, "look_again") and layers > 0 and layers != self._freezer.frozen

    def _take_up(self, directive: Directive) -> None:
        # A step was looked at since all agreed.
        verdicts = gather((self._own_refusal(directive), self._front("front_before")), self._device)
        refusal = first_refusal([own for own, _ in verdicts])
        if refusal is None and directive.frozen_prefix_layers:
            refusal = _difference([front for _, front in verdicts])
        self._checkpointed_for = directive.decision_id
        if refusal is None:
            before = self.frozen_layers or 0
            failure = self._apply(directive)
            if failure is None:
                self._begin_check(directive, before)
            else:
                refusal = f"it failed, and all blocks train again: {failure}"
        if refusal is not None or self._checked is None:
            self._acknowledge(directive, refusal)

    def _begin_check(self, directive: Directive, before: int) -> None:
        """Has the gradients of the next steps checked, on all ranks, if more blocks are frozen than before: then it is acknowledged."""
        begin = getattr(self._freezer, "begin_check", None)
        self._checked, self._is_moved = None, False
        if begin is None or (self.frozen_layers or 0) in (0, before):
            return
        begin()
        self._checked, self._checks_left = (directive, before), CHECKED_STEPS
        self._demand()

    def _check(self, directive: Directive, before: int) -> None:
        """Takes a freeze back, on all ranks, after which blocks got no gradient that should train. A collective."""
        self._checks_left -= 1
        try:
            outcome = self._freezer.check(self._checks_left <= 0)
        except Exception as error:
            outcome = (False, f"the job cannot check what it trains: {error}")
        outcomes = gather((*outcome, self._front("front_after")), self._device)
        refusal = first_refusal([why for _, why, _ in outcomes]) or _difference([front for _, _, front in outcomes])
        try:
            if refusal is not None:
                self._checked = None
                self._freeze(before)
                self._acknowledge(directive, f"it was taken back: {refusal}")
            elif self._checks_left <= 0 or all(is_settled for is_settled, _, _ in outcomes):
                self._checked = None
                self._freezer.end_check()
                self._acknowledge(directive, None)
                front = self._freezer.stopped_in_front()
                if front is not None and self._is_leader:
                    logger.info(
                        "EADT: directive %s: weights in front of the frozen blocks are frozen, too: %s", directive.decision_id, front
                    )
        except Exception as error:
            self.client.note_failure(error)

    def _acknowledge(self, directive: Directive, refusal: str | None) -> None:
        """Has reports show what became of a directive; of a withdrawal they show nothing."""
        decision = directive.decision_id
        if decision and self.answers[-1:] != [(decision, refusal)]:
            self.answers.append((decision, refusal))
            if refusal is not None:
                logger.warning("EADT: directive %s is refused: %s", decision, refusal)
        reason = None if refusal is None else clip_text(refusal)
        self.client.always(decision_id=decision or None, directive_refused=reason if decision else None)

    def _own_refusal(self, directive: Directive) -> str | None:
        """Returns why this rank cannot. What goes wrong is an answer, not an exception into training; no rank leaves the others waiting."""
        try:
            return self._refusal(directive)
        except Exception as error:
            return f"the job cannot check whether it can: {error}"

    def _refusal(self, directive: Directive) -> str | None:
        layers, precision = directive.frozen_prefix_layers, directive.precision
        if self.checkpoint_refusal is not None and self._needs_checkpoint(directive) and self._is_in_force(directive):
            # It asks for a checkpoint alone: another change may be taken up without one.
            return self.checkpoint_refusal
        is_changed = precision is not None and precision != self.effective_precision
        ranks = lonely_ranks() if is_changed or (layers is not None and layers not in (0, self.frozen_layers)) else None
        if ranks is not None:
            return (
                f"there are other ranks ({ranks}) that cannot agree on it: they train together by torch.distributed, or it is not changed"
            )
        if layers is not None and layers > 0:
            if self._freezer is None:
                return "this job was not given layers: eadt.job(model, optimizer, layers='auto')"
            refusal = self._freezer.refusal(layers)
            if refusal is not None:
                return str(refusal)
            empties = getattr(self._freezer, "empties_an_optimizer", None)
            if self._scales() and empties is not None and empties(layers):
                return "an optimizer would have nothing to train, in whose step the gradient scaler raises: give it other weights, too"
        if precision is not None and is_changed:
            if self.precision_refusal is not None:
                return self.precision_refusal
            if self._autocast is None:
                return "this job does not change its precision"
            why = self._autocast.refusal(precision)
            return None if why is None else str(why)
        return None

    def _scales(self) -> bool:
        """Returns whether there is a gradient scaler that does something: loops without FP16 may have one with ``enabled=False``."""
        is_enabled = getattr(self.scaler, "is_enabled", None)
        return self.scaler is not None and (is_enabled is None or bool(is_enabled()))

    def _freeze(self, layers: int) -> str | None:
        """Freezes exactly these blocks on every rank, or none on any, if one fails; returns why. A collective."""

        def freeze() -> None:
            if self._freezer is not None and self._freezer.blocks:
                self._freezer.freeze(layers)

        failure = self.first_failure(freeze)
        if failure is not None and self._freezer is not None:
            with contextlib.suppress(Exception):
                self._freezer.freeze(0)
        return failure

    def _apply(self, directive: Directive) -> str | None:
        """Does what is asked on every rank, or leaves no change on any; returns why. A collective."""
        failure = self._freeze(directive.frozen_prefix_layers or 0)
        if failure is not None:
            return failure
        if self._autocast is not None and self._autocast.is_used:
            self._autocast.asked = directive.precision or self._autocast.initial
            self._probe.look_again()
            # In compiled code no hook runs: what was computed in is looked up after the next step.
            self._look_at = 0
            self._demand()
        return None

    def _look_again(self, whole: bool = False) -> None:
        """Has hooks look at the next forward pass; with ``whole`` also at what a freeze would stop."""
        self._look_at = self._steps + LOOK_EVERY
        self._look_at_frozen()
        if self._probe is not None:
            self._probe.settle()
            self._probe.look_again()
        look_again = getattr(self._freezer, "look_again", None)
        if look_again is not None:
            look_again(whole)
            if whole:
                # The look ends with the step.
                self._demand()

    def _look_at_frozen(self) -> None:
        """Looks whether frozen weights moved after the check, as by an optimizer that averages them now and then."""
        moved = getattr(self._freezer, "moved", None)
        if moved is not None and self.frozen_layers and self._checked is None:
            try:
                self._is_moved = self._is_moved or moved()
            except Exception as error:
                self.client.note_failure(error)

    def _changed_since(self) -> str | None:
        """Returns why a freeze is not what it was at its check: weights moved, or gradients are wanted that it would cut off."""
        opened = getattr(self._freezer, "opened", None)
        if opened is None or not self.frozen_layers or self._checked is not None:
            return None
        try:
            return "frozen weights moved later all the same" if self._is_moved else opened()
        except Exception as error:
            return f"the job cannot check what it trains: {error}"

    def _take_back(self, why: str | None) -> None:
        """Has all blocks train again, on all ranks, and refuses what was done last, after a freeze that proved to be wrong on one."""
        if why is None:
            return
        try:
            self._is_moved = False
            self._freezer.freeze(0)
            if self._pending is not None:
                # What waits for a checkpoint was looked at with frozen blocks.
                self._look_again(whole=True)
                self._due_at = self.steps_total + 1
            # Those after it may have been refused, and changed nothing.
            became = dict(self.answers)
            done = [decision for decision, _ in self.answers if became[decision] is None]
            self._acknowledge(Directive(decision_id=done[-1] if done else ""), f"it was taken back: {why}")
        except Exception as error:
            self.client.note_failure(error)

    def _front(self, kind: str) -> Any:
        """Returns what the freezer found in front of the blocks; what goes wrong is an answer, and other ranks do not wait."""
        try:
            return getattr(self._freezer, kind, lambda: None)()
        except Exception as error:
            return str(error)

    def summary(self) -> str:
        """Returns what the job did, in words: unknown figures are called unknown."""
        joules = self.joules_per_sample()
        so_far = " so far" if self.energy.is_running else ""
        energy = f"{joules:.4g} J/sample{so_far}" if joules is not None else f"J/sample unknown ({self._energy_refusal()})"
        lines = [f"{self.client.workload}: {self.steps_total} steps, {self.samples_total:g} samples, {energy}"]
        lines += [f"  {decision}: {refusal or 'done'}" for decision, refusal in self.answers]
        if self.steps_without_samples:
            lines.append(f"  samples of {self.steps_without_samples} steps are no number, or negative, and not counted")
        if self.client.last_error:
            lines.append(f"  reports: {self.client.sent} sent, last error: {self.client.last_error}")
        if self.client.directives_error:
            lines.append(f"  a directive cannot be read from {self.client.directives_error}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self.summary())}</pre>"


# A child that was forked ends nothing of its parent's.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begun_jobs.clear)


def _while_alive(method: Callable[[], T], otherwise: T) -> Callable[[], T]:
    """Returns a function that calls a method as long as something else refers to its object, and else returns ``otherwise``."""
    reference = weakref.WeakMethod(method)

    def call() -> T:
        alive = reference()
        return otherwise if alive is None else alive()

    return call


def quiet(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a framework's callback of a method: what goes wrong in it is logged, once for each reason, and does not reach training."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except Exception as error:
            text = f"{method.__name__}: {words(error)}"
            if self.job is not None:
                self.job.client.note_failure(text)
            else:
                logger.warning("EADT: progress is not reported: %s", text)
            return None

    return call


def check_layers(layers: Any) -> None:
    """Refuses ``layers`` that name no blocks: raises ``TypeError``, where the job or the callback is made."""
    is_auto = isinstance(layers, str) and layers == "auto"
    if layers is not None and not is_auto and (isinstance(layers, str) or not hasattr(layers, "__iter__")):
        raise TypeError(f"layers is {layers!r}: give 'auto', a list of the model's blocks from the input side, or None")


def check_data_ranks(ranks: Any) -> None:
    """Refuses ``data_ranks`` that are no number of ranks: raises ``TypeError``, where the job is made."""
    if ranks is not None and (not isinstance(ranks, int) or ranks < 1):
        raise TypeError(f"data_ranks is {ranks!r}: give the number of ranks that have samples of their own, from 1, or None")


def autocast_precision(precision: str | None) -> str | None:
    """Returns the name in events of a precision that ``job.autocast()`` starts with; raises ``ValueError`` if it has no such one."""
    name = None if precision is None else event_precision(precision)
    if name not in (None, "fp32", "bf16", "fp16"):
        raise ValueError(f"precision is {precision!r}: job.autocast() computes in fp32, bf16 or fp16")
    return name


def _samples_of(counted: Counted) -> float:
    numbers = [_number(samples) for samples, _ in counted]
    return sum([number for number in numbers if not isinstance(number, str)])


def _number(given: Any) -> float | str:
    """Returns a number of samples, also of a tensor of one; if it is none, or cannot be read, what it is instead."""
    number: float | None
    try:
        number = None if isinstance(given, (str, bytes, bytearray)) else float(given)
    except OverflowError:
        return "too large"
    except Exception:
        number = None
    if number is None:
        return f"no number but {type(given).__name__}"
    if not math.isfinite(number):
        return "not finite"
    return number if number >= 0 else "negative"


def _difference(fronts: list[Any]) -> str | None:
    """Returns why ranks that found other weights in front of the blocks than rank 0 did are not frozen; ``None``: all found the same."""
    rank = next((rank for rank, front in enumerate(fronts) if front != fronts[0]), None)
    if rank is None:
        return None
    return f"other weights lead to the blocks on rank {rank} than on rank 0, and ranks would train them in different ways"


def words(error: BaseException) -> str:
    """Returns what an error reads, or its kind if it reads nothing."""
    return str(error) or type(error).__name__


def _without_graph(loss: Any) -> Any:
    """Returns a tensor without its graph, which would be kept as long, and anything else as it is."""
    if type(loss) is float:
        return loss
    try:
        return loss.detach() if hasattr(loss, "detach") else loss
    except Exception:
        return None
