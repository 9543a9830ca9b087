"""scikit-learn's Extra Trees on the rows of two CSV files (the last column is the target), on one thread.

Reads commands from standard input, prints CPU seconds: "fit N" grows both forests N times, "predict N" asks both for the first
rows of a pair N times.
"""

import sys
import time

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

rates, power = (np.loadtxt(path, delimiter=",") for path in sys.argv[1:3])
pair = {"rates": rates[:18, :-1], "power": power[:9, :-1]}
settings = {"n_estimators": 100, "max_features": 1.0, "n_jobs": 1, "random_state": 0}


def fit():
    return [ExtraTreesRegressor(**settings).fit(table[:, :-1], table[:, -1]) for table in (rates, power)]


forests = fit()
print("ready", flush=True)
for line in sys.stdin:
    command, times = line.split()
    start = time.thread_time()
    for _ in range(int(times)):
        if command == "fit":
            fit()
        else:
            forests[0].predict(pair["rates"])
            forests[1].predict(pair["power"])
    print((time.thread_time() - start) / int(times), flush=True)
