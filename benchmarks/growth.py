"""How time and memory grow: exponents, that is slopes on doubly logarithmic scales (1: in proportion)."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from benchmarks.cases import noisy_uploads, prepared, server_step
from benchmarks.harness import Figure, in_turns, random_images
from benchmarks.methods import FIVE, five
from coterie.engines import make_engine
from coterie.partition import Iid
from coterie.rounds.round import Rounds
from coterie.runs.experiment import Experiment

COUNTS = (50, 100, 200, 400)
# Proportional growth, and that of comparing all pairs of clients, with room for the noise of a measurement.
LINEAR, QUADRATIC = 1.15, 2.15


def exponent(sizes: Sequence[int], amounts: Sequence[float]) -> float:
    """The slope of log(amount) over log(size).

    >>> round(exponent([1, 2, 4], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(amounts), 1)[0])


def growth(name: str, axis: str, sizes: Sequence[int], amounts: Sequence[Sequence[float]], bar: float) -> Figure:
    """The exponent of the medians of `amounts` (those of every size), and quartiles of the repetitions' exponents."""
    value = exponent(sizes, [statistics.median(repetitions) for repetitions in amounts])
    each = [exponent(sizes, one) for one in zip(*amounts, strict=True)]
    low, high = (statistics.quantiles(each, n=4)[i] for i in (0, 2)) if len(each) > 1 else (value, value)
    where = f"{name} with {sizes[0]} … {sizes[-1]} {axis}"
    return Figure(where, "log amount", f"log {axis}", value, low, high, bar)


def server_steps_of(name: str, clients: int, model: str) -> Callable[[], None]:
    """A function that makes one exchange of a method for so many clients."""
    method = five(name)
    case = prepared(method, model, 32, 1, clients, 2)
    federation = case.federation()
    federation.round = 2
    rows = federation.initial + 0.01 * torch.randn(clients, federation["model"].width)
    uploads = noisy_uploads(method, federation, rows)
    return lambda: server_step(method, federation, uploads)


def server_seconds(
    counts: Sequence[int] = COUNTS, repeats: int = 5, model: str = "lenet5", methods: Sequence[str] = FIVE
) -> Iterator[Figure]:
    """Seconds of each method's server step against the number of clients."""
    for name in methods:
        seconds = in_turns({str(count): server_steps_of(name, count, model) for count in counts}, repeats)
        yield growth(f"{name}: server step", "clients", counts, list(seconds.values()), QUADRATIC)


MEMORY = """
import json, sys
from pathlib import Path
from benchmarks.growth import server_steps_of
name, model, counts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
def kilobytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
server_steps_of(name, 10, model)()
Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
before, peaks = kilobytes("VmRSS"), []
for count in counts:
    server_steps_of(name, count, model)()
    peaks.append(kilobytes("VmHWM") - before)
print(json.dumps(peaks))
"""


def server_memory(
    counts: Sequence[int] = COUNTS, model: str = "lenet5", methods: Sequence[str] = FIVE
) -> Iterator[Figure]:
    """Peak memory of each method's federation, uploads and server step against the number of clients (on Linux)."""
    for name in methods if sys.platform == "linux" else ():
        command = [sys.executable, "-c", MEMORY, name, model, json.dumps(counts)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks = [[float(amount)] for amount in json.loads(done.stdout.splitlines()[-1])]
        yield growth(f"{name}: memory", "clients", counts, peaks, LINEAR)


def rounds_for(name: str, clients: int, samples: int) -> Rounds:
    """Rounds of a method (mlp, 8×8 images, batch 10, one epoch), everybody tested every round."""
    case = Experiment(
        method=five(name),
        data=random_images(clients * samples, (1, 8, 8)),
        partition=Iid(clients=clients),
        batch=10,
        epochs=1,
        rounds=1000,
    ).prepare()
    federation = case.federation()
    federation.round = 2
    return Rounds(case.method, federation, make_engine("serial", case.problem(), case.method, seed=0))


def seconds_of_rounds(name: str, counts: Sequence[int], clients: int, samples: int) -> list[float]:
    """Seconds of one run until it has done so many rounds."""
    rounds = rounds_for(name, clients, samples)
    rounds.run_round()
    begin, passed = time.perf_counter(), []
    for done in range(1, counts[-1] + 1):
        rounds.run_round()
        if done in counts:
            passed.append(time.perf_counter() - begin)
    return passed


def round_seconds(size: int = 10, repeats: int = 5, methods: Sequence[str] = ("fedavg", *FIVE)) -> Iterator[Figure]:
    """Seconds of a method's rounds against the number of rounds, of clients, and of samples at a client."""
    sizes = [size * factor for factor in (1, 2, 4, 8)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model has nothing to share between threads
    try:
        for name in methods:
            runs = [seconds_of_rounds(name, sizes, size, 40) for _ in range(repeats)]
            yield growth(f"{name}: rounds", "rounds", sizes, list(zip(*runs, strict=True)), LINEAR)
            by_clients = in_turns({str(k): rounds_for(name, k, 40).run_round for k in sizes}, repeats)
            yield growth(f"{name}: a round", "clients", sizes, list(by_clients.values()), LINEAR)
            samples = [4 * n for n in sizes]
            by_samples = in_turns({str(n): rounds_for(name, size, n).run_round for n in samples}, repeats)
            yield growth(f"{name}: a round", "samples a client", samples, list(by_samples.values()), LINEAR)
    finally:
        torch.set_num_threads(before)
