"""Answers of DuckDB to a query over an archive, as JSON on standard output.

usage: ask_duckdb.py ARCHIVE QUERY.sql
"""

import pathlib
import re
import sys
import tempfile

import duckdb

archive, query = map(pathlib.Path, sys.argv[1:3])
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'")
for folder in sorted(archive.glob("topic=*")):
    name = re.sub("[^a-z0-9]", "_", folder.name.removeprefix("topic=").lower())
    files = f"'{folder}/*/*.parquet'"
    connection.execute(
        f"CREATE VIEW {name} AS SELECT * FROM read_parquet({files}, hive_partitioning = true, union_by_name = true)"
    )
with tempfile.TemporaryDirectory() as place:
    answer = pathlib.Path(place) / "answer.json"
    connection.execute(f"COPY ({query.read_text()}) TO '{answer}' (FORMAT json, ARRAY true)")
    print(answer.read_text())
