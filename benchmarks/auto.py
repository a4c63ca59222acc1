"""`python -m benchmarks.auto`: does engine `auto` get what the best engine would have given?

Five shapes, some repetitions each, every second one with a busy loop beside. In each, `auto` chooses without anything
it remembers, begins a run, and then its rounds are timed in turns with those of every other engine, threads and memory
format, evaluation included. The best of these runs twice in every turn: the ratio of the two (A/A) says what the
machine's noise alone does. Every repetition is one line of a file; further ones add to it, and `--summary` reads it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.engines import (
    CNN_10,
    CNN_100,
    LENET5_10_OF_100,
    RESNET8,
    Case,
    Runs,
    begin_run,
    chosen,
    on_digits,
    settings_for,
    training,
)
from benchmarks.harness import in_turns

SHAPES = (
    Case("cnn, batch 10", CNN_10),
    Case("cnn, batch 100", CNN_100),
    Case("lenet5, batch 32, 10 of 100 clients", LENET5_10_OF_100),
    Case("mlp, digits", on_digits(20)),
    Case("resnet8, batch 32", RESNET8),
)
GOOD, BAD = 1.10, 1.30  # times the best engine's round: what most repetitions have to reach, and none may exceed
SHARE = 0.9  # of the repetitions that have to be good
TRIALS = 3.0  # seconds that trials may take, or one round if that is longer
LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"  # it ends with the benchmark
HOPELESS = 1.6  # times the fastest: such engines are not timed further


@dataclass(frozen=True)
class Repetition:
    """What came of one: `ratio` and `control` are of medians over the timed rounds."""

    shape: str
    busy: bool
    auto: str
    best: str
    ratio: float
    control: float
    round: float  # seconds with the best engine
    trials: float  # seconds

    @property
    def cheap(self) -> bool:
        """Whether the trials cost no more than they may."""
        return self.trials <= max(TRIALS, self.round)


def repetition(case: Case, busy: bool, rounds: int = 7, scale: float = 1.0) -> Repetition:
    """One repetition on a shape."""
    prepared = case.experiment(scale).prepare()
    with beside() if busy else ExitStack(), ExitStack() as stack:
        begin = time.perf_counter()
        auto = chosen(prepared)
        trials = time.perf_counter() - begin
        run = stack.enter_context(training(prepared, auto, evaluate_every=1))
        begin_run(run, scale)
        others = {
            str(setting): stack.enter_context(training(prepared, setting, evaluate_every=1))
            for setting in settings_for(prepared, torch.get_num_threads())
        }
        others = promising(others)
        first = min(others, key=lambda name: min(in_turns({name: others[name]}, repeats=1, warmup=0)[name]))
        seconds = in_turns({**others, "auto": run, "control": others[first]}, rounds, warmup=0)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    best = min(others, key=lambda name: medians[name])
    control = max(medians["control"], medians[first]) / min(medians["control"], medians[first])
    ratio = medians["auto"] / medians[best]
    return Repetition(case.name, busy, str(auto), best, ratio, control, medians[best], trials)


@contextmanager
def beside() -> Iterator[None]:
    """A busy loop in another process."""
    loop = subprocess.Popen([sys.executable, "-c", LOOP])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def promising(cases: Runs) -> Runs:
    """Those that are not far slower than the fastest, by two trials; the first is the warm-up."""
    for limit in (3 * HOPELESS, HOPELESS):
        trial = {name: times[0] for name, times in in_turns(cases, repeats=1, warmup=0).items()}
        bound = limit * min(trial.values())
        cases = {name: run for name, run in cases.items() if trial[name] <= bound}
    return cases


def verdict(found: Sequence[Repetition]) -> str:
    """What repetitions amount to, in words."""
    good = sum(one.ratio <= GOOD for one in found)
    cheap = sum(one.cheap for one in found)
    return (
        f"{good} of {len(found)} within {GOOD:g} of the best engine ({SHARE:g} of them have to be), largest "
        f"{max(one.ratio for one in found):.2f} (bar {BAD:g}); A/A largest {max(one.control for one in found):.2f}; "
        f"trials within their bar {cheap} of {len(found)}, at most {max(one.trials for one in found):.1f} s"
    )


def read(path: Path) -> list[Repetition]:
    """The repetitions in a file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [Repetition(**json.loads(line)) for line in lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, add to the file, and say what all in it amounts to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=10, help="of each shape; odd ones beside a busy loop")
    parser.add_argument("--shapes", nargs="*", default=[], help="only those whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=7, help="timed in each repetition")
    parser.add_argument("--scale", type=float, default=1.0, help="of the clients' samples")
    parser.add_argument("--out", type=Path, default=Path("benchmarks-auto.jsonl"))
    parser.add_argument("--summary", action="store_true", help="measure nothing")
    given = parser.parse_args(arguments)
    shapes = [case for case in SHAPES if not given.shapes or any(part in case.name for part in given.shapes)]
    if not shapes:
        print(f"shapes: none of {', '.join(case.name for case in SHAPES)} is meant", file=sys.stderr)
        return 2
    turns = [] if given.summary else [(number, case) for number in range(given.repetitions) for case in shapes]
    for number, case in track(turns, "measuring", console=Console(stderr=True), transient=True):
        one = repetition(case, busy=number % 2 == 1, rounds=given.rounds, scale=given.scale)
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(one)) + "\n")
        print(
            f"{one.shape}{', beside a loop' if one.busy else ''}: auto ({one.auto}) {one.ratio:.2f} of {one.best} "
            f"({one.round:.3g} s a round), A/A {one.control:.2f}, trials {one.trials:.1f} s"
        )
    found = read(given.out)
    for case in SHAPES:
        own = [one for one in found if one.shape == case.name]
        if own:
            print(f"{case.name}: {verdict(own)}")
    if found:
        print(f"all: {verdict(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
