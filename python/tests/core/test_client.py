"""The client against servers that answer, and against those that do harm."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import weakref
from datetime import datetime, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import eadt
from eadt import Client, event_precision, measure
from eadt.client import KEPT_EVENTS, QUEUED_REPORTS, default_rank, default_workload
from eadt.directives import DIRECTIVE_KEYS, Directive
from eadt.events import CHOICES, NUMBERS, PROGRESS_FIELDS, TEXTS, TIMES, WHOLE_NUMBERS, plain_event
from eadt.training import MAX_COUNTED, _number
from tests.servers import Harmful, Recorder, absent_url, wait_for

logging.getLogger("eadt").setLevel(logging.CRITICAL)
REPOSITORY = Path(__file__).resolve().parents[3]


class Unreadable:
    def __float__(self) -> float:
        raise RuntimeError("on another device")


class TestReports(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Recorder()
        self.addCleanup(self.server.close)
        # What is sent at the end arrives, on a busy machine, too.
        patient = mock.patch("eadt.client.CLOSE_SECONDS", 120.0)
        patient.start()
        self.addCleanup(patient.stop)

    def client(self, **options: Any) -> Client:
        options.setdefault("interval_seconds", 0.2)
        return Client(self.server.url, "n/a", **options)

    def test_the_newest_figures_arrive_and_marks_all_do(self) -> None:
        client = self.client()
        client.mark(phase="started")
        for step in range(1, 5001):
            client.report(steps_total=step, loss=1.0 / step)
        client.close(phase="finished")
        events = self.server.events
        self.assertEqual([events[0]["phase"], events[-1]["phase"]], ["started", "finished"])
        steps = [event["steps_total"] for event in events if "steps_total" in event]
        self.assertEqual((steps[-1], steps), (5000, sorted(steps)))
        self.assertLess(len(events), 100, "reports are coalesced")
        self.assertEqual([event["time"] for event in events], sorted(event["time"] for event in events))

    def test_figures_reported_one_by_one_arrive_together(self) -> None:
        client = self.client(interval_seconds=600.0)
        for step in range(1, 301):
            client.report(steps_total=step)
            if step == 100:
                client.report(gradient_norm=0.25)
        client.close()
        self.assertEqual([(e["steps_total"], e["gradient_norm"]) for e in self.server.events], [(300, 0.25)])

    def test_a_job_reports_its_steps_and_what_it_does_when_it_is_sent(self) -> None:
        job = eadt.job(client=self.client(interval_seconds=600.0), agree_every=7)
        with job, mock.patch("eadt.training.REPORT_NS", 0):
            # The steps are not sent along with the start.
            wait_for(lambda: self.server.events)
            for _ in range(100):
                job.step(samples=8, loss=0.5, learning_rate=0.1)
            job.step(samples=8)
            job.client._wake.set()
            wait_for(lambda: any("loss" in event for event in self.server.events))
        event = next(event for event in self.server.events if "loss" in event)
        self.assertEqual((event["steps_total"], event["samples_total"], event["loss"], event["learning_rate"]), (101, 808.0, 0.5, 0.1))
        self.assertEqual(event["live_knobs"], ["checkpoint_now"])
        last = self.server.events[-1]
        self.assertEqual((last["phase"], last["steps_total"], last["samples_total"]), ("finished", 101, 808.0))

    def test_short_steps_are_counted_and_all_that_they_report_arrives(self) -> None:
        job = eadt.job(client=self.client(interval_seconds=600.0))
        with job:
            wait_for(lambda: self.server.events)
            with mock.patch("eadt.training.time_ns", iter(range(0, 10**12, 10**6)).__next__):
                for step in range(1, 41):
                    fields = {"gradient_norm": 0.25} if step == 30 else {}
                    # 1 ms pass between two reports, as the clock has it: as many steps as may be.
                    job.step(samples=8, loss=float(step), learning_rate=1.0 / step, **fields)
            self.assertLessEqual(len(job.client.queue), 5)
            self.assertEqual((job.steps_total, job.samples_total), (40, 320.0))
            job.step(samples=8, learning_rate=0.5)
            job.evaluated(0.75)
        events = [event for event in self.server.events if "learning_rate" in event]
        self.assertEqual(
            [(e["steps_total"], e["samples_total"], e["learning_rate"], e["gradient_norm"]) for e in events], [(41, 328.0, 0.5, 0.25)]
        )
        self.assertEqual(events[0]["loss"], 40.0, "the loss of the last step that was reported with one")
        names = ("validation_loss", "learning_rate", "phase", "steps_total")
        order = [next(event[name] for name in names if name in event) for event in self.server.events]
        self.assertEqual(order, ["started", 0, 0.5, 0.75, "finished"])

    def test_counters_are_known_from_the_start_on_and_from_a_checkpoint_on(self) -> None:
        for steps, samples in ((0, 0.0), (100, 800.0)):
            self.server.events.clear()
            with eadt.job(client=self.client(interval_seconds=600.0)) as job:
                if steps:
                    job.steps_total, job.samples_total = steps, samples
                for _ in range(3):
                    job.step(samples=8)
            counted = [(event["steps_total"], event["samples_total"]) for event in self.server.events if "steps_total" in event]
            self.assertEqual((counted[0], counted[-1]), ((steps, samples), (steps + 3, samples + 24)))
            started, first = self.server.events[:2]
            self.assertEqual((started["phase"], started["time"]), ("started", first["time"]))
        self.server.events.clear()
        job = eadt.job(client=self.client(interval_seconds=600.0))
        job.steps_total, job.samples_total = 100, 800.0
        with job:
            job.step(samples=8)
        reports = [(event.get("phase"), event["steps_total"], event["samples_total"]) for event in self.server.events]
        self.assertEqual(reports, [("started", 100, 800.0), (None, 100, 800.0), (None, 101, 808.0), ("finished", 101, 808.0)])
        self.server.events.clear()
        with mock.patch("eadt.training.START_NS", 0), eadt.job(client=self.client(interval_seconds=600.0)) as job:
            job.step(samples=8)
        self.assertEqual([event["steps_total"] for event in self.server.events if "steps_total" in event], [1, 1])

    def test_a_loss_that_few_steps_have_is_reported(self) -> None:
        job = eadt.job(client=self.client(interval_seconds=600.0), agree_every=1000)
        with job, mock.patch("eadt.training.time_ns", iter(range(0, 10**12, 10**6)).__next__):
            for step in range(1, 200):
                job.step(loss=float(step) if step in (10, 30, 50) else None)
        losses = [event["loss"] for event in self.server.events if "loss" in event]
        self.assertEqual(losses, [50.0])

    def test_a_long_step_after_short_ones_is_reported_when_it_ends(self) -> None:
        job = eadt.job(client=self.client(interval_seconds=0.05))
        with job:
            for _ in range(2000):
                job.step(samples=1)
            # The thread, which has nothing to send, asks for the next one.
            wait_for(lambda: not job.client.queue and job._most_counted == 0)
            job.step(samples=1)
            wait_for(lambda: any(event.get("steps_total") == 2001 for event in self.server.events))

    def test_every_rank_agrees_at_the_same_steps_whatever_it_reports_in_between(self) -> None:
        def agreed(rank: int, disturbed: bool) -> list[int]:
            steps: list[int] = []
            with mock.patch.dict(os.environ, {"EADT_RANK": str(rank)}):
                job = eadt.job(client=self.client(interval_seconds=600.0), agree_every=20)
            job._agree = lambda: steps.append(job.steps_total)  # type: ignore[method-assign]
            for step in range(1, 301):
                job.step(samples=1, loss=0.5)
                if disturbed and step % 7 == 0:
                    job.evaluated(1.0)
                if disturbed and step % 13 == 0:
                    job._demand()
            return steps

        expected = list(range(20, 301, 20))
        for rank in (0, 1):
            for disturbed in (False, True):
                with self.subTest(rank=rank, disturbed=disturbed):
                    self.assertEqual(agreed(rank, disturbed), expected)

    def test_a_rank_of_its_own_without_torch_reports_nothing_and_raises_nothing(self) -> None:
        with mock.patch.dict(os.environ, {"EADT_RANK": "3"}), eadt.job(client=self.client()) as job:
            for _ in range(50):
                job.step(samples=8, loss=0.5)
            job.checkpointed()
        self.assertEqual((job.steps_total, job.samples_total, self.server.events), (50, 400.0, []))

    def test_a_report_that_arrives_hides_no_failure_of_later_steps(self) -> None:
        client = self.client(interval_seconds=600.0)
        take = client._take

        def fail_meanwhile() -> list[dict[str, Any]]:
            batch = take()
            client.note_failure("samples of step 3 are no number")
            return batch

        with mock.patch.object(client, "_take", fail_meanwhile):
            client.mark(steps_total=1)
            client.close()
        self.assertEqual(client.sent, 1)
        self.assertEqual(client.last_error, "samples of step 3 are no number")

    def test_samples_that_are_no_numbers_do_not_reach_training(self) -> None:
        for rank in (0, 3):
            with self.subTest(rank=rank), mock.patch.dict(os.environ, {"EADT_RANK": str(rank)}):
                job = eadt.job(client=self.client(interval_seconds=600.0), agree_every=20)
                with job, mock.patch("eadt.training.time_ns", iter(range(0, 10**12, 10**6)).__next__):
                    for step in range(1, 91):
                        # Some are reported with the steps before them, and some are looked at while they are only counted.
                        bad = {3: "x", 25: None, 26: "8", 50: Unreadable(), 77: float("nan"), 78: [8], 84: -8, 90: 10**400}
                        job.step(samples=bad.get(step, 8), loss=Unreadable())
                        counted = 8.0 * (step - sum(1 for at in bad if at <= step))
                        self.assertEqual(job.samples_total, counted)
                        self.assertEqual(job.figures().get("eadt/samples_total"), counted)
                        self.assertEqual(job.figures()["eadt/steps_total"], step)
                        self.assertIn(f"{step} steps, {counted:g} samples", job.summary())
                    self.assertIn("no number but str", job.client.last_error or "")
                self.assertEqual((job.steps_total, job.samples_total, job.steps_without_samples), (90, 656.0, 8))
                job.samples_total = "x"  # type: ignore[assignment]
                self.assertEqual(job.samples_total, 656.0)
                self.assertIn("samples of 9 steps are no number, or negative, and", job.summary())
        last = self.server.events[-1]
        self.assertEqual((last["phase"], last["steps_total"], last["samples_total"]), ("finished", 90, 656.0))

    def test_samples_that_are_not_counted_give_the_reason(self) -> None:
        class Scalar:
            def __init__(self, number: float) -> None:
                self.number = number

            def __float__(self) -> float:
                return self.number

        for given, expected in [
            ("8", "no number but str"),
            (None, "no number but NoneType"),
            (Unreadable(), "no number but Unreadable"),
            (float("nan"), "not finite"),
            (10**400, "too large"),
            (-8, "negative"),
            (Scalar(-8.0), "negative"),
            (Scalar(8.0), 8.0),
            (True, 1.0),
        ]:
            self.assertEqual(_number(given), expected)
        job = eadt.job(client=self.client(interval_seconds=600.0))
        with job:
            job.samples_total = Scalar(-8.0)  # type: ignore[assignment]
            self.assertIn("samples of step 0 or before are negative, and not counted", job.client.last_error or "")

    def test_a_rank_that_reports_nothing_keeps_nothing(self) -> None:
        with mock.patch.dict(os.environ, {"EADT_RANK": "3"}):
            job = eadt.job(client=self.client(), agree_every=1_000_000)
        kept: list[weakref.ref[Unreadable]] = []
        most = 0
        with job:
            for _ in range(1000):
                loss, field = Unreadable(), Unreadable()
                kept += [weakref.ref(loss), weakref.ref(field)]
                job.step(samples=1, loss=loss, gradient_norm=field)
                most = max(most, len(job._counted))
            del loss, field
            self.assertEqual([reference for reference in kept if reference() is not None], [])
            self.assertEqual((job.steps_total, job.samples_total), (1000, 1000.0))
        self.assertLess(most, MAX_COUNTED)

    def test_a_freeze_waits_for_one_look_and_nothing_else_does(self) -> None:
        class Freezer:
            def __init__(self) -> None:
                self.blocks, self.frozen, self.looks = [1, 2, 3], 0, 0

            def look_again(self, whole: bool = False) -> None:
                self.looks += 1

            def refusal(self, layers: int) -> str | None:
                return None

            def freeze(self, layers: int) -> None:
                self.frozen = layers

        freezer = Freezer()
        job = eadt.job(client=self.client(interval_seconds=600.0), freezer=freezer, agree_every=1)
        with job:
            job.step()
            for layers, waits in ((2, True), (None, False), (1, True), (0, False)):
                job.client._answer = (job.client._answer[0] + 1, Directive("d", frozen_prefix_layers=layers))
                before, looks = freezer.frozen, freezer.looks
                job.step()
                self.assertEqual((job.checkpoint_due(), freezer.looks - looks), (not waits, int(waits)))
                if waits:
                    job.checkpointed()
                    self.assertEqual(freezer.frozen, before, "not by a checkpoint in between, either")
                    job.step()
                    self.assertTrue(job.checkpoint_due())
                job.checkpointed()
                self.assertEqual((freezer.frozen, job.checkpoint_due()), (layers or 0, False))

    def test_there_is_at_most_one_request_in_an_interval(self) -> None:
        client = self.client(interval_seconds=0.3)
        until = time.monotonic() + 1.6
        while time.monotonic() < until:
            client.report(steps_total=1)
            time.sleep(0.001)
        self.assertLessEqual(len(self.server.requests), 6)
        client.close()

    def test_what_is_no_number_or_cannot_be_read_costs_that_field_alone(self) -> None:
        client = self.client()
        client.report(
            loss=float("nan"), gradient_norm=float("inf"), learning_rate=Unreadable(), steps_total=3, plasticity=[float("nan"), 0.5]
        )
        wait_for(lambda: self.server.events)
        client.close()
        event = self.server.events[0]
        self.assertEqual((event["steps_total"], event["plasticity"]), (3, [None, 0.5]))
        self.assertFalse({"loss", "gradient_norm", "learning_rate"} & event.keys())

    def test_a_directive_comes_with_the_answer_and_is_withdrawn_by_another(self) -> None:
        calls: list[Any] = []
        client = self.client(on_directive=lambda directive, revision: calls.append((revision, directive)))
        body = {"decision_id": "d-1", "frozen_prefix_layers": 2, "workload": "n/a", "time": "x"}
        self.server.answer = {"directives": [{"workload": "n/a", "revision": 4, "directive": body}]}
        client.report(steps_total=1)
        wait_for(lambda: client.directive()[0] == 4)
        directive = client.directive()[1]
        self.assertEqual((directive.decision_id, directive.frozen_prefix_layers), ("d-1", 2))
        self.server.answer = {"directives": [{"workload": "n/b", "revision": 9, "directive": body}]}
        client.report(steps_total=2)
        wait_for(lambda: len(self.server.requests) >= 2)
        self.server.answer = {"directives": [{"workload": "n/a", "revision": 6, "directive": None}]}
        client.report(steps_total=3)
        wait_for(lambda: client.directive()[0] == 6)
        self.assertEqual([(revision, body is not None) for revision, body in calls], [(4, True), (6, False)])
        client.close()

    def test_a_directive_may_be_in_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "directive.json")
            client = self.client(directives_file=path)
            client.report(steps_total=1)
            path.write_text(json.dumps({"decision_id": "d-1", "precision": "bf16"}))
            wait_for(lambda: client.directive()[1] is not None)
            self.assertEqual(client.directive()[1].precision, "bf16")
            client.close()

    def test_a_file_of_directives_is_the_only_source_and_a_broken_one_stops_no_report(self) -> None:
        body = {"decision_id": "d-9", "frozen_prefix_layers": 1}
        self.server.answer = {"directives": [{"workload": "n/a", "revision": 9, "directive": body}]}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "directive.json")
            taken: list[str] = []
            client = self.client(directives_file=path, on_directive=lambda body, _: taken.append(body.decision_id))
            path.write_text(json.dumps({"revision": 3, "directive": {"decision_id": "d-3", "precision": "bf16-mixed"}}))
            client.report(steps_total=1)
            wait_for(lambda: client.directive()[1] is not None)
            for number, text in enumerate(('{"decision_id"', "[]", '{"decision_id": "d-4", "frozen_prefix_layers": -1}'), start=2):
                path.write_text(text)
                wait_for(lambda: client.directives_error)
                client.report(steps_total=number)
                wait_for(lambda number=number: any(event["steps_total"] == number for event in self.server.events))
            self.assertEqual((client.directive()[1].precision, taken, client.failed), ("bf16", ["d-3"], 0))
            self.assertIn("frozen_prefix_layers is no number of blocks: -1", client.directives_error or "")
            client.close()

    def test_a_changed_file_is_another_directive_also_with_the_same_time_or_revision(self) -> None:
        for fields in ({}, {"revision": 7}):
            with self.subTest(fields), tempfile.TemporaryDirectory() as folder:
                link = Path(folder, "now.json")
                client = Client(self.server.url, "n/a", directives_file=link)
                seen = []
                for number in (1, 2, 2):
                    path = Path(folder, f"{number}.json")
                    path.write_text(json.dumps({"decision_id": f"d-{number}", "frozen_prefix_layers": number, **fields}))
                    # As of one checkout, or one archive.
                    os.utime(path, (1.7e9, 1.7e9))
                    link.unlink(missing_ok=True)
                    link.symlink_to(path)
                    client._read_directives_file()
                    revision, directive = client.directive()
                    seen.append((revision, directive and directive.decision_id))
                self.assertEqual([decision for _, decision in seen], ["d-1", "d-2", "d-2"])
                self.assertNotEqual(seen[0][0], seen[1][0])
                self.assertEqual(seen[1], seen[2])

    def test_a_file_that_somebody_wrote_is_read_to_the_letter(self) -> None:
        right = {"decision_id": "x", "frozen_prefix_layers": 1}
        asks_nothing = "it asks for nothing: give precision, frozen_prefix_layers or checkpoint_now, or {} to withdraw"
        cases: list[tuple[Any, str | Directive | None]] = [
            (right, Directive("x", frozen_prefix_layers=1)),
            ({**right, "time": "2026-01-02T03:04:05Z", "workload": "n/a", "revision": 7}, Directive("x", frozen_prefix_layers=1)),
            ({"revision": 3, "directive": {**right, "precision": None, "checkpoint_now": True}}, Directive("x", None, 1, True)),
            ("\ufeff" + json.dumps(right), Directive("x", frozen_prefix_layers=1)),
            ({"decision_id": "x", "frozen_prefix_layers": 0}, Directive("x", frozen_prefix_layers=0)),
            ({}, None),
            ({"directive": None}, None),
            ({"decision_id": "x", "frozen_layers": 1}, "there is no key frozen_layers; did you mean frozen_prefix_layers?"),
            ({**right, "frozenPrefixLayers": 2}, "there is no key frozenPrefixLayers; did you mean frozen_prefix_layers?"),
            ({"directive": {**right, "zzz": 1}}, "there is no key zzz"),
            ({"directive": right, "revison": 4}, "there is no key revison; did you mean revision?"),
            ({"decision_id": "x"}, asks_nothing),
            ({"directive": {"decision_id": "x", "precision": None, "checkpoint_now": False}}, asks_nothing),
            ({"frozen_prefix_layers": 1}, "a directive has no decision_id"),
            ({**right, "checkpoint_now": "false"}, "checkpoint_now is 'false': give true or false"),
            ({**right, "checkpoint_now": []}, "checkpoint_now is []: give true or false"),
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "directive.json")
            for content, expected in cases:
                with self.subTest(content):
                    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
                    client = Client(self.server.url, "n/a", directives_file=path)
                    client._read_directives_file()
                    if isinstance(expected, str):
                        self.assertIn(expected, client.directives_error or "")
                        self.assertEqual(client.directive(), (0, None))
                    else:
                        self.assertEqual((client.directive()[1], client.directives_error), (expected, None))
                        self.assertGreater(client.directive()[0], 0)

    @mock.patch("eadt.client.BACKOFF_SECONDS", 0.02)
    def test_answers_that_make_no_sense_lose_no_report_and_no_directive(self) -> None:
        client = self.client(interval_seconds=0.02)
        right = {"workload": "n/a", "revision": 4, "directive": {"decision_id": "d-4", "frozen_prefix_layers": 2}}
        self.server.answer = {"directives": [right]}
        client.report(steps_total=0)
        wait_for(lambda: client.directive()[0] == 4)

        def wrong(**body: Any) -> dict[str, Any]:
            return {"directives": [{"workload": "n/a", "revision": 5, "directive": {"decision_id": "d-5", **body}}]}

        answers = [
            *(wrong(frozen_prefix_layers=layers) for layers in (-1, "2", 1.5, True)),
            {"directives": [{"workload": "n/a", "revision": "5", "directive": None}]},
            {"directives": [{"workload": "n/a", "revision": 5, "directive": [1]}]},
            {"directives": [{"workload": "n/a", "revision": 5, "directive": {}}]},
            {"directives": 7, "refused": 7},
            {"directives": [7, None], "refused": ["x", None, {"status": 429}, {"status": 429, "index": []}]},
        ]
        bodies: list[Any] = [*answers, b"<html>", b"[1]", b"\xff", b"", b"[" * 100_000, b'"' + b"x" * (3 << 20)]
        for number, answer in enumerate(bodies, start=1):
            failed = client.failed
            self.server.body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            client.report(steps_total=number)
            wait_for(lambda number=number: any(event["steps_total"] == number for event in self.server.events))
            if isinstance(answer, bytes):
                # No collector took it: it is sent again.
                wait_for(lambda failed=failed: client.failed > failed)
                self.server.body = None
                wait_for(lambda: client.last_error is None)
        self.assertEqual(client.directive()[1].frozen_prefix_layers, 2)
        self.server.body = None
        self.server.answer = {"directives": [{**right, "revision": 6}]}
        client.report(steps_total=99)
        wait_for(lambda: client.directive()[0] == 6)
        client.close()

    @mock.patch("eadt.client.BACKOFF_SECONDS", 0.05)
    def test_marks_wait_for_a_token_an_address_and_room_to_be_mended(self) -> None:
        client = self.client(interval_seconds=0.05)
        self.server.headers = {"location": "https://elsewhere/v1/progress"}
        for status, part in ((301, "a redirect to https://elsewhere"), (401, "401"), (404, "404"), (429, "429")):
            with self.subTest(status):
                self.server.status = status
                failed = client.failed
                client.mark(phase="started")
                wait_for(lambda failed=failed: client.failed > failed)
                self.assertIn(part, client.last_error or "")
                self.assertEqual(client.refused, 0)
                self.server.events.clear()
                self.server.status = 202
                wait_for(lambda: [event for event in self.server.events if event.get("phase") == "started"])
                wait_for(lambda: not client._events)
        self.server.answer = {"refused": [{"index": 1, "status": 429, "error": "full"}, {"index": 0, "status": 422, "error": "wrong"}]}
        self.server.events.clear()
        with client._lock:
            client.mark(span="1")
            client.mark(span="2")
        wait_for(lambda: len(self.server.events) == 2)
        self.server.answer = {}
        wait_for(lambda: len(self.server.events) >= 3)
        client.close()
        self.assertEqual([event["span"] for event in self.server.events], ["1", "2", "2"])

    def test_a_handler_of_a_signal_may_report_while_the_client_is_at_work(self) -> None:
        client = self.client()

        def interrupted() -> None:
            with client._lock:
                client.mark(phase="finished")

        thread = threading.Thread(target=interrupted, daemon=True)
        thread.start()
        thread.join(60)
        self.assertFalse(thread.is_alive(), "waits for itself")
        client.close()
        self.assertEqual([event["phase"] for event in self.server.events], ["finished"])

    def test_what_was_withdrawn_before_it_was_taken_up_asks_for_no_checkpoint(self) -> None:
        class Freezer:
            def __init__(self) -> None:
                self.blocks, self.frozen, self.fails = [1, 2, 3], 0, False

            def refusal(self, layers: int) -> str | None:
                return "not these" if layers == 2 else None

            def freeze(self, layers: int) -> None:
                if self.fails:
                    raise RuntimeError("out of memory")
                self.frozen = layers

        freezer = Freezer()
        job = eadt.job(client=self.client(interval_seconds=600.0), freezer=freezer, agree_every=1)

        def ask(revision: int, layers: int | None) -> bool:
            directive = None if layers is None else Directive(f"d-{revision}", frozen_prefix_layers=layers)
            job.client._answer = (revision, directive)
            job.step()
            return job.checkpoint_due()

        with job:
            self.assertFalse(ask(7, None), "of an earlier job of this name")
            self.assertTrue(ask(8, 1))
            self.assertFalse(ask(9, None), "not taken up")
            self.assertFalse(ask(10, 2), "refused at once")
            self.assertEqual(job.client._sticky, {"decision_id": "d-10", "directive_refused": "not these"})
            self.assertFalse(ask(11, None), "refused")
            self.assertEqual(job.client._sticky, {})
            freezer.fails = True
            self.assertTrue(ask(12, 1))
            job.checkpointed()
            self.assertIn("out of memory", job.client._sticky["directive_refused"])
            freezer.fails = False
            self.assertTrue(ask(13, 1))
            job.checkpointed()
            self.assertTrue(ask(14, None), "taken up")
            job.checkpointed()
            self.assertEqual((freezer.frozen, job.client._sticky), (0, {}))
        self.assertEqual([decision for decision, _ in job.answers], ["d-10", "d-12", "d-13"])

    def test_what_an_earlier_job_was_asked_is_not_taken_up_by_one_that_begins_its_training(self) -> None:
        def asked(revision: int, decision: str | None, time: str = "") -> dict[str, Any]:
            body = None if decision is None else {"decision_id": decision, "checkpoint_now": True, **({"time": time} if time else {})}
            return {"directives": [{"workload": "n/a", "revision": revision, "directive": body}]}

        old, new = "2026-01-02T03:04:05.123456Z", "2999-01-02T03:04:05Z"
        begins, goes_on = (0, 0.0), (100, 800.0)
        # Of each: what the answer to the start asks, what later ones ask, and what is taken up.
        cases: list[tuple[Any, Any, Any, Any]] = [
            (begins, {}, asked(4, "d-1"), "d-1"),
            (begins, asked(4, "d-1", new), asked(4, "d-1", new), None),
            (begins, asked(4, "d-1", old), asked(5, "d-1", new), None),
            (begins, asked(4, "d-1"), asked(5, "d-2"), "d-2"),
            (begins, asked(4, "d-1"), asked(5, None), None),
            # A collector that has just begun learns it later.
            (begins, {}, asked(4, "d-1", old), None),
            (begins, {}, asked(4, "d-1", new), "d-1"),
            (begins, {}, asked(4, "d-1", "x"), "d-1"),
            (goes_on, asked(4, "d-1", old), asked(4, "d-1", old), "d-1"),
            ((0, 800.0), asked(4, "d-1", old), asked(4, "d-1", old), "d-1"),
            (goes_on, {}, asked(4, "d-1", old), "d-1"),
        ]
        self.server.asks_at_start = True
        for (steps, samples), at_start, later, expected in cases:
            with self.subTest(steps=steps, at_start=at_start, later=later):
                self.server.answer = at_start
                requests = len(self.server.requests)
                with eadt.job(client=self.client(interval_seconds=0.02), agree_every=1) as job:
                    wait_for(lambda requests=requests: len(self.server.requests) > requests and not job.client._is_starting)
                    job.steps_total, job.samples_total = steps, samples
                    self.server.answer = later
                    for _ in range(2):
                        # Two more answers, each of which a step sees.
                        requests = len(self.server.requests)
                        wait_for(lambda requests=requests: job.client.report() or len(self.server.requests) > requests + 1)
                        job.step(samples=8)
                    self.assertEqual(job.checkpoint_due(), expected is not None)
                    job.checkpointed()
                self.assertEqual(job.answers, [] if expected is None else [(expected, None)])
                self.assertEqual(self.server.events[-1].get("decision_id"), expected)

    def test_a_client_of_an_earlier_job_and_a_file_of_directives(self) -> None:
        client = self.client(interval_seconds=600.0)
        client._answer = (4, Directive("d-1", checkpoint_now=True))
        with eadt.job(client=client, agree_every=1) as job:
            job.step()
            self.assertFalse(job.checkpoint_due(), "the client's earlier job was asked")
            client._answer = (5, Directive("d-2", checkpoint_now=True))
            job.step()
            self.assertTrue(job.checkpoint_due())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "directive.json")
            path.write_text(json.dumps({"decision_id": "d-1", "checkpoint_now": True, "time": "2026-01-02T03:04:05Z"}))
            with eadt.job(client=self.client(interval_seconds=0.02, directives_file=path), agree_every=1) as job:
                wait_for(lambda: job.client.directive()[0])
                job.step()
                self.assertTrue(job.checkpoint_due(), "a file is for the job that is given it")

    def test_no_checkpoint_is_written_for_what_changes_nothing_or_is_refused(self) -> None:
        class Freezer:
            def __init__(self) -> None:
                self.blocks, self.frozen = [1, 2, 3], 0

            def refusal(self, layers: int) -> str | None:
                return f"{layers} of 3 blocks" if layers > 2 else None

            def freeze(self, layers: int) -> None:
                self.frozen = layers

        freezer = Freezer()
        job = eadt.job(client=self.client(interval_seconds=600.0), freezer=freezer, agree_every=1)
        refusal = "this job does not change its precision"
        # Of each: what is asked, whether a checkpoint is, what is acknowledged, and the blocks that are frozen then.
        cases: list[tuple[Directive | None, bool, Any, int]] = [
            (Directive("d-0", frozen_prefix_layers=0), False, ("d-0", None), 0),
            (Directive("d-1", frozen_prefix_layers=2, checkpoint_now=True), True, ("d-1", None), 2),
            # As the actuator has it once the job follows.
            (Directive("d-1", frozen_prefix_layers=2), False, ("d-1", None), 2),
            (Directive("d-2", frozen_prefix_layers=2), False, ("d-2", None), 2),
            # Another decision waits for a checkpoint: one is written.
            (Directive("d-3", frozen_prefix_layers=2, checkpoint_now=True), True, ("d-3", None), 2),
            (Directive("d-3", frozen_prefix_layers=2), False, ("d-3", None), 2),
            (Directive("d-4", frozen_prefix_layers=9, checkpoint_now=True), False, ("d-4", "9 of 3 blocks"), 2),
            (Directive("d-4", frozen_prefix_layers=9), False, ("d-4", "9 of 3 blocks"), 2),
            (Directive("d-5", precision="bf16", frozen_prefix_layers=1), False, ("d-5", refusal), 2),
            (Directive("d-6", frozen_prefix_layers=1), True, ("d-6", None), 1),
            (None, True, ("d-6", None), 0),
            (None, False, ("d-6", None), 0),
            (Directive("d-7", checkpoint_now=True), True, ("d-7", None), 0),
        ]
        with job:
            for revision, (directive, due, answer, frozen) in enumerate(cases, start=1):
                with self.subTest(directive):
                    job.client._answer = (revision, directive)
                    job.step()
                    self.assertEqual(job.checkpoint_due(), due)
                    if due:
                        job.checkpointed()
                    self.assertEqual((job.checkpoint_due(), job.answers[-1], freezer.frozen), (False, answer, frozen))
                    sticky = {} if directive is None else dict(zip(("decision_id", "directive_refused"), filter(None, answer)))
                    self.assertEqual(job.client._sticky, sticky)
        self.assertEqual([decision for decision, _ in job.answers], [f"d-{number}" for number in range(8)])

    def test_one_rank_that_cannot_or_has_not_done_it_yet_decides_for_all(self) -> None:
        for others, due, refusal in (
            ([(None, True)], False, None),
            ([(None, False)], True, None),
            ([(None, True), ("no scaler", False)], False, "rank 2: no scaler"),
        ):
            job = eadt.job(client=self.client(interval_seconds=600.0), agree_every=1)

            def gather(own: tuple[object, object], _: object, others: list[tuple[object, object]] = others) -> list[tuple[object, object]]:
                # First whether something changed since the last freeze, then whether each can and has done it.
                return [own, *(others if isinstance(own[1], bool) else [(None, None) for _ in others])]

            with self.subTest(others=others), mock.patch("eadt.training.gather", gather):
                job.client._answer = (1, Directive("d-1", frozen_prefix_layers=0))
                job.step()
                self.assertEqual((job.checkpoint_due(), job.answers), (due, [] if due else [("d-1", refusal)]))

    def test_a_job_that_nobody_ended_ends_before_the_next_one_of_its_name_begins(self) -> None:
        self.server.events.clear()
        kept = []
        for samples, is_shared in ((8, False), (4, False), (2, True)):
            # As a notebook's cell that was interrupted, and is run again.
            job = eadt.job(client=kept[-1].client if is_shared else self.client(interval_seconds=0.05))
            job.start()
            job.step(samples=samples)
            kept.append(job)
        other = eadt.job(client=Client(self.server.url, "n/b", interval_seconds=0.05))
        other.start()
        kept[-1].close()
        begun = time.monotonic()
        for job in (*kept, other):
            job.close()
        self.assertLess(time.monotonic() - begun, 60.0)
        own = [event for event in self.server.events if event["workload"] == "n/a" and "phase" in event]
        reports = [(event["phase"], event.get("samples_total")) for event in own]
        started = ("started", None)
        self.assertEqual(reports, [started, ("finished", 8.0), started, ("finished", 4.0), started, ("finished", 2.0)])
        self.assertEqual([event["time"] for event in own], sorted(event["time"] for event in own))
        self.assertEqual([e["phase"] for e in self.server.events if e["workload"] == "n/b" and "phase" in e], ["started", "finished"])

    def test_a_job_that_nothing_refers_to_ends_before_the_next_one_of_its_name_begins(self) -> None:
        def train(client: Client) -> None:
            job = eadt.job(client=client)
            job.start()
            # Its thread holds nothing of the job from then on.
            wait_for(lambda: self.server.events)

        for is_shared in (False, True):
            with self.subTest(is_shared=is_shared):
                self.server.events.clear()
                client = self.client(interval_seconds=600.0)
                train(client)
                self.assertIsNotNone(client._left)
                job = eadt.job(client=client if is_shared else self.client(interval_seconds=600.0))
                job.start()
                job.close()
                reports = [event for event in self.server.events if "phase" in event]
                self.assertEqual([event["phase"] for event in reports], ["started", "finished", "started", "finished"])
                self.assertEqual([event["time"] for event in reports], sorted(event["time"] for event in reports))

    def test_the_end_of_a_job_has_the_time_of_its_end_whenever_the_thread_sends_it(self) -> None:
        client = self.client(interval_seconds=600.0)
        with mock.patch("eadt.client.time_ns", return_value=10**18):
            client.report(steps_total=1)
            client.leave({"phase": "finished"})
        client.begin_exit().join(60.0)
        self.assertEqual(self.server.events[-1]["time"], "2001-09-09T01:46:40.000000Z")
        client.leave({"phase": "finished"})
        client._reset()
        self.assertIsNone(client._left, "a child that was forked ends nothing of its parent's")

    def test_what_is_evaluated_after_the_end_is_no_part_of_the_job(self) -> None:
        with eadt.job(client=self.client()) as job:
            job.step(samples=8)
        job.evaluated(0.5)
        job.checkpointed()
        job.client.close()
        self.assertEqual(self.server.events[-1]["phase"], "finished")
        job.step(samples=8)
        job.evaluated(0.5)
        job.close()
        self.assertEqual([event["phase"] for event in self.server.events if "phase" in event], ["started", "finished", "finished"])
        self.assertEqual([event["validation_loss"] for event in self.server.events if "validation_loss" in event], [0.5])

    def test_evaluations_and_checkpoints_wait_for_the_next_report_unless_many_are_kept(self) -> None:
        with eadt.job(client=self.client(interval_seconds=600.0)) as job:
            for loss in range(5):
                job.step(samples=8)
                job.evaluated(loss)
                job.checkpointed()
        self.assertLessEqual(len(self.server.requests), 2, "the start and the end")
        self.assertEqual([event["validation_loss"] for event in self.server.events if "validation_loss" in event], [0, 1, 2, 3, 4])
        client = self.client(interval_seconds=600.0)
        for loss in range(KEPT_EVENTS // 2):
            client.mark(validation_loss=loss)
        wait_for(lambda: client.sent)
        client.close()

    def test_a_refused_event_that_was_not_sent_is_not_counted(self) -> None:
        places = (-1, 7, True, "0", None, 2**70)
        self.server.answer = {"refused": [{"index": index, "status": 429, "error": "full"} for index in places]}
        client = self.client(interval_seconds=600.0)
        with client._lock:
            client.mark(span="1")
            client.mark(span="2")
        client._wake.set()
        wait_for(lambda: client.sent)
        self.assertEqual(client.sent, 1)
        self.server.answer = {"refused": [{"index": 0, "status": 422, "error": "wrong"}] * 3}
        client.close()
        self.assertEqual((client.sent, [event["span"] for event in self.server.events]), (1, ["1", "2", "2"]))

    def test_joules_per_sample_are_of_what_was_computed_and_measured_here(self) -> None:
        job = eadt.job(client=self.client(interval_seconds=600.0))
        job.samples_total, job.steps_total = 1000.0, 100
        with job:
            for _ in range(5):
                job.step(samples=8)
        self.assertEqual((job.samples_total, job.steps_total), (1040.0, 105))
        job.energy.joules, job.energy.devices, job.energy.reason = 80.0, 1, None
        self.assertEqual(job.joules_per_sample(), 2.0)
        self.assertEqual(self.server.events[-1]["samples_total"], 1040.0)
        job._most_ranks = 2
        self.assertIsNone(job.joules_per_sample())
        self.assertIn("rank 0 can use 1 GPUs, and there are 2 ranks", job.summary())
        job.energy.devices = 2
        self.assertEqual(job.joules_per_sample(), 2.0)
        for variables in ({"LOCAL_WORLD_SIZE": "1"}, {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}):
            with mock.patch.dict(os.environ, variables):
                self.assertNotIn("eadt/joules_per_sample", job.figures())
                self.assertIn("J/sample unknown (1 of 2 ranks are on other machines)", job.summary())

    def test_a_job_that_evaluates_all_the_time_reports_in_each_request_what_it_does(self) -> None:
        with eadt.job(client=self.client(interval_seconds=0.02)) as job:
            for _ in range(30):
                job.step(samples=8)
                job.evaluated(0.5)
                time.sleep(0.02)
        events = [event for event in self.server.events if "live_knobs" in event]
        self.assertGreater(len(self.server.requests), 5)
        self.assertGreaterEqual(len(events), len(self.server.requests))

    def test_a_second_end_is_reported_if_there_were_steps_in_between(self) -> None:
        job = eadt.job(client=self.client())
        with job:
            job.step(samples=8)
        job.close()
        job.step(samples=8)
        job.close()
        ends = [(event["steps_total"], event["samples_total"]) for event in self.server.events if event.get("phase") == "finished"]
        self.assertEqual(ends, [(1, 8.0), (2, 16.0)])

    def test_a_token_is_read_anew_and_a_refusal_is_not_repeated(self) -> None:
        self.server.status = 422
        client = self.client()
        client.mark(phase="started")
        wait_for(lambda: client.refused == 1)
        self.server.status = 202
        client.close(phase="finished")
        self.assertEqual([event["phase"] for event in self.server.events], ["started", "finished"])
        missing = self.client(token_file="/nowhere/token")
        missing.report(steps_total=1)
        wait_for(lambda: missing.failed)
        missing.close()

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_forked_child_reports_by_itself_and_repeats_nothing_of_its_parent(self) -> None:
        client = self.client(interval_seconds=600.0)
        client.report(steps_total=1)
        child = os.fork()
        if child == 0:
            client.report(steps_total=77)
            client._wake.set()
            client.close()
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual([event["steps_total"] for event in self.server.events], [77])
        client.close()
        self.assertEqual([event["steps_total"] for event in self.server.events], [77, 1])

    def test_a_dead_thread_is_started_again(self) -> None:
        client = self.client()
        client.report(steps_total=1)
        client.close()
        client.report(steps_total=2)
        wait_for(lambda: any(event["steps_total"] == 2 for event in self.server.events))
        client.close()


class TestHarm(unittest.TestCase):
    """Whatever the server does: no exception, no wait, an end within two seconds."""

    # A close that waits for a request takes two minutes.
    @mock.patch("eadt.client.REQUEST_SECONDS", 120.0)
    def check(self, url: str) -> None:
        client = Client(url, "n/a", interval_seconds=0.05)
        client.mark(phase="started")
        durations = []
        for step in range(3000):
            begun = time.perf_counter()
            client.report(steps_total=step, loss=0.5)
            durations.append(time.perf_counter() - begun)
            self.assertLessEqual(len(client.queue), QUEUED_REPORTS + 1)
            if step % 300 == 0:
                time.sleep(0.05)
        begun = time.perf_counter()
        client.close(phase="finished")
        ended = time.perf_counter() - begun
        self.assertLess(statistics.median(durations), 1e-3)
        self.assertLess(ended, 60.0)
        self.assertEqual(client.sent, 0)

    def test_absent(self) -> None:
        self.check(absent_url())

    def test_hangs(self) -> None:
        server = Harmful("hang")
        self.addCleanup(server.close)
        self.check(server.url)

    def test_resets(self) -> None:
        server = Harmful("reset")
        self.addCleanup(server.close)
        self.check(server.url)

    @mock.patch("eadt.client.REQUEST_SECONDS", 0.3)
    def test_answers_a_byte_at_a_time(self) -> None:
        for kind in ("drips the head", "drips the body"):
            with self.subTest(kind):
                server = Harmful(kind)
                self.addCleanup(server.close)
                client = Client(server.url, "n/a", interval_seconds=0.05)
                client.report(steps_total=1)
                wait_for(lambda client=client: client.failed)
                self.assertEqual((client.sent, client.last_error), (0, "the collector does not answer in time"))
                with self.assertRaises(TimeoutError):
                    client.poll_directive()
                client.close()
                wait_for(lambda client=client: not client._is_running)

    def test_answers_500(self) -> None:
        server = Recorder(500)
        self.addCleanup(server.close)
        self.check(server.url)

    def test_unusable_addresses(self) -> None:
        for url in ("http://no.such.host.invalid:1", "nonsense", "http://127.0.0.1:99999"):
            with self.subTest(url):
                client = Client(url, "n/a", interval_seconds=0.05)
                client.report(steps_total=1)
                client.close()
                self.assertEqual(client.sent, 0)


class TestFailures(unittest.TestCase):
    """What is wrong is reported with what to do about it."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        clean = mock.patch.dict(os.environ, {"EADT_URL": "", "EADT_TOKEN_FILE": "", "EADT_CA_FILE": ""})
        clean.start()
        self.addCleanup(clean.stop)

    def failures(self, *clients: tuple[str, dict[str, Any]]) -> list[str]:
        """Returns what is logged of one report of each client, and checks that it was not counted as sent."""
        made = [Client(url, "n/a", interval_seconds=0.02, **options) for url, options in clients]
        for client in made:
            client.report(steps_total=1)
        errors = [str(wait_for(lambda client=client: client.last_error)) for client in made]
        # Together: each waits a second before it tries again.
        for client in made:
            client.begin_close({})
        for client in made:
            client.close()
        self.assertEqual([client.sent for client in made], [0] * len(made))
        return errors

    def file(self, name: str, content: str) -> str:
        path = self.folder / name
        path.write_text(content)
        return str(path)

    def test_an_address_that_is_none_is_reported_with_the_variable(self) -> None:
        cases = [
            (absent_url(), "nothing listens there: start `eadt up`; EADT_URL is the collector's address"),
            ("http://no.such.host.invalid:1", "the host is not known"),
            ("http://127.0.0.1:abc", "that is no address (Port could not be cast"),
            ("http://[::1:9477", "that is no address (Invalid IPv6 URL): EADT_URL is the collector's address"),
            ("http://[x]:9477", "that is no address ("),
            ("ftp://127.0.0.1", "that is no address of http:// or https://: EADT_URL is"),
            ("http://", "that is no address of http:// or https://: EADT_URL is"),
        ]
        for (_, part), error in zip(cases, self.failures(*[(url, {}) for url, _ in cases])):
            self.assertIn(part, error)

    def test_an_address_that_cannot_be_parsed_does_not_reach_training(self) -> None:
        variables = mock.patch.dict(os.environ, {"EADT_URL": "http://user:secret@[::1:9477/x?token=secret"})
        with variables, self.assertLogs("eadt", logging.WARNING) as logs, eadt.job(workload="n/a", interval_seconds=0.02) as job:
            for samples in ("x", -1, 8):
                job.step(samples=samples)
            wait_for(lambda: "that is no address (Invalid IPv6 URL): EADT_URL is" in (job.client.last_error or ""))
            job.evaluated(0.5)
            job.checkpointed()
        self.assertEqual((job.steps_total, job.samples_total), (3, 8.0))
        self.assertTrue(any("reports of n/a to http://[::1:9477/x: that is no address" in line for line in logs.output), logs.output)
        self.assertNotIn("secret", "".join(logs.output))

    def test_an_address_without_a_scheme_and_one_of_the_reports_themselves_are_understood(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        host = server.url.removeprefix("http://")
        for url in (host, f" {host}/", f"{server.url}/v1/progress", f"{server.url}/v1/progress/"):
            with self.subTest(url):
                client = Client(url, "n/a")
                self.assertEqual(client.url, server.url)
                client.close(phase="finished")
        wait_for(lambda: len(server.events) == 4)
        self.assertEqual(Client("https://collector.example:9477/eadt/", "n/a").url, "https://collector.example:9477/eadt")

    def test_http_and_https_that_are_mistaken_for_each_other_are_reported(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def alert() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        connection, _ = listener.accept()
                        connection.recv(10)
                        # What a TLS server answers.
                        connection.sendall(b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n")
                        # Closed with unread bytes, a connection is reset, and the answer may be lost.
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(1024):
                            pass
                        connection.close()

            threading.Thread(target=alert, daemon=True).start()
            tls, plain = self.failures((server.url.replace("http:", "https:"), {}), (f"http://127.0.0.1:{listener.getsockname()[1]}", {}))
        self.assertIn("without TLS, EADT_URL begins with http://", tls)
        self.assertIn("if it uses TLS, EADT_URL begins with https://", plain)
        self.assertTrue(plain.isprintable(), plain)

    def test_a_file_that_cannot_be_used_is_named_and_its_token_is_not(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        secure, certificate = server.url.replace("http:", "https:"), self.file("ca.crt", "no certificate")
        contents = ["", "first-secret\nsecond-secret\n", "secret\x07"]
        tokens = [(server.url, {"token_file": self.file(f"token-{number}", content)}) for number, content in enumerate(contents)]
        absent, endless, no_ca, bad_ca, *unusable = self.failures(
            (server.url, {"token_file": "/nowhere/token"}),
            (server.url, {"token_file": "/dev/zero"}),
            (secure, {"ca_file": "/nowhere/ca.crt"}),
            (secure, {"ca_file": certificate}),
            *tokens,
        )
        self.assertIn("EADT_TOKEN_FILE, /nowhere/token, cannot be read", absent)
        self.assertIn("EADT_TOKEN_FILE, /dev/zero, cannot be read: it has more than", endless)
        self.assertIn("EADT_CA_FILE, /nowhere/ca.crt, cannot be read", no_ca)
        self.assertIn("cannot be read: [X509", bad_ca)
        for error in unusable:
            self.assertIn("must hold one token and nothing else", error)
            self.assertNotIn("secret", error)

    def test_answers_have_their_remedy(self) -> None:
        cases = [
            (401, b'{"error": "no token"}', "401: no token; EADT_TOKEN_FILE names a file with the token"),
            (403, b'{"error": "another namespace"}', "403: another namespace; EADT_WORKLOAD is NAMESPACE/NAME"),
            (404, b"", "404, which is no collector's answer: EADT_URL is the collector's address"),
            (405, b"", "405, which is no collector's answer: EADT_URL is the collector's address"),
            (422, b'{"error": "\\"train\\" is not namespace/name"}', "is not namespace/name; set EADT_WORKLOAD"),
            (422, b'{"error": "no JSON"}', "refuses the report with 422: no JSON"),
            (500, b"", "the server answers 500"),
            *((status, b"<!DOCTYPE html>\n<p>Hello", f"the server answers {status}, which is no collector") for status in (200, 404, 405)),
            (400, b"<html>", "400, which is no collector's answer: EADT_URL is the collector's address, as `eadt up` prints it (port 9477"),
            (401, b"<html>No token", "the server answers 401; EADT_TOKEN_FILE names a file with the token"),
            (403, b"<html>", "the server answers 403; EADT_WORKLOAD is NAMESPACE/NAME, in a namespace of the token"),
            (200, b"{}", "200, which is no collector's answer: EADT_URL is"),
            (404, b'{"error": "there is nothing at /x: POST progress to /v1/progress"}', "404: there is nothing at /x"),
        ]
        # A proxy's own pages: nothing is wrong with the address.
        alone = [(status, f"the server answers {status}") for status in (408, 429, 500, 502, 503)]
        alone.append((413, "the collector refuses the report with 413"))
        cases += [(status, b"\n<!DOCTYPE html>\n<p>Hello", part) for status, part in alone]
        servers = []
        for status, body, _ in cases:
            server = Recorder(status)
            self.addCleanup(server.close)
            server.body = body
            servers.append(server)
        for (status, _, part), error in zip(cases, self.failures(*[(server.url, {}) for server in servers])):
            self.assertIn(part, error)
            self.assertFalse("<" in error, error)
            self.assertTrue(error.endswith(part) or (status, part) not in alone, error)

    def test_characters_that_a_terminal_would_obey_are_escaped_in_log_lines(self) -> None:
        logger = logging.getLogger("eadt")
        self.addCleanup(logger.setLevel, logger.level)
        logger.setLevel(logging.WARNING)
        with self.assertLogs("eadt", logging.WARNING) as logs:
            logger.warning("%s of %s: 99 %%", "t/\x1b[31m", "a\u202eb\nc")
            logger.warning("Größe 東京, 99 % done")
        self.assertEqual(
            [record.getMessage() for record in logs.records],
            ["t/\\x1b[31m of a\\u202eb\\nc: 99 %", "Größe 東京, 99 % done"],
        )

    def steps(self, **fields: Any) -> tuple[Recorder, list[str]]:
        """Takes three steps with these fields; the server that has their reports, and the warnings."""
        server = Recorder()
        self.addCleanup(server.close)
        logger = logging.getLogger("eadt")
        self.addCleanup(logger.setLevel, logger.level)
        logger.setLevel(logging.WARNING)
        with self.assertLogs("eadt", logging.WARNING) as logs, eadt.job(client=Client(server.url, "n/a", interval_seconds=0.02)) as job:
            for _ in range(3):
                job.step(samples=1, **fields)
                job._demand()
                time.sleep(0.05)
        return server, logs.output

    def logged(self, client: Client, *failures: str) -> list[str]:
        """Returns what is logged of these failures, one after the other."""
        logger = logging.getLogger("eadt")
        self.addCleanup(logger.setLevel, logger.level)
        logger.setLevel(logging.WARNING)
        with self.assertLogs("eadt", logging.WARNING) as logs:
            logger.warning("first")
            for failure in failures:
                client.note_failure(failure)
        return [line.rpartition(": ")[2] for line in logs.output[1:]]

    def test_a_reason_is_logged_once_whatever_the_numbers_in_it_and_others_meanwhile(self) -> None:
        client = Client("127.0.0.1:1", "n/a")
        seconds = 1000.0
        with mock.patch("eadt.client.time.monotonic", lambda: seconds):
            early = [f"time 2026-11-30T05:10:{second:02d}.{second}Z is {second} s ahead" for second in range(30)]
            self.assertEqual(len(self.logged(client, *early)), 1)
            self.assertEqual(self.logged(client, *["rank is none", "too old"] * 20), ["rank is none", "too old"])
            self.assertEqual(client.last_error, "too old")
            seconds += 3601
            self.assertEqual(self.logged(client, "too old", "too old"), ["too old"], "after an hour, again")
            many = [f"field {chr(97 + place // 26)}{chr(97 + place % 26)}" for place in range(300)]
            self.assertEqual(len(self.logged(client, *many)), 300)
            self.assertLessEqual(len(client._logged_failures), 64)

    def test_what_was_mended_and_fails_again_is_logged_again(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        client = Client(server.url, "n/a", interval_seconds=0.02)
        self.assertEqual(self.logged(client, "away", "away"), ["away"])
        client.report(steps_total=1)
        wait_for(lambda: client.last_error is None)
        self.assertEqual(self.logged(client, "away"), ["away"])
        client.close()

    def test_values_that_do_not_fit_are_reported_once_and_the_rest_is_sent(self) -> None:
        server, lines = self.steps(loss=Unreadable(), learning_rate="high", gradient_norm="0.5", layers=12.0)
        warnings = sorted(line.partition("n/a: ")[2] for line in lines if "and not sent" in line)
        self.assertEqual(warnings, ["learning_rate is no number but str, and not sent", "loss is unreadable (Unreadable), and not sent"])
        event = next(event for event in server.events if "gradient_norm" in event)
        self.assertEqual((event["gradient_norm"], event["layers"], event["steps_total"]), (0.5, 12, 1))

    def test_a_rank_that_does_not_fit_leaves_the_clients_own(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        server = Recorder()
        self.addCleanup(server.close)
        client = Client(server.url, "n/a", rank=3, interval_seconds=0.02)
        client.always(rank="y")
        for number, rank in enumerate(("x", -1, None, math.nan, 5)):
            client.mark(steps_total=number, rank=rank)
        client.mark(steps_total=5)
        client.close()
        self.assertEqual([event.get("rank") for event in server.events], [3, 3, 3, 3, 5, 3])
        client = Client(server.url, "n/a", rank=-1)
        client.close(steps_total=6)
        self.assertNotIn("rank", server.events[-1])

    def test_a_field_that_does_not_exist_is_reported_once_with_the_nearest(self) -> None:
        _, lines = self.steps(validationloss=0.5, xyzzy=1)
        notes = [line for line in lines if "there is no field" in line]
        self.assertEqual(len(notes), 2, lines)
        self.assertTrue(any("no field validationloss, which is not sent; did you mean validation_loss?" in line for line in notes), notes)
        self.assertTrue(any(line.endswith("no field xyzzy, which is not sent") for line in notes), notes)

    def test_ranks_that_share_their_samples_count_once(self) -> None:
        job = eadt.job(url=absent_url(), workload="n/a", data_ranks=3)
        job.samples_total = 100.0
        job.step(samples=8)
        self.assertEqual((job.samples_total, job.of_all_ranks(2.0)), (124.0, 6.0))

    def test_options_that_mean_nothing_are_refused_where_the_job_is_made(self) -> None:
        for layers in ("all", 17, 0):
            with self.assertRaisesRegex(TypeError, "give 'auto', a list of the model's blocks from the input side, or None"):
                eadt.job(layers=layers)
        with self.assertRaisesRegex(ValueError, r"precision is 'int8': job.autocast\(\) computes in fp32, bf16 or fp16"):
            eadt.job(precision="int8")
        for ranks in (0, -1, 1.5, "all"):
            with self.assertRaisesRegex(TypeError, "give the number of ranks that have samples of their own"):
                eadt.job(data_ranks=ranks)
        for seconds in (0, -1, None, "soon", math.nan, math.inf, 1e12):
            with self.assertRaisesRegex(ValueError, "interval_seconds is .*: give a number of seconds above 0, at most 86400"):
                eadt.job(interval_seconds=seconds)

    def test_counts_of_a_checkpoint_that_are_none_do_not_reach_training(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        job = eadt.job(url=absent_url(), workload="n/a")
        job.steps_total = 7
        for count in (None, "soon", math.nan, -3):
            job.steps_total = count
            self.assertEqual(job.steps_total, 7)
        self.assertIn("steps_total is negative, and stays 7", job.client.last_error or "")
        job.steps_total = 9.0
        self.assertEqual((job.steps_total, type(job.steps_total)), (9, int))

    def test_a_model_of_an_unknown_kind_is_trained_and_reported_all_the_same(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        with eadt.job("no model", layers="auto", client=Client(server.url, "n/a")) as job, job.autocast():
            job.step(samples=8)
        wait_for(lambda: any(event.get("phase") == "finished" for event in server.events))
        self.assertEqual((server.events[-1]["samples_total"], server.events[-1]["live_knobs"]), (8.0, ["checkpoint_now"]))


JOB = """
import atexit, os, sys, time
atexit.register(lambda: print("ended", time.monotonic() - begun))
import eadt, eadt.client
url, how = sys.argv[1:]
eadt.client.REQUEST_SECONDS = 120.0
if how != "bounded":
    eadt.client.CLOSE_SECONDS = 120.0
job = eadt.job(url=url, workload="n/a")
job.start()
for step in range(47):
    job.step(samples=8, loss=1.0 / (step + 1))
client = eadt.Client(url, "n/b")
client.report(steps_total=5)
if how == "closed":
    job.close()
    client.close()
elif how == "forked" and os.fork() == 0:
    job.step(samples=8)
    job = client = None
    eadt.client._at_exit()
    os._exit(0)
begun = time.monotonic()
if how == "raises":
    raise RuntimeError("no memory")
if how == "killed":
    os.kill(os.getpid(), 15)
sys.exit(3)
"""


class TestEnd(unittest.TestCase):
    """A script that ends without ``close``: by itself, by an exception, by a signal."""

    def run_job(self, url: str, how: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EADT_")}
        environment["PYTHONPATH"] = str(REPOSITORY / "python/src")
        return subprocess.run(
            [sys.executable, "-c", JOB, url, how], env=environment, capture_output=True, text=True, check=False, timeout=600
        )

    def test_every_step_and_the_end_are_reported_if_the_interpreter_ends(self) -> None:
        for how, status in (("ends", 3), ("raises", 1), ("closed", 3), ("killed", -15)):
            with self.subTest(how):
                server = Recorder()
                self.addCleanup(server.close)
                ran = self.run_job(server.url, how)
                self.assertEqual(ran.returncode, status, ran.stderr)
                own = [event for event in server.events if event["workload"] == "n/a"]
                ends = [event for event in own if event.get("phase") == "finished"]
                if how == "killed":
                    self.assertEqual(ends, [], "a job that is killed may begin again at a checkpoint")
                    continue
                self.assertEqual([(event["steps_total"], event["samples_total"]) for event in ends], [(47, 376.0)])
                self.assertEqual(own[-1], ends[0])
                self.assertEqual([event["steps_total"] for event in server.events if event["workload"] == "n/b"], [5])

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_forked_child_reports_no_end_of_its_parents_job(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        self.assertEqual(self.run_job(server.url, "forked").returncode, 3)
        ends = [event["steps_total"] for event in server.events if event.get("phase") == "finished"]
        self.assertEqual(ends, [47])

    def test_a_server_that_hangs_holds_the_end_up_for_two_seconds_for_all_clients_together(self) -> None:
        server = Harmful("hang")
        self.addCleanup(server.close)
        ran = self.run_job(server.url, "bounded")
        self.assertEqual(ran.returncode, 3, ran.stderr)
        # Of which the machine may take some more.
        self.assertLess(float(ran.stdout.split()[1]), 30.0)


class TestNames(unittest.TestCase):
    def test_fields_are_those_of_the_schema(self) -> None:
        schema = json.loads((REPOSITORY / "schemas/json/v1/training.progress.schema.json").read_text())
        self.assertEqual(set(schema["properties"]) - {"collector", "origin"}, PROGRESS_FIELDS)

    def test_keys_of_a_directive_are_those_of_the_schema(self) -> None:
        schema = json.loads((REPOSITORY / "schemas/json/v1/directive.schema.json").read_text())
        self.assertEqual({*schema["properties"], "revision"}, DIRECTIVE_KEYS)

    def test_what_fits_a_field_is_that_of_the_schema(self) -> None:
        schema = json.loads((REPOSITORY / "schemas/json/v1/training.progress.schema.json").read_text())
        kinds: dict[str, set[str]] = {}
        for name in PROGRESS_FIELDS:
            declared = schema["properties"][name]
            kind = set(declared["type"] if isinstance(declared.get("type"), list) else [declared.get("type")]) - {"null"}
            kinds.setdefault("time" if declared.get("format") == "date-time" else kind.pop() or "choice", set()).add(name)
            if name in NUMBERS or name in WHOLE_NUMBERS:
                limits = (declared.get("minimum", -math.inf), declared.get("maximum", math.inf))
                self.assertEqual({**NUMBERS, **WHOLE_NUMBERS}[name], limits, name)
            elif name in CHOICES:
                self.assertEqual(CHOICES[name], tuple(one["const"] for one in schema["$defs"][name.capitalize()]["oneOf"]))
        expected = {"number": {*NUMBERS}, "integer": {*WHOLE_NUMBERS}, "string": TEXTS, "time": TIMES, "choice": {*CHOICES}}
        self.assertEqual(kinds, {**expected, "boolean": {"last"}, "array": {"plasticity", "live_knobs"}})

    def test_values_are_made_to_fit_and_what_does_not_costs_that_field_alone(self) -> None:
        noon = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
        fits = [
            ("learning_rate", "0.5", 0.5),
            ("steps_total", 7, 7),
            ("steps_total", True, 1.0),
            ("layers", 12.0, 12),
            ("layers", "12", 12),
            ("global_batch_size", Fraction(64), 64),
            ("rank", "3", 3),
            ("mps_thread_percentage", 50.0, 50),
            ("last", 1, True),
            ("phase", "Finished", "finished"),
            ("span", 3, "3"),
            ("decision_id", "d-1", "d-1"),
            ("checkpoint_time", noon, "2026-01-31T12:00:00.000000Z"),
            ("checkpoint_time", noon.timestamp(), "2026-01-31T12:00:00.000000Z"),
            ("checkpoint_time", "2026-01-31 12:00:00+00:00", "2026-01-31T12:00:00.000000Z"),
            ("checkpoint_time", "2026-01-31T12:00:00+01:00", "2026-01-31T12:00:00+01:00"),
            ("plasticity", (None, "0.5", float("nan")), [None, 0.5, None]),
            ("live_knobs", ("precision",), ["precision"]),
        ]
        does_not = [
            ("loss", [0.5], "no number but list"),
            ("loss", "low", "no number but str"),
            ("loss", 10**400, "too large"),
            ("learning_rate", -1, "negative"),
            ("samples_total", 1e19, "too large"),
            ("layers", 1.5, "no whole number"),
            ("layers", 2**32, "too large"),
            ("mps_thread_percentage", 0, "too small"),
            ("last", "yes", "no number but str"),
            ("phase", "warmup", "none of started, progress, finished"),
            ("scope", 7, "none of global, rank"),
            ("backend", b"nccl", "no text but bytes"),
            ("checkpoint_time", "yesterday", "no time as 2026-01-31T12:00:00Z"),
            ("plasticity", 0.5, "no list but float"),
            ("plasticity", [[0.5]], "no number but list"),
            ("plasticity", [0.5, 2], "too large"),
            ("plasticity", [0.5, -1], "negative"),
            ("plasticity", [0.5] * 4097, "a list of more than 4096"),
            ("live_knobs", "precision", "no list but str"),
            ("gradient_norm", Unreadable(), "unreadable (Unreadable)"),
        ]
        for name, given, expected in fits:
            with self.subTest(name=name, given=given):
                event = plain_event({name: given, "backend": "gloo"} if name != "backend" else {name: given}, self.fail)
                self.assertEqual((event[name], type(event[name])), (expected, type(expected)))
        for name, given, why in does_not:
            with self.subTest(name=name, why=why):
                unfits: list[tuple[str, str]] = []
                event = plain_event({"steps_remaining": 1, name: given}, lambda *unfit, unfits=unfits: unfits.append(unfit))
                self.assertEqual((event, unfits), ({"steps_remaining": 1}, [(name, why)]))
        self.assertEqual(plain_event({"loss": float("nan"), "layers": None, "rank": float("inf")}, self.fail), {})

    def test_every_frameworks_precision_is_that_of_events(self) -> None:
        for given, name in [("bf16-mixed", "bf16"), ("torch.float16", "fp16"), ("no", "fp32"), ("32-true", "fp32"), ("int4", "int4")]:
            self.assertEqual(event_precision(given), name)

    def test_texts_are_short_enough_for_the_collector(self) -> None:
        decision = "ä\u200b/" * 100 + "@2026-01-01T00:00:00.000000Z/layers"
        self.assertEqual(plain_event({"decision_id": decision}), {"decision_id": decision})
        self.assertEqual(plain_event({"decision_id": "a" * 1025}), {})
        event = plain_event({"directive_refused": "ä\n" * 500, "unknown": 1})
        self.assertLessEqual(len(event["directive_refused"].encode()), 253)
        self.assertNotIn("\n", event["directive_refused"])
        self.assertNotIn("unknown", event)

    def test_surroundings_name_workload_and_rank(self) -> None:
        kept = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(kept)))
        for name in ("EADT_WORKLOAD", "EADT_RANK", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
            os.environ.pop(name, None)
        self.assertTrue(default_workload().startswith("local/"))
        self.assertEqual(default_rank(), 0)
        os.environ.update(EADT_WORKLOAD="team/llm", SLURM_PROCID="3")
        self.assertEqual((default_workload(), default_rank()), ("team/llm", 3))

    def test_a_notebook_has_its_own_name(self) -> None:
        launcher = "/usr/lib/python3/dist-packages/ipykernel_launcher.py"
        for session, name in (("work/My GPT.ipynb", "local/My-GPT"), ("", "local/notebook")):
            variables = {"JPY_SESSION_NAME": session, "EADT_WORKLOAD": ""}
            with mock.patch.dict(os.environ, variables), mock.patch.object(sys, "argv", [launcher]):
                self.assertEqual(default_workload(), name)

    def test_only_words_that_mean_off_switch_it_off(self) -> None:
        for words, is_disabled in ((("1", "true", "TRUE", " yes ", "on"), True), (("", "0", "false", "no", "off", "False", "2"), False)):
            for word in words:
                with self.subTest(word), mock.patch.dict(os.environ, {"EADT_DISABLED": word}):
                    self.assertEqual(Client(absent_url(), "n/a").is_disabled, is_disabled)

    def test_fields_that_a_call_gives_itself_are_no_error(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        job = eadt.job(client=Client(server.url, "n/a"))
        job.start(phase="progress", world_size=4)
        job.step(samples=8)
        job.evaluated(0.5, steps_total=17)
        with mock.patch("eadt.client.CLOSE_SECONDS", 120.0):
            job.close()
        started = server.events[0]
        self.assertEqual((started["phase"], started["world_size"]), ("started", 4))
        evaluated = next(event for event in server.events if "validation_loss" in event)
        self.assertEqual((evaluated["validation_loss"], evaluated["steps_total"]), (0.5, 17))
        self.assertEqual((server.events[-1]["phase"], server.events[-1]["steps_total"]), ("finished", 1))

    def test_a_measurement_that_is_used_again_is_of_the_new_stretch(self) -> None:
        stretches: list[Any] = [[{"a": 1.0}, {"a": 2.0}, {"a": 3.0}], [{}, {}, {}], [{"a": 5.0}, {"a": 5.0}, {"a": 5.5}]]
        counters = [(counters, None if counters else "no driver") for stretch in stretches for counters in stretch]
        m = measure("again")
        self.assertEqual(repr(m), "<again: energy unknown (it was not begun)>")
        with mock.patch("eadt.measure.read_counters", side_effect=counters):
            readings = []
            for _ in range(3):
                with m:
                    readings.append((m.joules, m.devices, m.reason))
                    self.assertIsNone(m.seconds)
                    # It is read once a second at most.
                    self.assertEqual(readings[-1], (m.joules, m.devices, m.reason))
                    self.assertTrue(repr(m).endswith(", running>"), repr(m))
                readings.append((m.joules, m.devices, m.reason))
        short = "the energy counters did not move yet: it was too short"
        unread = (None, 0, "no driver")
        self.assertEqual(readings, [(1.0, 1, None), (2.0, 1, None), unread, unread, (None, 0, short), (0.5, 1, None)])

    @mock.patch("eadt.measure.READING_SECONDS", 0.0)
    def test_a_counter_that_is_reset_while_a_measurement_runs_leaves_it_unknown(self) -> None:
        counters = [{"a": 5.0}, {"a": 6.0}, {"a": 1.0}, {"a": 9.0}, {"a": 10.0}]
        with mock.patch("eadt.measure.read_counters", side_effect=[(counter, None) for counter in counters]), measure("reset") as m:
            self.assertEqual([m.joules for _ in range(3)], [1.0, None, None])
        self.assertEqual((m.joules, m.reason), (None, "an energy counter was reset meanwhile"))

    @mock.patch("eadt.measure.READING_SECONDS", 600.0)
    def test_loggers_have_joules_and_samples_of_one_moment_while_a_job_runs(self) -> None:
        readings = iter(({"a": 10.0}, {"a": 14.0}, {"a": 30.0}))
        job = eadt.job(url=absent_url(), workload="n/a")
        job.samples_total, job.steps_total = 1000.0, 100
        with mock.patch("eadt.measure.read_counters", side_effect=lambda: (next(readings), None)):
            self.assertIn("J/sample unknown (it was not begun)", job.summary())
            job.start()
            rows = []
            for _ in range(3):
                job.step(samples=8)
                figures = job.figures()
                rows.append((figures["eadt/samples_total"], figures["eadt/joules"], figures["eadt/joules_per_sample"]))
            self.assertIn("0.5 J/sample so far", job.summary())
            # The last reading holds a while, and its joules are of the samples until then.
            self.assertEqual(rows, [(1008.0, 4.0, 0.5), (1016.0, 4.0, 0.5), (1024.0, 4.0, 0.5)])
            job.client.begin_close(job._end())
        self.assertEqual((job.energy.joules, job.joules_per_sample()), (20.0, 20.0 / 24.0))

    def test_a_job_that_is_switched_off_reports_nothing(self) -> None:
        server = Recorder()
        self.addCleanup(server.close)
        with mock.patch.dict(os.environ, {"EADT_DISABLED": "1"}), eadt.job(url=server.url, workload="n/a") as job:
            for _ in range(100):
                job.step(samples=8, loss=0.5)
            job.evaluated(0.5)
            job.checkpointed()
        self.assertEqual((server.events, job.samples_total, len(job.client.queue)), ([], 800.0, 0))
        self.assertIsNone(job.client._thread)

    def test_energy_that_is_unknown_is_none(self) -> None:
        with measure("nothing") as m:
            pass
        if m.joules is None:
            self.assertTrue(m.reason)
        self.assertNotEqual(m.joules, 0)
        self.assertGreaterEqual(m.seconds or 0.0, 0.0)


if __name__ == "__main__":
    unittest.main()
