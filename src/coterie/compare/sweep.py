"""The best of several settings by validation: hopeless ones are given up early, and test samples have no say.

Successive halving: all candidates run for a part of the rounds, the better half of them for twice as many, and so on;
the last ones run to the end. Runs are those of the pool: kept, carried on, never run twice.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from coterie.compare.pool import Run, Watcher, leave_if_imported_by_a_worker
from coterie.compare.running import Collector, checked, perform_all, require_jobs, require_names, worthwhile_jobs
from coterie.compare.table import run_folder
from coterie.core.scale import Scale
from coterie.errors import require
from coterie.experiment.config import complete, to_toml
from coterie.experiment.directory import RunDirectory
from coterie.experiment.experiment import Experiment
from coterie.experiment.history import VALIDATION, numbers
from coterie.experiment.kept import CONFIG, MIXES
from coterie.files import write_whole
from coterie.partition import Rule
from coterie.rng import numpy_stream
from coterie.rounds.evaluate import mean_over_clients

SWEEP, BEST = "sweep.json", "best.toml"
USUAL_VALIDATION = 0.2
Watch = Callable[[Sequence[Run]], AbstractContextManager[Watcher]]
"""Makes a watcher for some runs that are about to be performed."""


@dataclass(frozen=True)
class Candidate:
    """A setting that was tried: how far it came, and its mean validation score over the seeds until there."""

    name: str
    rounds: int
    score: float


@dataclass(frozen=True)
class Sweep:
    """What came of a search: all candidates, the best first, and the experiment of the winner."""

    candidates: tuple[Candidate, ...]
    scale: Scale
    winner: Experiment

    @property
    def best(self) -> Candidate:
        """The winner."""
        return self.candidates[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "best": self.best.name,
            "judged_by": f"validation {self.scale.name}",
            "candidates": [
                {**vars(one), "score": None if math.isnan(one.score) else one.score} for one in self.candidates
            ],
        }


def grid_of(choices: Mapping[str, Sequence[str]], draw: int | None = None, seed: int = 0) -> list[dict[str, str]]:
    """Every combination of values, or `draw` of them by chance.

    >>> grid_of({"lr": ["0.1", "0.2"], "mu": ["0"]})
    [{'lr': '0.1', 'mu': '0'}, {'lr': '0.2', 'mu': '0'}]
    """
    whole = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    if draw is None or draw >= len(whole):
        return whole
    chosen = numpy_stream(seed, "sweep").choice(len(whole), draw, replace=False)
    return [whole[place] for place in sorted(chosen.tolist())]


def rungs(candidates: int, rounds: int, every: int = 1) -> list[int]:
    """The rounds after which the better half goes on, the last one included; all of them are evaluated.

    >>> rungs(8, 100), rungs(2, 10), rungs(1, 10), rungs(100, 3)
    ([13, 25, 50, 100], [5, 10], [10], [1, 2, 3])
    """
    halvings = math.floor(math.log2(candidates))
    wanted = (math.ceil(rounds / 2**times / every) * every for times in range(halvings, -1, -1))
    return sorted({min(round, rounds) for round in wanted})


def validating(experiment: Experiment) -> Experiment:
    """The experiment with validation samples: a fifth of the training samples, unless it has some."""
    rule = experiment.partition
    lacks = isinstance(rule, Rule) and experiment.validation is None and not rule.default_split.validation
    return replace(experiment, validation=USUAL_VALIDATION) if lacks else experiment


def sweep(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    out: Path,
    watch: Watch,
    jobs: int = 0,
    full: bool = False,
    listeners: Sequence[str] = (),
) -> Sweep:
    """Find the experiment with the best validation score: as received, mean over clients, best round so far.

    Each is run with each seed, kept in `out/<name>-s<seed>`; with `full`, all of them to the end. Experiments without
    validation samples get some; the winner is given as it was. The same again carries on. `listeners` are as for
    `compare`.
    """
    leave_if_imported_by_a_worker()
    require(bool(experiments), "grid: name at least one option with its values, such as lr=0.01,0.05")
    require(bool(seeds), "seeds: name at least one")
    refuse_strangers(out)
    names = require_names(listeners)
    tried = {name: validating(experiment) for name, experiment in experiments.items()}
    beside_others = require_jobs(tried, jobs)
    first = replace(next(iter(tried.values())), seed=seeds[0]).prepare()
    require(first.problem().has_validation, "validation: no client has validation samples; set validation=0.2")
    partitions, seconds = checked(tried, seeds, guess=jobs != 1 and beside_others)
    scale, left, found = first.problem_base.task.primary.scale, list(tried), dict[str, Candidate]()
    rounds = min(experiment.rounds for experiment in tried.values())
    every = max(experiment.evaluate_every for experiment in tried.values())
    # Experiments that differ in their number of rounds cannot be compared half-way.
    alike = len({(one.rounds, one.evaluate_every) for one in tried.values()}) == 1
    for rung in [None] if full or not alike else rungs(len(left), rounds, every):
        runs = [
            Run(name, replace(tried[name], seed=seed), out / run_folder(name, seed), rung, names)
            for seed in seeds
            for name in left
        ]
        with watch(runs) as watcher:
            perform_all(
                runs,
                seconds,
                min(jobs or worthwhile_jobs(runs, seconds), len(runs)),
                Collector(partitions, watcher),
            )
        for name in left:
            own = [run for run in runs if run.name == name]
            score = fmean(_validation_score(run, scale) for run in own)
            found[name] = Candidate(name, own[0].rounds, score)
        left = sorted(left, key=lambda name: _place(found[name], scale))[: math.ceil(len(left) / 2)]
    ordered = sorted(found.values(), key=lambda one: (-one.rounds if alike else 0, _place(one, scale)))
    result = Sweep(tuple(ordered), scale, experiments[ordered[0].name])
    write_whole(out / SWEEP, (json.dumps(result.as_dict(), indent=2) + "\n").encode())
    write_whole(out / BEST, to_toml(complete(result.winner)).encode())
    return result


def refuse_strangers(out: Path) -> None:
    """An error if a folder holds anything but a search."""
    require(not out.is_file(), f"out = {out}: is a file; name a directory")
    require(not (out / CONFIG).exists(), f"out = {out}: already holds a run; name another directory")
    entries = [entry for entry in out.iterdir() if not entry.name.startswith(".")] if out.is_dir() else []
    strangers = [entry.name for entry in entries if entry.name not in (SWEEP, BEST) and not _is_run(entry)]
    require(
        not strangers,
        f"out = {out}: is not empty (it holds {strangers[0] if strangers else ''}); name a new directory, or that of a "
        "search",
    )


def _is_run(entry: Path) -> bool:
    """Whether a directory holds a run, or one that was killed before it had begun."""
    return entry.is_dir() and ((entry / CONFIG).is_file() or (entry / MIXES).is_dir())


def _place(candidate: Candidate, scale: Scale) -> tuple[bool, float]:
    """Sorts the best first; whoever has no number comes last."""
    none = math.isnan(candidate.score)
    return none, 0.0 if none else -candidate.score if scale.higher_is_better else candidate.score


def _validation_score(run: Run, scale: Scale) -> float:
    """The best validation score of a run until its round for now, however far it has come; nothing else is read."""
    assert run.directory is not None
    lines = [line for line in RunDirectory(run.directory).lines_in_order() if line["round"] <= run.rounds]
    measured = [line[VALIDATION]["received"] for line in lines if "received" in line.get(VALIDATION, {})]
    return scale.best([mean_over_clients(numbers(own[scale.name])) for own in measured])
