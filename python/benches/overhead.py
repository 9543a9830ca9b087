"""What ``report()`` costs a step, against a server that is absent, hangs, or answers.

Run in the folder ``python``: ``PYTHONPATH=src:. python3 benches/overhead.py``.
"""

from __future__ import annotations

import logging
import statistics
import time

from tests.servers import Harmful, Recorder, absent_url

from eadt import Client

STEPS = 1000
STEP_SECONDS = 0.010


def measure(url: str) -> tuple[float, float, float]:
    """Returns median and 99th percentile of a report in microseconds, and its mean as per cent of a step of 10 ms."""
    client = Client(url, "bench/sdk")
    client.mark(phase="started")
    durations = []
    for step in range(STEPS):
        begun = time.perf_counter()
        client.report(steps_total=step, samples_total=8.0 * step, loss=0.5, precision="bf16", learning_rate=1e-4)
        durations.append(time.perf_counter() - begun)
        time.sleep(STEP_SECONDS)
    client.close(phase="finished")
    ordered = sorted(durations)
    return ordered[STEPS // 2] * 1e6, ordered[STEPS * 99 // 100] * 1e6, statistics.mean(durations) / STEP_SECONDS * 100


def main() -> None:
    logging.getLogger("eadt").setLevel(logging.CRITICAL)
    hanging, answering = Harmful("hang"), Recorder()
    print("server    median µs   p99 µs   mean, % of a 10 ms step")
    for name, url in (("absent", absent_url()), ("hangs", hanging.url), ("answers", answering.url)):
        median, high, share = measure(url)
        print(f"{name:<9} {median:9.1f} {high:8.1f}   {share:.3f}")


if __name__ == "__main__":
    main()
