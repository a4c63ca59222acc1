"""What the five methods cost: a round against a FedAvg or FedPer round, and the server step at scale."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.cases import prepared, rounds_of
from benchmarks.harness import Figure, in_turns, ratio
from coterie.engines import make_engine
from coterie.methods import METHODS, FedReMa, Method, PFedCS, PFedSim
from coterie.rounds.judge import Judge
from coterie.rounds.round import Rounds

AGAINST = {"fedtc": ("fedper", 1.15), "pfedcs": ("fedper", 1.35)}
FIVE = ("pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc")


def five(name: str) -> Method:
    """The method in the phase whose server step is the dearest."""
    return {"pfedcs": PFedCS(beta=900), "pfedsim": PFedSim(rho=0.0), "fedrema": FedReMa(delta=0.0)}.get(
        name, METHODS[name]()
    )


def rounds_against_plain(repeats: int = 7, samples: int = 500, epochs: int = 5) -> Iterator[Figure]:
    """A whole round of each method (cnn on CIFAR-10-sized data, batch 100, 5 epochs) against its plain relative."""
    runs = {}
    for name in (*FIVE, "fedavg", "fedper"):
        runs[name], _ = rounds_of(prepared(five(name), "cnn", 100, epochs, 2, samples), at=2)
    seconds = in_turns(runs, repeats)
    for name in FIVE:
        against, bar = AGAINST.get(name, ("fedavg", 1.05))
        yield ratio(f"round of {name}, cnn, batch 100", seconds[name], seconds[against], (name, against), bar)


def exchange_share(clients: int = 20, samples: int = 500, epochs: int = 5) -> Iterator[Figure]:
    """The exchange's share of a round: cnn, batch 100, the papers' 5 epochs, few samples a client."""
    for name in FIVE:
        case = prepared(five(name), "cnn", 100, epochs, clients, samples)
        problem, federation = case.problem(), case.federation()
        engine = make_engine("serial", problem, case.method, 0)
        judge = Judge(case.method, federation, engine, evaluate_every=10**6)
        rounds = Rounds(case.method, federation, engine, judge=judge)
        federation.round = 1
        spent = [rounds.run_round().seconds]
        share = sum(one["exchange"] for one in spent) / sum(one["exchange"] + one["train"] for one in spent)
        label = f"{name}: share of the exchange, {clients} clients, cnn"
        yield Figure(label, "exchange", "round", share, share, share, bar=0.02)


AT_SCALE = """
import json, sys, time
import torch
from benchmarks.cases import noisy_uploads, prepared, server_step
from benchmarks.harness import peak_bytes
from benchmarks.methods import five

name, clients, model = sys.argv[1], int(sys.argv[2]), sys.argv[3]
method = five(name)
case = prepared(method, model, 32, 1, clients, 2)
before = peak_bytes()
federation = case.federation()
federation.round = 2
rows = torch.empty(clients, federation["model"].width)
for row in rows:
    row.copy_(federation.initial).add_(torch.randn(len(row)), alpha=0.01)
uploads = noisy_uploads(method, federation, rows)
begin = time.perf_counter()
server_step(method, federation, uploads)
seconds = time.perf_counter() - begin
print(json.dumps({"seconds": seconds, "memory": (peak_bytes() - before) / (rows.numel() * 4)}))
"""


def server_steps(clients: int = 1000, model: str = "lenet5", names: tuple[str, ...] = FIVE) -> Iterator[Figure]:
    """Each method's exchange for very many clients: seconds, and all rows in memory against the stacked rows."""
    for name in names:
        done = subprocess.run(
            [sys.executable, "-c", AT_SCALE, name, str(clients), model], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        label = f"{name}: server step, {clients} clients, {model}"
        for unit, against in (("seconds", "one second"), ("memory", "the stacked rows")):
            yield Figure(f"{label}, {unit}", "exchange", against, *[found[unit]] * 3, bar=3.0)
