"""A table of visits to three clinics: every clinic becomes a client."""

import csv
from pathlib import Path

import numpy as np

import coterie as ct

# A table as it might come from somewhere: a column is the label, one says whose the row is, all others are features.
draw = np.random.default_rng(0)
with Path("visits.csv").open("w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["age", "pressure", "outcome", "clinic"])
    for row in range(300):
        age, pressure = draw.normal(size=2)
        clinic = "ABC"[row % 3]
        limit = {"A": -0.5, "B": 0.0, "C": 0.5}[clinic]  # clinics judge differently: one model cannot please all
        table.writerow([f"{age:.3f}", f"{pressure:.3f}", "sick" if pressure > limit else "well", clinic])

data = ct.load_own("visits.csv", label="outcome", client="clinic")
print(data)
for method in ("fedavg", "fedper"):
    result = ct.Experiment(method, data, ct.ByClient(), rounds=20, lr=0.1, threads=1).run()
    print(method, f"{result.accuracy().received.mean['last']:.2f}")
