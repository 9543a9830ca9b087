"""What ``report()`` and ``job.step()`` cost a training step, whatever the collector does.

``cargo xtask bench sdk``; or in the folder ``python``: ``PYTHONPATH=src:. python3 benches/overhead.py [STEPS]``.
A step waits, as for a GPU; or computes through more memory than the caches hold; or, with PyTorch, trains a small GPT. The first two leave
nothing of the interpreter in the caches, which is the worst case: an empty method costs most of what the package costs then.

Blocks of steps with the package and without take turns, in random order. Of each block with the one beside it, the difference counts; the
interval of a mean is that of 95 % of the means of as many differences drawn from these (bootstrap). CPU of a call is that of its thread, so
other processes are not in it; the clocks are read in both kinds of block. The whole step is by the wall clock and the median of each block,
with all that the package does to a step: hooks, what it leaves in the caches. Steps of a busy machine differ by more than a tenth of a per
cent: the interval shows what is certain.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import Harmful, Recorder, absent_url

import eadt

STEP_SECONDS = 0.010
#: Steps of a block. In a short one, pauses between two would have more of the steps reported than training has.
BLOCK = 50
GOAL_MICROSECONDS, GOAL_PER_CENT = 50.0, 0.1
MEMORY = bytes(range(256)) * (1 << 16)
DRAWS = 1000


def wait() -> None:
    time.sleep(STEP_SECONDS)


def compute() -> None:
    """Reads 16 MB with the interpreter free for other threads, as PyTorch does."""
    hashlib.sha256(MEMORY).digest()


def nothing() -> None:
    pass


class Empty:
    """A method that is called as ``job.step`` is, and does nothing."""

    def step(self, samples: float = 0.0, *, loss: Any = None, **fields: Any) -> None:
        pass


@dataclass
class Mean:
    """A mean of differences, and where 95 % of such means lie."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f} .. {self.high:.3f}]"


def mean_of(differences: list[float]) -> Mean:
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(differences, k=len(differences))) for _ in range(DRAWS))
    return Mean(statistics.fmean(differences), means[DRAWS // 40], means[DRAWS - 1 - DRAWS // 40])


@dataclass
class Block:
    """Nanoseconds of one block: of the calls by the wall clock and of CPU, and of the steps with their calls."""

    calls: list[int] = field(default_factory=list)
    cpu: int = 0
    steps: list[int] = field(default_factory=list)

    def add(self, step: Callable[[], object], call: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter_ns, time.thread_time_ns
        begun = wall()
        step()
        stepped = wall()
        before = cpu()
        call()
        self.cpu += cpu() - before
        ended = wall()
        self.calls.append(ended - stepped)
        self.steps.append(ended - begun)


@dataclass
class Result:
    """What a call costs a step."""

    #: Microseconds of CPU of a call, and per cent of the step without it.
    call: Mean
    share: Mean
    #: Per cent by which a step with the package is longer, by the wall clock.
    whole: Mean
    #: Milliseconds of a step without the package; microseconds of a call by the wall clock.
    step: float
    median: float
    high: float


def compare(without: Callable[[], object], with_package: Callable[[], object], call: Callable[[], object], steps: int) -> Result:
    """Measures blocks of both kinds in turns."""
    draw = random.Random(2)
    pairs: list[tuple[Block, Block]] = []
    for _ in range(max(2, steps // BLOCK)):
        bare, used = Block(), Block()
        kinds = [(bare, without, nothing), (used, with_package, call)]
        draw.shuffle(kinds)
        for block, step, what in kinds:
            for _ in range(BLOCK):
                block.add(step, what)
        pairs.append((bare, used))
    calls = sorted(duration for _, used in pairs for duration in used.calls)
    mean_step = statistics.fmean(duration for bare, _ in pairs for duration in bare.steps)
    costs = [(used.cpu - bare.cpu) / BLOCK for bare, used in pairs]
    return Result(
        call=mean_of([cost / 1e3 for cost in costs]),
        share=mean_of([cost / mean_step * 100 for cost in costs]),
        whole=mean_of([(statistics.median(used.steps) / statistics.median(bare.steps) - 1) * 100 for bare, used in pairs]),
        step=mean_step / 1e6,
        median=statistics.median(calls) / 1e3,
        high=calls[len(calls) * 99 // 100] / 1e3,
    )


def thread_seconds(client: eadt.Client) -> float | None:
    """CPU seconds of the client's own thread, where the kernel reports them."""
    path = Path(f"/proc/self/task/{client._thread.native_id if client._thread else 0}/schedstat")
    return int(path.read_text().split()[0]) / 1e9 if path.exists() else None


def show(kind: str, server: str, name: str, result: Result, thread: float | None) -> Result:
    """Prints the line of a call."""
    call = f"{result.call.value:5.1f} [{result.call.low:5.1f} .. {result.call.high:5.1f}] {result.median:6.1f} {result.high:7.1f}"
    own = "-" if thread is None else f"{thread:.3f}"
    print(f"{kind:<9} {result.step:5.1f}  {server:<8} {name:<8} {call}   {result.share}   {own}   {result.whole}", flush=True)
    return result


def measured(kind: str, server: str, name: str, client: eadt.Client, compared: Callable[[], Result]) -> Result:
    """Shows a comparison, with the CPU of the client's thread meanwhile."""
    before, begun = thread_seconds(client), time.perf_counter()
    result = compared()
    after, seconds = thread_seconds(client), time.perf_counter() - begun
    thread = None if before is None or after is None else (after - before) / seconds * 100
    return show(kind, server, name, result, thread)


def plain(kind: str, step: Callable[[], None], server: str, url: str, steps: int) -> list[Result]:
    """Measures ``report`` and ``job.step`` after steps without a model."""
    results = []
    for name in ("report", "job.step"):
        with eadt.job(url=url, workload="bench/sdk") as job:
            calls = {
                "report": lambda job=job: job.client.report(steps_total=1, loss=0.5, precision="bf16", learning_rate=1e-4),
                "job.step": lambda job=job: job.step(8, loss=0.5, learning_rate=1e-4),
            }
            results.append(measured(kind, server, name, job.client, lambda name=name, calls=calls: compare(step, step, calls[name], steps)))
    return results


class Training:
    """A small GPT that trains on one core, 32 characters a step."""

    def __init__(self) -> None:
        import torch
        from examples.gpt import SmallGpt, batches, loss_of

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = SmallGpt()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._texts, self._loss_of = batches(1 << 40), loss_of
        self.loss: Any = None

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self._loss_of(self.model, next(self._texts)[:1])
        loss.backward()
        self.optimizer.step()
        self.loss = loss


def train(server: str, url: str, steps: int) -> Result:
    """Measures ``job.step`` and all else that a job does to a model that trains, beside one without a job."""
    bare, used = Training(), Training()
    with eadt.job(used.model, used.optimizer, layers="auto", url=url, workload="bench/gpt") as job:

        def call() -> None:
            job.step(samples=1, loss=used.loss, learning_rate=1e-3)

        return measured("small GPT", server, "job.step", job.client, lambda: compare(bare.step, used.step, call, steps))


def show_empty(kind: str, step: Callable[[], object], steps: int) -> None:
    empty = Empty()
    show(kind, "none", "empty", compare(step, step, lambda: empty.step(8, loss=0.5, learning_rate=1e-4), steps), None)


def main() -> None:
    logging.getLogger("eadt").setLevel(logging.CRITICAL)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    hanging, resetting, answering, failing = Harmful("hang"), Harmful("reset"), Recorder(), Recorder(500)
    servers = {"answers": answering.url, "absent": absent_url(), "hangs": hanging.url, "500": failing.url, "resets": resetting.url}
    print("step         ms  server   call     CPU of a call, µs     median     p99   CPU of a call               thread  whole step")
    print(
        "                                   mean [95 %]               µs      µs   % of a step [95 %]               %  longer by % [95 %]"
    )
    every: list[Result] = []
    for kind, step in (("waits", wait), ("computes", compute)):
        show_empty(kind, step, steps)
        for server, url in servers.items():
            every += plain(kind, step, server, url, steps)
    if importlib.util.find_spec("torch") is not None:
        show_empty("small GPT", Training().step, steps)
        every += [train(server, url, steps) for server, url in servers.items()]
    worst, share = max(result.median for result in every), max((result.share for result in every), key=lambda mean: mean.value)
    print(f"highest median {worst:.1f} µs (asked: {GOAL_MICROSECONDS:.0f}), highest share {share} % (asked: {GOAL_PER_CENT})")
    print("empty: a method that does nothing, with the arguments of job.step; thread: CPU of the client's thread, of one core")


if __name__ == "__main__":
    main()
