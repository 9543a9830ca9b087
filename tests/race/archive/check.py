"""What the Parquet files of a folder hold: rows, distinct places in the log, CloudEvents ids and times, and the sums of all energy counters
and of all counters of samples.

check.py FOLDER
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PLACE = ["kafka_topic", "kafka_partition", "kafka_offset"]
ATTRIBUTES = ["ce_id", "ce_time"]
COUNTERS = ["energy_joules_total", "samples_total"]


def main():
    rows, places, given, sums = 0, {}, dict.fromkeys(ATTRIBUTES, 0), dict.fromkeys(COUNTERS, 0.0)
    for path in Path(sys.argv[1]).rglob("*.parquet"):
        file = pq.ParquetFile(path)
        names = set(file.schema_arrow.names)
        found = file.read(PLACE + [name for name in ATTRIBUTES + COUNTERS if name in names])
        rows += found.num_rows
        for topic, partition in {(topic.as_py(), partition.as_py()) for topic, partition in pairs(found)}:
            here = pc.and_(pc.equal(found["kafka_topic"], topic), pc.equal(found["kafka_partition"], partition))
            places.setdefault((topic, partition), []).append(found["kafka_offset"].filter(here))
        for name in names.intersection(ATTRIBUTES):
            given[name] += found.num_rows - found[name].null_count
        for name in names.intersection(COUNTERS):
            sums[name] += pc.sum(found[name]).as_py() or 0.0
    distinct = sum(pc.count_distinct(pa.chunked_array([c for o in offsets for c in o.chunks])).as_py() for offsets in places.values())
    ids, times = given.values()
    joules, samples = sums.values()
    print(f"{rows} rows, {distinct} places, {ids} ids, {times} times, {joules:.6e} J, {samples:.6e} samples")


def pairs(found):
    groups = found.select(PLACE[:2]).group_by(PLACE[:2]).aggregate([])
    return zip(groups["kafka_topic"], groups["kafka_partition"])


if __name__ == "__main__":
    main()
