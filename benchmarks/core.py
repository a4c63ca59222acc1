"""The core's bars: the serial engine against a bare loop, and memory with very many clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.bare import bare_round
from benchmarks.cases import prepared, rounds_of
from benchmarks.harness import Figure, in_turns, ratio

SERIAL = [  # model, batch, clients, samples per client
    ("cnn", 10, 2, 200),
    ("lenet5", 32, 4, 320),
    ("mlp", 10, 20, 0),
]


def serial_against_bare(repeats: int = 15, scale: float = 1.0) -> Iterator[Figure]:
    """A FedAvg round of the serial engine against the same steps in bare PyTorch."""
    for model, batch, clients, samples in SERIAL:
        case = prepared("fedavg", model, batch, 1, clients, int(samples * scale))
        ours, _ = rounds_of(case)
        problem = case.problem()
        seconds = in_turns(
            {"ours": ours, "bare": lambda p=problem, c=clients: bare_round(p, list(range(c)), 0.01)}, repeats
        )
        name = f"serial engine, {model}, batch {batch}"
        yield ratio(name, seconds["ours"], seconds["bare"], ("serial engine", "bare loop"), bar=1.05)


MEMORY = """
import json, sys
from benchmarks.harness import peak_bytes, random_images
from coterie.runs.experiment import Experiment
from coterie.partition import Iid
clients, samples = int(sys.argv[1]), int(sys.argv[2])
def run(k, data):
    Experiment(method="fedavg", data=data, partition=Iid(clients=k), model="lenet5", join=0.01, rounds=2,
               epochs=1, evaluate_every=2).run()
data = random_images(samples, (3, 32, 32))
baseline = peak_bytes()
run(clients, data)
print(json.dumps({"baseline": baseline, "peak": peak_bytes()}))
"""


def memory_of_many_clients(clients: int = 10_000, samples: int = 30_000) -> Iterator[Figure]:
    """Peak memory beyond the data (and the libraries) of FedAvg with 1 % of very many clients, in MB."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(clients), str(samples)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    beyond = (found["peak"] - found["baseline"]) / 1e6
    name = f"FedAvg, lenet5, {clients} clients, 1 % join: MB beyond the data"
    yield Figure(name, "peak memory", "data and libraries loaded", beyond, beyond, beyond, bar=500.0)
