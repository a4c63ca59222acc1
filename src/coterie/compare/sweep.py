"""The best of several settings by validation: hopeless ones are given up early, and test samples have no say.

Successive halving: all candidates run for a part of the rounds, the better half of them for twice as many, and so on;
the last ones run to the end. Or Optuna proposes the settings, each from the results of those before (the extra
`optuna`). Runs are kept, carried on, never run twice.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from coterie.compare.joint_runs import (
    SEVERAL,
    Collector,
    CommonGround,
    OneEngine,
    checked,
    perform_all,
    refuse_strangers,
    require_jobs,
    require_names,
)
from coterie.compare.space import Space, ValueRange
from coterie.compare.table import run_folder
from coterie.compare.workers import PlannedRun, Watcher
from coterie.core.numbers import Scale
from coterie.errors import require
from coterie.files import write_whole
from coterie.partition import Rule
from coterie.processes import leave_if_imported_by_a_worker
from coterie.rng import stream_seed
from coterie.rounds.evaluate import mean_over_clients
from coterie.runs.directory import RunDirectory, is_unbegun
from coterie.runs.experiment import Experiment
from coterie.runs.history import numbers
from coterie.runs.store import CONFIG
from coterie.setup.config import complete, to_toml

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

SWEEP, BEST, REPORT = "sweep.json", "best.toml", "report.html"
USUAL_VALIDATION = 0.2
Watch = Callable[[Sequence[PlannedRun]], AbstractContextManager[Watcher]]
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
                {**vars(candidate), "score": None if math.isnan(candidate.score) else candidate.score}
                for candidate in self.candidates
            ],
        }


def rungs(candidates: int, rounds: int, every: int = 1) -> list[int]:
    """The rounds after which the better half goes on, the last one included; all of them are evaluated.

    >>> rungs(8, 100), rungs(2, 10), rungs(1, 10), rungs(100, 3)
    ([13, 25, 50, 100], [5, 10], [10], [1, 2, 3])
    """
    halvings = math.floor(math.log2(candidates))
    ends = (math.ceil(rounds / 2**times / every) * every for times in range(halvings, -1, -1))
    return sorted({min(round, rounds) for round in ends})


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
        known = (SWEEP, BEST, REPORT)
        refuse_strangers(out, lambda name: name in known or _is_run(out / name), "a search")
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
        return len({(experiment.rounds, experiment.evaluate_every) for experiment in self.tried.values()}) == 1

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
            PlannedRun(
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
            of_name = [run for run in runs if run.name == name]
            score = fmean(_validation_score(run, self.scale) for run in of_name)
            self.scores.setdefault(name, {})[of_name[0].rounds] = score

    def ordered(self, names: Sequence[str], round: int | None = None) -> list[str]:
        """Some of them, the best at a round first, or at the last round of each; who has no number comes last."""
        return sorted(names, key=lambda name: _place(self._score(name, round), self.scale))

    def _score(self, name: str, round: int | None) -> float:
        scores = self.scores[name]
        return scores[max(scores) if round is None else round]

    def rungs(self, amount: int, full: bool) -> Sequence[int | None]:
        """The rounds at which some of so many settings are given up; only the end of each, if none can be."""
        if full or not self.alike:
            return [None]
        first = next(iter(self.tried.values()))
        return rungs(amount, first.rounds, first.evaluate_every)

    def finish(self) -> Sweep:
        """What came of all of them, which is kept as well: the farthest first, the best of these first."""
        farthest = {name: max(scores) for name, scores in self.scores.items()}
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


def _is_run(entry: Path) -> bool:
    """Whether a directory holds a run, or one that was killed before it had begun."""
    return entry.is_dir() and ((entry / CONFIG).is_file() or is_unbegun(entry))


def _place(score: float, scale: Scale) -> tuple[bool, float]:
    """Sorts the best first; whoever has no number comes last."""
    none = math.isnan(score)
    return none, 0.0 if none else -score if scale.higher_is_better else score


def _validation_score(run: PlannedRun, scale: Scale) -> float:
    """The best validation score of a run until its round for now, however far it has come; nothing else is read."""
    assert run.directory is not None
    lines = [line for line in RunDirectory(run.directory).lines() if line.round <= run.rounds]
    held_out = [line.validation.received for line in lines if line.validation is not None]
    measured = [scores.values[scale.name] for scores in held_out if scores is not None]
    return scale.best([mean_over_clients(numbers(values)) for values in measured])


BY_CHANCE = 8
"""So many settings are drawn by chance, before there is anything to learn from."""
BATCH = 4
"""Settings that are proposed at a time, whatever the number of jobs: the same search is the same on every machine."""
PATIENCE = 10
"""Proposals for each setting that is wanted, until it is taken that there are no more."""


def require_optuna() -> None:
    """An error if Optuna is not installed."""
    is_installed = find_spec("optuna") is not None
    require(is_installed, 'optuna: needs a package that is not installed: pip install "coterie[optuna]"')


class Proposals:
    """Proposes settings of a space by a tree-structured Parzen estimator; the same answers lead to the same proposals.

    It lives in memory alone: a search that is repeated asks again, and is answered by the runs that were kept.
    """

    def __init__(self, space: Space, seed: int) -> None:
        require_optuna()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Settings that are under way count as bad, so that those of a batch differ.
            sampler = optuna.samplers.TPESampler(
                seed=stream_seed(seed, "sweep") % 2**32, n_startup_trials=BY_CHANCE, constant_liar=True
            )
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._space = space
        self._kinds = {name: _kind(values) for name, values in space.items()}

    def ask(self) -> tuple[Trial, dict[str, str]]:
        """Settings to try, as texts, and Optuna's handle of them."""
        trial = self._study.ask(dict(self._kinds))
        return trial, {name: _text(self._space[name], value) for name, value in trial.params.items()}

    def tell(self, trial: Trial, scores: Mapping[int, float], given_up: bool) -> None:
        """What came of it: the best score so far at some rounds, higher is better, and whether it was given up then."""
        from optuna.trial import TrialState

        known = {round: score for round, score in scores.items() if not math.isnan(score)}
        for round, score in known.items():
            trial.report(score, round)
        if not known:
            self._study.tell(trial, state=TrialState.FAIL)
        elif given_up:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, known[max(known)])


def _kind(values: object) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(values, ValueRange):
        assert isinstance(values, list)
        return CategoricalDistribution(values)
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.by_factors)
    return FloatDistribution(values.low, values.high, log=values.by_factors)


def _text(values: object, value: object) -> str:
    if isinstance(values, ValueRange):
        assert isinstance(value, int | float)
        return values.written(value)
    return str(value)


def guided_sweep(
    space: Space,
    experiment_of: Callable[[Mapping[str, str]], tuple[str, Experiment]],
    amount: int,
    seeds: Sequence[int],
    out: Path,
    watch: Watch,
    jobs: int = 0,
    full: bool = False,
    listeners: Sequence[str] = (),
    cluster: str = "",
) -> Sweep:
    """Like `sweep`, for `amount` settings of a space, proposed one batch after the other; fewer if there are no more.

    `experiment_of` makes settings an experiment with a name. At every round where some are given up, those go on that
    are in the better half of all that came so far.
    """
    proposals = Proposals(space, seeds[0] if seeds else 0)
    trials = Trials(seeds, out, watch, jobs, listeners, cluster)
    asked = 0

    def tell(name: str, handle: Trial) -> None:
        sign = 1 if trials.scale.higher_is_better else -1
        scores = {round: sign * score for round, score in trials.scores[name].items()}
        proposals.tell(handle, scores, given_up=max(scores) < trials.tried[name].rounds)

    while len(trials.tried) < amount and asked < PATIENCE * amount:
        batch: dict[str, list[Trial]] = {}
        while len(batch) < BATCH and len(trials.tried) < amount and asked < PATIENCE * amount:
            handle, settings = proposals.ask()
            asked += 1
            name, experiment = experiment_of(settings)
            if name in trials.scores:  # it is proposed once more
                tell(name, handle)
                continue
            if name not in batch:
                trials.add({name: experiment})
            batch.setdefault(name, []).append(handle)
        _go_as_far_as_it_pays(trials, list(batch), amount, full)
        for name, handles in batch.items():
            for handle in handles:
                tell(name, handle)
    return trials.finish()


def _go_as_far_as_it_pays(trials: Trials, left: Sequence[str], amount: int, full: bool) -> None:
    """Run settings until they are no longer in the better half, or to the end."""
    for rung in trials.rungs(amount, full):
        if not left:
            return
        trials.run(left, rung)
        so_far = [name for name, scores in trials.scores.items() if rung in scores]
        better = trials.ordered(so_far, rung)[: math.ceil(len(so_far) / 2)] if rung is not None else left
        left = [name for name in left if name in better]
