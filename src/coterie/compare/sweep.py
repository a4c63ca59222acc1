"""The best of several settings by validation: hopeless ones are given up early, and test samples have no say.

Successive halving: all candidates run for a part of the rounds, the better half of them for twice as many, and so on;
the last ones run to the end. Runs are those of the pool: kept, carried on, never run twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from coterie.compare.pool import Run, Watcher
from coterie.compare.running import (
    SEVERAL,
    Collector,
    CommonGround,
    OneEngine,
    checked,
    perform_all,
    require_jobs,
    require_names,
)
from coterie.compare.table import run_folder
from coterie.core.numbers import Scale
from coterie.errors import require
from coterie.files import PARTIAL, write_whole
from coterie.partition import Rule
from coterie.processes import leave_if_imported_by_a_worker
from coterie.rounds.evaluate import mean_over_clients
from coterie.runs.directory import RunDirectory, is_unbegun
from coterie.runs.experiment import Experiment
from coterie.runs.history import VALIDATION, numbers
from coterie.runs.kept import CONFIG
from coterie.setup.config import complete, to_toml

SWEEP, BEST, REPORT = "sweep.json", "best.toml", "report.html"
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
    seeds: tuple[int, ...]
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
            "seeds": list(self.seeds),
            "candidates": [
                {**vars(one), "score": None if math.isnan(one.score) else one.score} for one in self.candidates
            ],
        }


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


class Trials:
    """The settings of a search, each an experiment with every seed, kept in `out/<name>-s<seed>`.

    They run as far as they are told, and are carried on when they are told to go farther. Experiments without
    validation samples get some. `scores` are the best validation scores by name and round up to which they count.
    """

    def __init__(
        self, seeds: Sequence[int], out: Path, watch: Watch, jobs: int, listeners: Sequence[str], cluster: str = ""
    ) -> None:
        leave_if_imported_by_a_worker()
        require(bool(seeds), "seeds: name at least one")
        refuse_strangers(out)
        self._seeds, self._out, self._watch, self._jobs, self._cluster = seeds, out, watch, jobs, cluster
        self._listeners = require_names(listeners)
        self._engine = OneEngine(seeds, SEVERAL if cluster else jobs, out)
        self._seconds: dict[str, float] = {}
        self._ground = CommonGround()
        self._scale: Scale | None = None
        self.given: dict[str, Experiment] = {}
        self.tried: dict[str, Experiment] = {}
        self.scores: dict[str, dict[int, float]] = {}

    @property
    def scale(self) -> Scale:
        """What validation samples are scored by."""
        assert self._scale is not None
        return self._scale

    @property
    def alike(self) -> bool:
        """Whether all plan the same rounds: others cannot be compared half-way."""
        return len({(one.rounds, one.evaluate_every) for one in self.tried.values()}) == 1

    def add(self, experiments: Mapping[str, Experiment]) -> None:
        """Take in settings that were not there, after a look at whether they can run."""
        tried = {name: validating(experiment) for name, experiment in experiments.items()}
        require_jobs(tried, self._jobs, self._cluster)
        tried = self._engine.settle(tried)
        beside_others = require_jobs(tried, self._jobs, self._cluster)
        if self._scale is None:
            first = replace(next(iter(tried.values())), seed=self._seeds[0]).prepare()
            require(first.problem().has_validation, "validation: no client has validation samples; set validation=0.2")
            self._scale = first.problem_base.task.primary.scale
        self._seconds |= checked(tried, self._seeds, self._jobs != 1 and beside_others, self._ground)
        self.given |= experiments
        self.tried |= tried

    def run(self, names: Sequence[str], until: int | None = None) -> None:
        """Bring some of them to a round, or to their end, and read their scores."""
        runs = [
            Run(
                name,
                replace(self.tried[name], seed=seed),
                self._out / run_folder(name, seed),
                until,
                self._listeners,
            )
            for seed in self._seeds
            for name in names
        ]
        with self._watch(runs) as watcher:
            perform_all(runs, self._seconds, self._jobs, Collector(self._ground, watcher), self._cluster)
        for name in names:
            own = [run for run in runs if run.name == name]
            found = fmean(_validation_score(run, self.scale) for run in own)
            self.scores.setdefault(name, {})[own[0].rounds] = found

    def ordered(self, names: Sequence[str], round: int | None = None) -> list[str]:
        """Some of them, the best at a round first, or at the last round of each; who has no number comes last."""
        return sorted(names, key=lambda name: _place(self._score(name, round), self.scale))

    def _score(self, name: str, round: int | None) -> float:
        found = self.scores[name]
        return found[max(found) if round is None else round]

    def rungs(self, amount: int, full: bool) -> Sequence[int | None]:
        """The rounds at which some of so many settings are given up; only the end of each, if none can be."""
        if full or not self.alike:
            return [None]
        first = next(iter(self.tried.values()))
        return rungs(amount, first.rounds, first.evaluate_every)

    def finish(self) -> Sweep:
        """What came of all of them, which is kept as well: the farthest first, the best of these first."""
        farthest = {name: max(found) for name, found in self.scores.items()}
        names = self.ordered(list(self.scores))
        if self.alike:
            names.sort(key=lambda name: -farthest[name])
        candidates = [Candidate(name, farthest[name], self._score(name, None)) for name in names]
        result = Sweep(tuple(candidates), self.scale, tuple(self._seeds), self.given[names[0]])
        write_whole(self._out / SWEEP, (json.dumps(result.as_dict(), indent=2) + "\n").encode())
        write_whole(self._out / BEST, to_toml(complete(result.winner)).encode())
        return result


def sweep(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    out: Path,
    watch: Watch,
    jobs: int = 0,
    full: bool = False,
    listeners: Sequence[str] = (),
    cluster: str = "",
) -> Sweep:
    """Find the experiment with the best validation score: as received, mean over clients, best round so far.

    With `full`, all of them run to the end. The winner is given as it was, without the validation samples that it may
    have been lent. The same again carries on. `listeners` and `cluster` are as for `compare`.
    """
    require(bool(experiments), "grid: name at least one option with its values, such as lr=0.01,0.05")
    trials = Trials(seeds, out, watch, jobs, listeners, cluster)
    trials.add(experiments)
    left = list(experiments)
    for rung in trials.rungs(len(left), full):
        trials.run(left, rung)
        left = trials.ordered(left, rung)[: math.ceil(len(left) / 2)]
    return trials.finish()


def refuse_strangers(out: Path) -> None:
    """An error if a folder holds anything but a search."""
    require(not out.is_file(), f"out = {out}: is a file; name a directory")
    require(not (out / CONFIG).exists(), f"out = {out}: already holds a run; name another directory")
    entries = [entry for entry in out.iterdir() if not entry.name.startswith(".")] if out.is_dir() else []
    known = (SWEEP, BEST, REPORT)
    strangers = [
        entry.name for entry in entries if entry.name.removesuffix(PARTIAL) not in known and not _is_run(entry)
    ]
    require(
        not strangers,
        f"out = {out}: is not empty (it holds {strangers[0] if strangers else ''}); name a new directory, or that of a "
        "search",
    )


def _is_run(entry: Path) -> bool:
    """Whether a directory holds a run, or one that was killed before it had begun."""
    return entry.is_dir() and ((entry / CONFIG).is_file() or is_unbegun(entry))


def _place(score: float, scale: Scale) -> tuple[bool, float]:
    """Sorts the best first; whoever has no number comes last."""
    none = math.isnan(score)
    return none, 0.0 if none else -score if scale.higher_is_better else score


def _validation_score(run: Run, scale: Scale) -> float:
    """The best validation score of a run until its round for now, however far it has come; nothing else is read."""
    assert run.directory is not None
    lines = [line for line in RunDirectory(run.directory).lines_in_order() if line["round"] <= run.rounds]
    measured = [line[VALIDATION]["received"] for line in lines if "received" in line.get(VALIDATION, {})]
    return scale.best([mean_over_clients(numbers(own[scale.name])) for own in measured])
