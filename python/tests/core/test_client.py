"""The client against servers that answer, and against those that do harm."""

from __future__ import annotations

import json
import logging
import os
import statistics
import tempfile
import time
import unittest
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import eadt
from eadt import Client, event_precision, measure
from eadt.client import QUEUED_REPORTS, default_rank, default_workload
from eadt.directives import Directive
from eadt.events import PROGRESS_FIELDS, plain_event
from eadt.training import MAX_COUNTED
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

    def test_figures_told_apart_arrive_together(self) -> None:
        client = self.client(interval_seconds=600.0)
        for step in range(1, 301):
            client.report(steps_total=step)
            if step == 100:
                client.report(gradient_norm=0.25)
        client.close()
        self.assertEqual([(e["steps_total"], e["gradient_norm"]) for e in self.server.events], [(300, 0.25)])

    def test_a_job_tells_its_steps_and_what_it_does_when_it_is_sent(self) -> None:
        job = eadt.job(client=self.client(interval_seconds=600.0), agree_every=7)
        with job, mock.patch("eadt.training.REPORT_NS", 0):
            # The steps are not sent along with the start.
            wait_for(lambda: self.server.events)
            for _ in range(100):
                job.step(samples=8, loss=0.5, learning_rate=0.1)
            job.step(samples=8)
            job.client._wake.set()
            wait_for(lambda: any("steps_total" in event for event in self.server.events))
        told = next(event for event in self.server.events if "steps_total" in event)
        self.assertEqual((told["steps_total"], told["samples_total"], told["loss"], told["learning_rate"]), (101, 808.0, 0.5, 0.1))
        self.assertEqual(told["live_knobs"], ["checkpoint_now"])
        last = self.server.events[-1]
        self.assertEqual((last["phase"], last["steps_total"], last["samples_total"]), ("finished", 101, 808.0))

    def test_short_steps_are_counted_and_all_that_they_tell_arrives(self) -> None:
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
        told = [event for event in self.server.events if "learning_rate" in event]
        self.assertEqual(
            [(e["steps_total"], e["samples_total"], e["learning_rate"], e["gradient_norm"]) for e in told], [(41, 328.0, 0.5, 0.25)]
        )
        self.assertEqual(told[0]["loss"], 40.0, "the loss of the last step that was reported with one")
        order = [event.get("validation_loss") or event.get("learning_rate") or event["phase"] for event in self.server.events]
        self.assertEqual(order, ["started", 0.5, 0.75, "finished"])

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

    def test_samples_that_are_no_numbers_do_not_reach_training(self) -> None:
        for rank in (0, 3):
            with self.subTest(rank=rank), mock.patch.dict(os.environ, {"EADT_RANK": str(rank)}):
                job = eadt.job(client=self.client(interval_seconds=600.0), agree_every=20)
                with job, mock.patch("eadt.training.time_ns", iter(range(0, 10**12, 10**6)).__next__):
                    for step in range(1, 91):
                        # Some are reported with the steps before them, and some are looked at while they are only counted.
                        bad = {3: "x", 25: None, 26: "8", 50: Unreadable(), 77: float("nan"), 78: [8], 90: 10**400}
                        job.step(samples=bad.get(step, 8), loss=Unreadable())
                        counted = 8.0 * (step - sum(1 for at in bad if at <= step))
                        self.assertEqual(job.samples_total, counted)
                        self.assertEqual(job.figures().get("eadt/samples_total"), counted)
                        self.assertEqual(job.figures()["eadt/steps_total"], step)
                        self.assertIn(f"{step} steps, {counted:g} samples", job.summary())
                    self.assertIn("no number but str", job.client.last_error or "")
                self.assertEqual((job.steps_total, job.samples_total, job.steps_without_samples), (90, 664.0, 7))
                job.samples_total = "x"  # type: ignore[assignment]
                self.assertEqual(job.samples_total, 664.0)
                self.assertIn("samples of 8 steps are no number", job.summary())
        last = self.server.events[-1]
        self.assertEqual((last["phase"], last["steps_total"], last["samples_total"]), ("finished", 90, 664.0))

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

            def look_again(self) -> None:
                self.looks += 1

            def refusal(self, layers: int) -> str | None:
                return None

            def freeze(self, layers: int) -> None:
                self.frozen = layers

        freezer = Freezer()
        job = eadt.job(client=self.client(interval_seconds=600.0), freezer=freezer, agree_every=1)
        with job:
            job.step()
            for layers, waits in ((2, True), (None, False), (0, False), (1, True)):
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
        told: list[Any] = []
        client = self.client(on_directive=lambda directive, revision: told.append((revision, directive)))
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
        self.assertEqual([(revision, body is not None) for revision, body in told], [(4, True), (6, False)])
        client.close()

    def test_a_directive_may_stand_in_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "directive.json")
            client = self.client(directives_file=path)
            client.report(steps_total=1)
            path.write_text(json.dumps({"decision_id": "d-1", "precision": "bf16"}))
            wait_for(lambda: client.directive()[1] is not None)
            self.assertEqual(client.directive()[1].precision, "bf16")
            client.close()

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


class TestNames(unittest.TestCase):
    def test_fields_are_those_of_the_schema(self) -> None:
        schema = json.loads((REPOSITORY / "schemas/json/v1/training.progress.schema.json").read_text())
        self.assertEqual(set(schema["properties"]) - {"collector", "origin"}, PROGRESS_FIELDS)

    def test_every_frameworks_precision_is_that_of_events(self) -> None:
        for given, name in [("bf16-mixed", "bf16"), ("torch.float16", "fp16"), ("no", "fp32"), ("32-true", "fp32"), ("int4", "int4")]:
            self.assertEqual(event_precision(given), name)

    def test_texts_are_short_enough_for_the_collector(self) -> None:
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

    def test_energy_that_is_unknown_is_none(self) -> None:
        with measure("nothing") as m:
            pass
        if m.joules is None:
            self.assertTrue(m.reason)
        self.assertNotEqual(m.joules, 0)
        self.assertGreaterEqual(m.seconds or 0.0, 0.0)


if __name__ == "__main__":
    unittest.main()
