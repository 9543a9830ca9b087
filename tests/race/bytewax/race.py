"""Joules and samples of each workload in windows of ten seconds, by Bytewax; at least once, since it knows no transactions.

race.py BROKERS PREFIX OUTPUT EVENTS STATE_FOLDER. Ends at the end of the topics.
"""

import json
import sys
from dataclasses import dataclass, field
from datetime import datetime

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSource, KafkaSink
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main

WINDOW = 10_000_000
GRACE = 2_000_000
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def micros(text):
    since = datetime.fromisoformat(text) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@dataclass
class Workload:
    devices: dict = field(default_factory=dict)
    open: dict = field(default_factory=dict)
    progress: tuple | None = None
    telemetry_micros: int = 0
    progress_micros: int = 0

    def add(self, before, now, place):
        """Adds what a counter rose by to the windows that the time touches."""
        (begin, old), (end, new) = before, now
        start = begin - begin % WINDOW
        while start < end:
            part = (min(end, start + WINDOW) - max(begin, start)) / (end - begin)
            if part > 0:
                self.open.setdefault(start, [0.0, 0.0])[place] += (new - old) * part
            start += WINDOW


def fold(workload, value):
    """Takes an event; returns the windows that it closes. Both inputs must have passed the end of a window."""
    workload = workload or Workload()
    event = json.loads(value)
    now = micros(event["time"])
    if "device" in event:
        sample = (now, event["energy_joules_total"])
        before = workload.devices.get(event["device"])
        if before is not None and before[0] < now:
            workload.add(before, sample, 0)
        workload.devices[event["device"]] = sample
        workload.telemetry_micros = max(workload.telemetry_micros, now)
    else:
        sample = (now, event["samples_total"])
        if workload.progress is not None and workload.progress[0] < now:
            workload.add(workload.progress, sample, 1)
        workload.progress = sample
        workload.progress_micros = max(workload.progress_micros, now)
    passed = min(workload.telemetry_micros, workload.progress_micros) - GRACE
    due = [start for start in workload.open if start + WINDOW <= passed]
    return workload, [(start, *workload.open.pop(start)) for start in sorted(due)]


def line(item):
    key, (start, joules, samples) = item
    text = json.dumps({"workload": key, "start_micros": start, "energy_joules": joules, "samples": samples})
    return KafkaSinkMessage(key=key.encode(), value=text.encode())


def main():
    brokers, prefix, output = sys.argv[1:4]
    flow = Dataflow("race")
    topics = [prefix + "gpu.telemetry.v1", prefix + "training.progress.v1"]
    source = KafkaSource([brokers], topics, tail=False, batch_size=2000)
    read = op.input("read", flow, source)
    keyed = op.flat_map("key", read, lambda m: [(m.key.decode(), m.value)] if m.value and len(m.value) > 2 else [])
    windows = op.stateful_flat_map("fold", keyed, fold)
    op.output("write", op.map("line", windows, line), KafkaSink([brokers], output))
    run_main(flow)


if __name__ == "__main__":
    main()
