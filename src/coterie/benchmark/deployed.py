"""What a finished run is worth as clients would use it: as received, or after some epochs of training of their own.

How many epochs is chosen by validation, as a part of the tuning, so that methods are compared at the moment that suits
each. `Validated` is what tuning is told, and it knows no test; `Deployed` tells what the runs that count are worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from coterie.client.recipe import Phase, Recipe
from coterie.core.federation import Federation
from coterie.core.task import Classification, Task
from coterie.core.task.base import LOSS
from coterie.methods import Method
from coterie.rounds.evaluate import Evaluation, Finished, Floats, mean_over_clients
from coterie.rounds.judge import Judge
from coterie.rounds.listeners import Listener, Outcome, RoundReport, Start
from coterie.runs.history import plain_number
from coterie.runs.newcomers import onboard
from coterie.setup.prepared import Prepared

EPOCHS = (0, 1, 5, 10)
"""How long a client may train the model that it receives before it uses it."""
STREAM = 1000
"""Own training sees samples in an order that no phase of a method has."""
NEAR = 0.05
"""A run has come near its best when so small a part of that is missing."""
DIGITS = 4
"""Decimals of clients' scores that are kept."""
AnyMethod = TypeVar("AnyMethod", bound=Method)


def with_own_training(method: AnyMethod, epochs: int) -> AnyMethod:
    """A method whose clients train what they would be tested with for so many epochs more, plainly, at the run's rate.

    >>> from coterie.methods import FedAvg
    >>> with_own_training(FedAvg(), 5).tune(None)[0].epochs
    5
    """
    if not epochs:
        return method
    kind = type(method)

    def tune(self: AnyMethod, federation: Federation) -> Recipe:
        return (*kind.tune(self, federation), Phase(slot=kind.tested, epochs=epochs, stream=STREAM))

    longer = type(kind.__name__, (kind,), {"tune": tune, "__module__": kind.__module__})
    made: AnyMethod = longer(**{item.name: getattr(method, item.name) for item in fields(method) if item.init})
    return made


def score_of(task: Task, evaluation: Evaluation) -> Floats:
    """Each client's score, `[K]`, the higher the better: accuracy, or 1 − the mean squared error.

    Targets of the sets are standardised, so that the latter is the share of all their variance that is explained.
    """
    return evaluation.judged if isinstance(task, Classification) else 1 - evaluation.values[LOSS]


def near_best(scores: list[float]) -> int | None:
    """After how many tests the score first came near the best of all; none if there is no number.

    >>> near_best([0.2, 0.77, 0.8, 0.79]), near_best([-0.5, -0.1]), near_best([math.nan])
    (2, 2, None)
    """
    known = [score for score in scores if math.isfinite(score)]
    if not known:
        return None
    enough = max(known) - NEAR * abs(max(known))
    return next(place for place, score in enumerate(scores, 1) if score >= enough)


class _AtTheEnd(Listener):
    """Tests a run's clients when it is over, after each choice of own training."""

    _prepared: Prepared
    _federation: Federation

    def begin(self, start: Start) -> None:
        """Remember what the run is made of."""
        self._prepared, self._federation = start.prepared, start.federation

    @property
    def _task(self) -> Task:
        return self._prepared.problem_base.task

    def _judges(self) -> Iterator[tuple[int, Judge]]:
        """By epochs of own training, who tests everybody."""
        problem = self._prepared.problem().scored_with_validation()
        for epochs in EPOCHS:
            prepared = replace(self._prepared, method=with_own_training(self._prepared.method, epochs))
            with closing(prepared.engine(problem)) as engine:
                yield epochs, Judge(prepared.method, self._federation, engine, validated=True)


class Validated(_AtTheEnd):
    """Adds to the summary the score of all validation samples, by epochs of own training, and nothing of any test."""

    def end(self, outcome: Outcome) -> None:
        """Score them, each sample as much as another: clients without any do not count."""
        if outcome.summary is None:
            return
        found: dict[str, float | None] = {}
        for epochs, judge in self._judges():
            held = judge.evaluate_received().validation
            assert held is not None
            found[str(epochs)] = plain_number(mean_over_clients(score_of(self._task, held), held.sizes))
        _add(outcome, {"validation": found})


class Deployed(_AtTheEnd):
    """Adds to the summary what clients, newcomers among them, get from the run, and when it came near its best."""

    def begin(self, start: Start) -> None:
        """Nothing has been spent."""
        super().begin(start)
        self._scores: list[float] = []
        self._spent: list[tuple[float, float]] = []  # bytes and seconds until each round's test

    def round(self, report: RoundReport) -> None:
        """Note how good clients are, and what that has taken."""
        bytes_before, seconds_before = self._spent[-1] if self._spent else (0.0, 0.0)
        seconds = report.seconds["train"] + report.seconds["exchange"]
        self._spent.append((bytes_before + sum(report.bytes.values()), seconds_before + seconds))
        trained = report.trained
        self._scores.append(math.nan if trained is None else mean_over_clients(score_of(self._task, trained)))

    def end(self, outcome: Outcome) -> None:
        """Test everybody."""
        if outcome.summary is None:
            return
        labels = [self._prepared.data.labels[index] for index in self._prepared.problem().test]
        deployed = {}
        for epochs, judge in self._judges():
            evaluation = judge.evaluate_received(keep_scores=True)
            quality = Finished.of(self._task, judge.scores_received(keep_scores=True), labels).quality
            scores = score_of(self._task, evaluation)
            deployed[str(epochs)] = {
                "scores": [round(score, DIGITS) if math.isfinite(score) else None for score in scores.tolist()],
                "loss": plain_number(mean_over_clients(evaluation.loss)),
                "calibration": calibration_error(quality),
            }
        found: dict[str, Any] = {"deployed": deployed}
        if self._prepared.partition.held_out:
            moments = onboard(self._prepared, self._federation)
            means = {name: mean_over_clients(score_of(self._task, scores)) for name, scores in moments.items()}
            found["newcomers"] = {name: plain_number(mean) for name, mean in means.items()}
        if rounds := near_best(self._scores):
            spent, seconds = self._spent[rounds - 1]
            found["near_best"] = {"rounds": rounds, "bytes": spent, "seconds": seconds}
        _add(outcome, found)


def calibration_error(quality: Mapping[str, Any]) -> float | None:
    """By how much confidence and hits differ, over all test samples in bins of confidence; none for regressions.

    >>> import torch
    >>> bins = {"bin_samples": [[2, 2]], "bin_hits": [[1, 2]], "bin_confidence": [[1.2, 1.8]]}
    >>> round(calibration_error({name: torch.tensor(values) for name, values in bins.items()}), 3)  # (0.2 + 0.2) / 4
    0.1
    """
    if "bin_samples" not in quality:
        return None
    samples, hits, confidence = (
        np.asarray(quality[name], np.float64).sum(0) for name in ("bin_samples", "bin_hits", "bin_confidence")
    )
    return float(np.abs(hits - confidence).sum() / samples.sum())


def _add(outcome: Outcome, found: dict[str, Any]) -> None:
    assert isinstance(outcome.summary, dict)  # made for this run, and read by whoever asked for it
    outcome.summary["benchmark"] = found
