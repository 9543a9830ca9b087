"""Every record of three topics as Parquet, sorted by event time, by confluent-kafka and pyarrow; at least once.

archive.py BROKERS PREFIX GROUP EVENTS FOLDER. Ends after so many records. Values are read by pyarrow's JSON reader, a batch at a
time; a file is synced and renamed before its offsets are committed.
"""

import io
import os
import sys
from collections import defaultdict

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

TOPICS = ["gpu.telemetry.v1", "training.progress.v1", "workloads.v1"]
ROW_GROUP = 122_880
ROWS = 2 * ROW_GROUP
BATCH = 10_000


def fields(texts, whole, numbers):
    kinds = ((texts, pa.string()), (whole, pa.int64()), (numbers, pa.float64()))
    return [(name, kind) for names, kind in kinds for name in names.split()]


def reading(known, **more):
    """How values of a topic are read: the types of fields that are known, so that every batch has the same; others are inferred."""
    schema = pa.schema([("time", pa.timestamp("us", "UTC")), *known, *more.items()])
    return pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer")


# Parquet has no object without fields, which is what a workload without a layout or bounds has.
LAYOUT = pa.struct(fields(
    "precision",
    "replicas mps_thread_percentage world_size local_world_size frozen_prefix_layers",
    "power_limit_watts sm_clock_mhz",
))
BOUNDS = pa.struct([
    *fields(
        "",
        "mps_thread_percentage_min mps_thread_percentage_max replicas_min replicas_max oversubscription_percentage_max "
        "frozen_prefix_layers_max restarts_per_day_max",
        "power_limit_watts_min power_limit_watts_max sm_clock_mhz_min sm_clock_mhz_max",
    ),
    ("precisions", pa.list_(pa.string())),
])


READING = {
    "gpu.telemetry.v1": reading(fields(
        "workload device collector meter origin node gpu_model",
        "gpu_index memory_used_bytes memory_total_bytes",
        "power_watts energy_joules_total utilization_ratio sm_active_ratio dram_active_ratio sm_clock_mhz memory_clock_mhz "
        "temperature_celsius power_limit_watts",
    )),
    "training.progress.v1": reading(fields("workload collector scope origin phase", "rank", "samples_total steps_total loss")),
    "workloads.v1": reading(fields("workload origin kind mode", "generation", ""), layout=LAYOUT, bounds=BOUNDS, paused=pa.bool_()),
}


def table(topic, messages):
    """The records as columns: fields of the value, CloudEvents attributes of the headers, and place in the log."""
    values = pj.read_json(io.BytesIO(b"\n".join(message.value() for message in messages)), parse_options=READING[topic])
    headers = [dict(message.headers()) for message in messages]
    columns = {name: values.column(name) for name in values.column_names}
    for name in ("type", "source", "id", "time", "subject"):
        texts = pa.array([header.get("ce_" + name) for header in headers], pa.binary()).cast(pa.string())
        columns["ce_" + name] = texts.cast(pa.timestamp("us", "UTC")) if name == "time" else texts
    columns["kafka_topic"] = pa.array([topic] * len(messages))
    columns["kafka_partition"] = pa.array([message.partition() for message in messages], pa.int64())
    columns["kafka_offset"] = pa.array([message.offset() for message in messages], pa.int64())
    columns["kafka_key"] = pa.array([message.key() for message in messages], pa.binary()).cast(pa.string())
    columns["kafka_timestamp"] = pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms", "UTC"))
    return pa.table(columns)


def write(folder, topic, partition, tables):
    """Writes one file, which is there as a whole or not at all."""
    rows = pa.concat_tables(tables, promote_options="default")
    rows = rows.sort_by([("ce_time", "ascending"), ("kafka_offset", "ascending")])
    first = rows["kafka_offset"][0].as_py()
    path = os.path.join(folder, f"{topic}-{partition}-{first}.parquet")
    with open(path + ".unfinished", "wb") as file:
        pq.write_table(rows, file, compression="zstd", compression_level=3, row_group_size=ROW_GROUP)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".unfinished", path)


def main():
    brokers, prefix, group, events, folder = sys.argv[1:6]
    os.makedirs(folder, exist_ok=True)
    consumer = Consumer({
        "bootstrap.servers": brokers,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": 65536,
    })
    consumer.subscribe([prefix + topic for topic in TOPICS])
    waiting, tables, rows, left = defaultdict(list), defaultdict(list), defaultdict(int), int(events)

    def roll(place):
        topic, partition = place
        write(folder, topic.removeprefix(prefix), partition, tables.pop(place))
        consumer.commit(offsets=[TopicPartition(topic, partition, ends[place])], asynchronous=False)
        rows[place] = 0

    def pack(place):
        messages = waiting.pop(place)
        tables[place].append(table(place[0].removeprefix(prefix), messages))
        rows[place] += len(messages)
        if rows[place] >= ROWS:
            roll(place)

    ends = {}
    while left > 0:
        for message in consumer.consume(BATCH, 1.0):
            if message.error():
                raise SystemExit(str(message.error()))
            place = (message.topic(), message.partition())
            waiting[place].append(message)
            ends[place] = message.offset() + 1
            left -= 1
        for place in [place for place, messages in waiting.items() if len(messages) >= BATCH]:
            pack(place)
    for place in list(waiting):
        pack(place)
    for place in list(tables):
        roll(place)
    consumer.close()


if __name__ == "__main__":
    main()
