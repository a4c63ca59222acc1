"""How a run grows with the number of clients: `python -m benchmarks.clients [--method M] [--engine E] [K …]`.

Every client holds 5 to 50 generated images, 100 of them take part in a round and 100 are tested. For each K a process
of its own runs a few rounds with a run directory, has it reported, and says what that took: a line of a Markdown table.
Seconds are those that a core was busy, which hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct
from coterie.partition import ByClient
from coterie.rounds.listeners import Listener, Outcome, RoundReport, Start
from coterie.runs.experiment import Experiment

COUNTS = (100, 1_000, 10_000, 100_000)
COHORT = 100
ROUNDS = 6
IMAGE = (1, 28, 28)
HEADER = (
    "clients", "samples", "before round 1", "a round", "of it testing", "the last round", "after it",
    "memory", "of it the libraries", "directory", "a round's part", "show", "report",
)  # fmt: skip


def generated(clients: int, folder: Path, seed: int = 0) -> ct.Dataset:
    """Noise with labels, 5 to 50 samples a client; the images lie in a file."""
    stream = np.random.default_rng(seed)
    sizes = stream.integers(5, 51, clients)
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (int(sizes.sum()), *IMAGE))
    for begin in range(0, len(images), 4096):
        part = images[begin : begin + 4096]
        part[:] = stream.integers(0, 256, part.shape, dtype=np.uint8)
    images.flush()
    labels, owners = stream.integers(0, 10, len(images)), np.repeat(np.arange(clients), sizes)
    kept = np.load(folder / "images.npy", mmap_mode="r")
    return ct.from_arrays(kept, labels, owners=owners, classes=10, name="generated")


class Stopwatch(Listener):
    """When a run began its first round, how long each took, and when the last was over."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.rounds: list[float] = []
        self.testing: list[float] = []

    def begin(self, start: Start) -> None:
        """The first round is about to begin."""
        self.began = self._last = time.process_time()

    def round(self, report: RoundReport) -> None:
        """A round is over, its record included."""
        now = time.process_time()
        self.rounds.append(now - self._last)
        self.testing.append(report.seconds["evaluate"])
        self._last = now

    def end(self, outcome: Outcome) -> None:
        """The run is over."""
        self.ended = time.process_time()


@contextmanager
def watched_memory(peaks: list[int]) -> Iterator[None]:
    """Add the most memory that this process held meanwhile, in kB (see `own_memory`)."""
    stop = threading.Event()
    most = 0

    def look() -> None:
        nonlocal most
        while not stop.wait(0.02):
            most = max(most, own_memory())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        peaks.append(max(most, own_memory()))


def own_memory() -> int:
    """What the process holds now, in kB, without pages of mapped files, which the system may take back at any time."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def measured(clients: int, method: str, engine: str, rounds: int) -> dict[str, Any]:
    """One run, and what it took."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data, watch, peaks = generated(clients, folder), Stopwatch(), []
        libraries, out = own_memory(), folder / "run"
        experiment = Experiment(
            method=method,
            data=data,
            partition=ByClient(),
            model="lenet5",
            rounds=rounds,
            join=min(1.0, COHORT / clients),
            epochs=1,
            batch=10,
            engine=engine,
            threads=1,
            evaluate_clients=COHORT,
        )
        begin = time.process_time()
        with watched_memory(peaks):
            experiment.run(out=out, listeners=[watch])
        done = time.process_time()
        lines = (out / "rounds.jsonl").read_bytes().splitlines()
        mixes = [file.stat().st_size for file in (out / "mixes").glob("*")]
        usual = slice(0, max(1, rounds - 1))  # the last round tests everybody
        shown = [_seconds("show", str(out)), _seconds("report", str(out), "--out", str(folder / "page.html"))]
        return {
            "clients": clients,
            "samples": len(data),
            "before": watch.began - begin,
            "round": statistics.median(watch.rounds[usual]),
            "testing": statistics.median(watch.testing[usual]),
            "last": watch.rounds[-1],
            "after": done - begin - (watch.began - begin) - sum(watch.rounds),
            "memory": peaks[0],
            "libraries": libraries,
            "directory": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()),
            "line": statistics.median(map(len, lines[usual])) + (statistics.median(mixes) if mixes else 0),
            "show": shown[0],
            "report": shown[1],
        }


def _seconds(*command: str) -> float:
    """How long a command of Coterie's keeps a core busy."""
    before = _of_children()
    subprocess.run([sys.executable, "-m", "coterie", *command], check=True, capture_output=True)
    return _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(found: dict[str, Any]) -> str:
    """A measurement as a line of the table."""
    seconds = (f"{found[name]:.2f} s" for name in ("before", "round", "testing", "last", "after"))
    memory = (f"{found[name] / 1000:,.0f} MB" for name in ("memory", "libraries"))
    sizes = (f"{found['directory'] / 1e6:,.1f} MB", f"{found['line'] / 1e3:,.0f} kB")
    counts = (f"{found[name]:,}" for name in ("clients", "samples"))
    shown = (f"{found[name]:.1f} s" for name in ("show", "report"))
    return f"| {' | '.join((*counts, *seconds, *memory, *sizes, *shown))} |"


def main(arguments: list[str]) -> int:
    """Measure, each number of clients in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__.partition("\n")[0])
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS, metavar="K")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--engine", default="serial")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.here:
        print(json.dumps(measured(wanted.counts[0], wanted.method, wanted.engine, wanted.rounds)))
        return 0
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    for count in wanted.counts:
        options = ["--method", wanted.method, "--engine", wanted.engine, "--rounds", str(wanted.rounds), "--here"]
        command = [sys.executable, "-m", "benchmarks.clients", str(count), *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(row(json.loads(done.stdout.splitlines()[-1])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
