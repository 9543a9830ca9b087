"""Runs the code of a notebook in a folder, and prints as JSON what it found: the rows of `energy`, how much each figure shows, windows with a restart, and the power of two idle GPUs.

usage: run_notebook.py NOTEBOOK FOLDER
"""

import json
import math
import os
import pathlib
import sys

os.environ["MPLBACKEND"] = "Agg"
import matplotlib.pyplot as plt
import polars as pl

notebook, folder = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
os.chdir(folder)
code = ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
names = {}
sys.stdout = sys.stderr
for number, text in enumerate(code):
    exec(compile(text, f"{notebook.name}, code cell {number}", "exec"), names)
sys.stdout = sys.__stdout__


def marks(axis):
    points = sum(len(line.get_xdata()) for line in axis.lines)
    return points + len(axis.patches) + sum(len(group.get_offsets()) for group in axis.collections)


def idle_power():
    """Returns the power of two GPUs without a workload, of 50 W and 90 W, as picture 1 has it, and whether its time ever goes back."""
    windows = names["windows"]
    one = windows.filter(pl.col("workload") == windows["workload"][0]).unique("window_start", maintain_order=True).head(3)
    one = one.with_columns(pl.lit("gpus").alias("workload"), pl.lit(50.0).alias("mean_power_watts"))
    other = one.with_columns(pl.lit(90.0).alias("mean_power_watts"))
    names["windows"] = pl.concat([one, other]).sort("window_start")
    line = names["timeline"]("gpus").axes[0].lines[0]
    times, watts = list(line.get_xdata()), {float(value) for value in line.get_ydata() if not math.isnan(value)}
    return {"watts": sorted(watts), "goes_back": times != sorted(times)}


figures = [[marks(axis) for axis in plt.figure(number).axes] for number in plt.get_fignums()]
found = {"energy": names["energy"].to_dicts(), "figures": figures, "layouts": len(names["layouts"]), "saved": names["saved"].to_dicts()}
found["restarted"] = int(names["windows"]["restarted"].sum())
print(json.dumps(found | {"idle": idle_power()}))
