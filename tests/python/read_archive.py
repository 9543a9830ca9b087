"""Reads an archive the way analysts do and compares it with what was written.

usage: read_archive.py ARCHIVE EXPECTED.json

EXPECTED has, by topic: rows, dates, files, sums by column, counts of values that are not null by column, types by column.
Ends with exit code 0 and one line a reader, or with the first difference.
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

# The types that the archive promises, as each reader names them.
TYPES = {
    "time": (pa.timestamp("us", tz="UTC"), "TIMESTAMP WITH TIME ZONE", pl.Datetime("us", "UTC")),
    "float": (pa.float64(), "DOUBLE", pl.Float64),
    "int": (pa.int64(), "BIGINT", pl.Int64),
    "bool": (pa.bool_(), "BOOLEAN", pl.Boolean),
    "text": (pa.string(), "VARCHAR", pl.String),
    "bytes": (pa.binary(), "BLOB", pl.Binary),
}


def same(what, got, expected):
    if isinstance(expected, float):
        equal = got is not None and math.isclose(got, expected, rel_tol=1e-9)
    else:
        equal = got == expected
    if not equal:
        sys.exit(f"{what}: got {got!r}, expected {expected!r}")


def quoted(name):
    return '"' + name + '"'


def with_pyarrow(folder, topic, expected):
    table = ds.dataset(folder, format="parquet", partitioning=ds.partitioning(flavor="hive")).to_table()
    same(f"pyarrow {topic} rows", table.num_rows, expected["rows"])
    same(f"pyarrow {topic} dates", sorted(set(map(str, table["date"].to_pylist()))), expected["dates"])
    for column, kind in expected["types"].items():
        same(f"pyarrow {topic} type of {column}", table.schema.field(column).type, TYPES[kind][0])
    for column, total in expected["sums"].items():
        same(f"pyarrow {topic} sum of {column}", pc.sum(table[column]).as_py(), total)
    for column, count in expected["counts"].items():
        same(f"pyarrow {topic} count of {column}", pc.count(table[column]).as_py(), count)
    places = set(zip(table["kafka_partition"].to_pylist(), table["kafka_offset"].to_pylist()))
    same(f"pyarrow {topic} places", len(places), expected["rows"])


def with_duckdb(folder, topic, expected):
    source = f"read_parquet('{folder}/*/*.parquet', hive_partitioning = true, union_by_name = true)"
    rows, places = duckdb.sql(f"select count(*), count(distinct (kafka_partition, kafka_offset)) from {source}").fetchall()[0]
    same(f"duckdb {topic} rows", rows, expected["rows"])
    same(f"duckdb {topic} places", places, expected["rows"])
    dates = duckdb.sql(f"select distinct date::varchar from {source} order by 1").fetchall()
    same(f"duckdb {topic} dates", [date for (date,) in dates], expected["dates"])
    types = {name: kind for name, kind, *_ in duckdb.sql(f"describe select * from {source}").fetchall()}
    for column, kind in expected["types"].items():
        same(f"duckdb {topic} type of {column}", types[column], TYPES[kind][1])
    for column, total in expected["sums"].items():
        (got,) = duckdb.sql(f"select sum({quoted(column)}) from {source}").fetchall()[0]
        same(f"duckdb {topic} sum of {column}", got, total)
    for column, count in expected["counts"].items():
        (got,) = duckdb.sql(f"select count({quoted(column)}) from {source}").fetchall()[0]
        same(f"duckdb {topic} count of {column}", got, count)


def with_polars(folder, topic, expected):
    frame = pl.scan_parquet(f"{folder}/**/*.parquet", hive_partitioning=True).collect()
    same(f"polars {topic} rows", frame.height, expected["rows"])
    same(f"polars {topic} dates", sorted(map(str, frame["date"].unique())), expected["dates"])
    same(f"polars {topic} places", frame.select("kafka_partition", "kafka_offset").unique().height, expected["rows"])
    for column, kind in expected["types"].items():
        same(f"polars {topic} type of {column}", frame.schema[column], TYPES[kind][2])
    for column, total in expected["sums"].items():
        same(f"polars {topic} sum of {column}", frame[column].sum(), total)
    for column, count in expected["counts"].items():
        same(f"polars {topic} count of {column}", frame[column].count(), count)


def mixed_versions(folder, topic, expected, column):
    """Half of the files lack a column, as those of an older version do."""
    files = sorted(Path(folder).glob("*/*.parquet"))
    with tempfile.TemporaryDirectory() as scratch:
        new, old = [], []
        for number, file in enumerate(files):
            if number % 2 == 0:
                new.append(str(file))
            else:
                older = Path(scratch) / file.name
                pq.write_table(pq.ParquetFile(file).read().drop_columns([column]), older)
                old.append(str(older))
        if not old:
            sys.exit(f"{topic} has one file only: nothing to mix")
        listed = ", ".join(f"'{file}'" for file in new + old)
        (rows,) = duckdb.sql(f"select count(*) from read_parquet([{listed}], union_by_name = true)").fetchall()[0]
        same(f"duckdb {topic} of two versions", rows, expected["rows"])
        frame = pl.scan_parquet(new + old, missing_columns="insert").collect()
        same(f"polars {topic} of two versions", frame.height, expected["rows"])
        schema = pa.unify_schemas([pq.read_schema(file) for file in new + old])
        same(f"pyarrow {topic} of two versions", ds.dataset(new + old, schema=schema).count_rows(), expected["rows"])


def main():
    root, expected = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    for topic, what in expected.items():
        folder = f"{root}/topic={topic}"
        for file in Path(folder).glob("*/*.parquet"):
            metadata = pq.ParquetFile(file).metadata
            groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            same(f"{file.name}: row groups under 122,880 rows before the last", [g for g in groups[:-1] if g != 122_880], [])
            same(f"{file.name}: compression", metadata.row_group(0).column(0).compression, "ZSTD")
        with_pyarrow(folder, topic, what)
        with_duckdb(folder, topic, what)
        with_polars(folder, topic, what)
    mixed_versions(f"{root}/topic=gpu.telemetry.v1", "gpu.telemetry.v1", expected["gpu.telemetry.v1"], "mps_enabled")
    print(f"pyarrow {pa.__version__}, duckdb {duckdb.__version__}, polars {pl.__version__}: {len(expected)} topics agree")


if __name__ == "__main__":
    main()
