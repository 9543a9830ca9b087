"""What ``report()`` and ``job.step()`` cost a training step, whatever the collector does.

``cargo xtask bench sdk``; or in the folder ``python``: ``PYTHONPATH=src:. python3 benches/overhead.py [STEPS]``.
A step either waits, as for a GPU, or computes through more memory than the caches hold. An empty function is measured in turn with each
call: what reading the clock and finding cold caches cost is not the package's. With PyTorch, a small GPT trains as well.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.servers import Harmful, Recorder, absent_url

import eadt

STEP_SECONDS = 0.010
GOAL_MICROSECONDS, GOAL_PER_CENT = 50.0, 0.1
MEMORY = bytes(range(256)) * (1 << 16)


def wait() -> None:
    time.sleep(STEP_SECONDS)


def compute() -> None:
    """Reads 16 MB with the interpreter free for other threads, as PyTorch does."""
    hashlib.sha256(MEMORY).digest()


def nothing() -> None:
    pass


class Figures:
    """Durations of the calls of one kind, and of the steps they were made in."""

    def __init__(self) -> None:
        self.calls: list[float] = []
        self.steps: list[float] = []

    def add(self, step: Callable[[], None], call: Callable[[], object]) -> None:
        begun = time.perf_counter()
        step()
        stepped = time.perf_counter()
        call()
        ended = time.perf_counter()
        self.steps.append(stepped - begun)
        self.calls.append(ended - stepped)

    def median(self) -> float:
        return statistics.median(self.calls) * 1e6

    def high(self) -> float:
        return sorted(self.calls)[len(self.calls) * 99 // 100] * 1e6

    def share(self) -> float:
        """Per cent of the steps' time."""
        return sum(self.calls) / sum(self.steps) * 100


def thread_seconds(client: eadt.Client) -> float | None:
    """CPU seconds of the client's own thread, where the kernel says."""
    path = Path(f"/proc/self/task/{client._thread.native_id if client._thread else 0}/schedstat")
    return int(path.read_text().split()[0]) / 1e9 if path.exists() else None


def measure(server: str, url: str, kind: str, step: Callable[[], None], count: int) -> list[Figures]:
    """Prints one line for each call; returns the figures of both."""
    job = eadt.job(url=url, workload="bench/sdk")
    job.start()
    empty, report, whole = Figures(), Figures(), Figures()
    begun = time.perf_counter()
    for index in range(count):
        empty.add(step, nothing)
        report.add(step, lambda index=index: job.client.report(steps_total=index, loss=0.5, precision="bf16", learning_rate=1e-4))
        whole.add(step, lambda: job.step(8, loss=0.5, learning_rate=1e-4))
    seconds, own = time.perf_counter() - begun, thread_seconds(job.client)
    job.close()
    thread = "-" if own is None else f"{own / seconds * 100:.3f}"
    for name, figures in (("report", report), ("job.step", whole)):
        length = statistics.median(figures.steps) * 1e3
        line = f"{kind:<9} {length:5.1f}   {server:<8} {name:<8} {figures.median():7.1f} {figures.high():7.1f} {empty.median():7.1f}"
        print(f"{line}   {figures.share():.3f}   {figures.share() - empty.share():.3f}   {thread}", flush=True)
    return [report, whole]


def train(server: str, url: str, count: int) -> Figures:
    """Prints the line of a small GPT that trains on one core."""
    import torch
    from examples.gpt import SmallGpt, batches, loss_of

    torch.set_num_threads(1)
    model = SmallGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    figures, empty = Figures(), Figures()
    with eadt.job(model, optimizer, layers="auto", url=url, workload="bench/gpt") as job:
        begun = time.perf_counter()
        for index, text in enumerate(batches(2 * count)):
            kept = []

            def step(text: torch.Tensor = text, kept: list[torch.Tensor] = kept) -> None:
                optimizer.zero_grad()
                loss = loss_of(model, text)
                loss.backward()
                optimizer.step()
                kept.append(loss)

            if index % 2:
                figures.add(step, lambda kept=kept: job.step(samples=8, loss=kept[0]))
            else:
                empty.add(step, nothing)
        seconds, own = time.perf_counter() - begun, thread_seconds(job.client)
    thread = "-" if own is None else f"{own / seconds * 100:.3f}"
    length = statistics.median(figures.steps) * 1e3
    line = f"small GPT {length:5.1f}   {server:<8} job.step {figures.median():7.1f} {figures.high():7.1f} {empty.median():7.1f}"
    print(f"{line}   {figures.share():.3f}   {figures.share() - empty.share():.3f}   {thread}", flush=True)
    return figures


def main() -> None:
    logging.getLogger("eadt").setLevel(logging.CRITICAL)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    hanging, resetting, answering, failing = Harmful("hang"), Harmful("reset"), Recorder(), Recorder(500)
    servers = {"answers": answering.url, "absent": absent_url(), "hangs": hanging.url, "500": failing.url, "resets": resetting.url}
    print("step       ms     server   call      median     p99   empty   share    net   thread")
    print("                                         µs      µs      µs       %      %        %")
    every: list[Figures] = []
    for kind, step in (("waits", wait), ("computes", compute)):
        for server, url in servers.items():
            every += measure(server, url, kind, step, count)
    if importlib.util.find_spec("torch") is not None:
        every += [train(server, url, count) for server, url in servers.items()]
    worst, share = max(figures.median() for figures in every), max(figures.share() for figures in every)
    print(f"highest median {worst:.1f} µs (asked: {GOAL_MICROSECONDS:.0f}), highest share {share:.3f} % (asked: {GOAL_PER_CENT} %)")
    print("share: of the steps' time, by the mean; net: less that of an empty function; thread: CPU of the client's thread, of one core")


if __name__ == "__main__":
    main()
