"""Runs the code of a notebook in a folder, and prints as JSON what it found: the rows of `energy`, how much each figure shows, and windows with a restart.

usage: run_notebook.py NOTEBOOK FOLDER
"""

import json
import os
import pathlib
import sys

os.environ["MPLBACKEND"] = "Agg"
import matplotlib.pyplot as plt

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


figures = [[marks(axis) for axis in plt.figure(number).axes] for number in plt.get_fignums()]
found = {"energy": names["energy"].to_dicts(), "figures": figures, "layouts": len(names["layouts"]), "saved": names["saved"].to_dicts()}
print(json.dumps(found | {"restarted": int(names["windows"]["restarted"].sum())}))
