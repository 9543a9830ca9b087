"""Reads an archive with pyarrow and prints, as JSON, which offsets of each topic's partitions it holds.

usage: places.py ARCHIVE

{"TOPIC": {"PARTITION": [[FIRST, LAST], ...]}}: runs of offsets in ascending order. An offset that is there twice is in two runs.
Every column of every row is read, so that a file that is torn anywhere ends this with an error.
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq


def runs(offsets):
    found = []
    for offset in sorted(offsets):
        if found and offset == found[-1][1] + 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return found


def main():
    topics = {}
    for file in sorted(Path(sys.argv[1]).glob("topic=*/*/*.parquet")):
        table = pq.ParquetFile(file).read()
        table.validate(full=True)
        partitions = topics.setdefault(file.parent.parent.name.removeprefix("topic="), {})
        for partition, offset in zip(table["kafka_partition"].to_pylist(), table["kafka_offset"].to_pylist()):
            partitions.setdefault(partition, []).append(offset)
    print(json.dumps({topic: {partition: runs(offsets) for partition, offsets in sorted(of.items())} for topic, of in topics.items()}))


if __name__ == "__main__":
    main()
