"""A search whose settings Optuna proposes, each from the results of those before (the extra `optuna`)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.compare.space import Space, ValueRange
from coterie.compare.sweep import Sweep, Trials, Watch
from coterie.errors import require
from coterie.rng import stream_seed
from coterie.runs.experiment import Experiment

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

BY_CHANCE = 8
"""So many settings are drawn by chance, before there is anything to learn from."""
BATCH = 4
"""Settings that are proposed at a time, whatever the number of jobs: the same search is the same on every machine."""
PATIENCE = 10
"""Proposals for each setting that is wanted, until it is taken that there are no more."""


def require_optuna() -> None:
    """An error if Optuna is not installed."""
    found = find_spec("optuna") is not None
    require(found, 'optuna: needs a package that is not installed: pip install "coterie[optuna]"')


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
        so_far = [name for name, found in trials.scores.items() if rung in found]
        better = trials.ordered(so_far, rung)[: math.ceil(len(so_far) / 2)] if rung is not None else left
        left = [name for name in left if name in better]
