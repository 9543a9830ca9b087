"""What a data set of `eadt dataset build` says about changes, in pandas, Polars and DuckDB.

usage: dataset.py DIR
"""

import json
import pathlib
import sys

import duckdb
import pandas
import polars

folder = pathlib.Path(sys.argv[1])
manifest = json.loads((folder / "dataset.json").read_text())


# %% Roles: only features and decisions may go into a model; outcomes and labels were known later.
def columns(table, *roles):
    return [c["name"] for c in manifest["tables"][table]["columns"] if c["role"] in roles]


# %% pandas: which changes paid?
decisions = pandas.read_parquet(folder / "decisions.parquet")
judged = decisions.dropna(subset=["label_saving_ratio"])
print("Changes with a known result, by action (negative: it cost energy)")
print(judged.groupby("action")[["label_saving_ratio", "label_throughput_ratio"]].agg(["count", "mean"]).to_string())

# %% Polars: J/sample by layout, of settled windows only.
windows = polars.read_parquet(folder / "windows.parquet")
by_layout = (
    windows.filter(polars.col("usable"))
    .group_by("workload", "layout_replicas", "layout_mps_thread_percentage", "layout_power_limit_watts")
    .agg(
        polars.len().alias("windows"),
        (polars.col("energy_joules").sum() / polars.col("samples").sum()).alias("joules_per_sample"),
    )
    .sort("workload", "joules_per_sample")
)
print("\nJ/sample by layout")
print(by_layout.to_pandas().to_string(index=False))

# %% DuckDB: the same with SQL.
print("\nDecisions and what became of them")
sql = f"""
    select action, outcome, count(*) as n, round(avg(downtime_seconds), 1) as mean_downtime_seconds
    from read_parquet('{folder / "decisions.parquet"}') group by all order by all
"""
for row in duckdb.sql(sql).fetchall():
    print(*row, sep="\t")

# %% A first model: does the last reading tell the next one? Features only, as the roles say.
features = [c for c in columns("windows", "feature") if windows[c].dtype == polars.Float64]
assert not [c for c in features if c.startswith("label_")]
pairs = windows.filter(polars.col("usable")).drop_nulls(["label_next_joules_per_sample", "trailing_median_joules_per_sample"])
error = (pairs["trailing_median_joules_per_sample"] - pairs["label_next_joules_per_sample"]).abs()
ratio = (error / pairs["label_next_joules_per_sample"]).median()
print(f"\n{len(pairs)} windows with a successor; the trailing median misses the next J/sample by {ratio:.1%} (median)")
print(f"{len(features)} numeric features; fingerprint {manifest['fingerprint'][:12]}; {manifest['counts']['windows_by_origin']}")
