"""Answers of DuckDB to a query over the archive in PLACE/eadt-data, as JSON on standard output.

usage: ask_duckdb.py PLACE VIEWS.sql QUERY.sql
"""

import os
import pathlib
import sys

import duckdb

place, views, query = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
os.chdir(place)
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'")
connection.execute(views.read_text())
connection.execute(f"COPY ({query.read_text()}) TO 'answer.json' (FORMAT json, ARRAY true)")
print(pathlib.Path("answer.json").read_text())
