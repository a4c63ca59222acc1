"""The rounds of a run as numbers: a round as a line, and the lines of all rounds summed up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import to_builtins

from coterie.client.effort import FORWARD, STEPS
from coterie.core.task import Task
from coterie.rounds.evaluate import (
    MOMENTS,
    Evaluation,
    Floats,
    Integers,
    Moment,
    TestedSample,
    mean_over_clients,
    over_rounds,
)
from coterie.rounds.listeners import RoundReport
from coterie.runs.record import (
    PRESENCE,
    PRIVACY,
    ByClient,
    Line,
    Number,
    Scores,
    Seconds,
    Tests,
    Travelled,
    Tuning,
)

if TYPE_CHECKING:
    from pandas import DataFrame

ACTIVITIES = ("train", "exchange", "evaluate")
EFFORT, TUNING, TRAINING = "effort", "tuning", "training"
"""Where a summary holds what clients computed, what their tuning took, and how the last cohort did in training."""
Curves = dict[str, dict[str, dict[str, Number]]]
"""`[moment][mean | weighted][best | last | last5 | by_validation]`."""


def as_line(report: RoundReport) -> Line:
    """A round as it is written down."""
    everybody = report.everybody
    validation = Tests(
        **{
            moment: scores_of(evaluation)
            for moment in MOMENTS
            if (evaluation := _validated(getattr(report, moment))) is not None
        },
        cohort_trained=None if (evaluation := _validated(report.cohort_trained)) is None else _by_client(evaluation),
        everybody={
            at: scores_of(evaluation)
            for at, every in everybody.items()
            if (evaluation := _validated(every)) is not None
        },
    )
    return Line(
        round=report.round,
        cohort=report.cohort,
        seconds=Seconds(**report.seconds),
        bytes=Travelled(**report.bytes),
        diverged=report.diverged,
        tuning_diverged=report.tuning_diverged,
        parts=_notes(report),
        effort=report.efforts,
        tuning=Tuning(*report.tuning) if report.tuning[1] else None,
        training=None if report.training is None else _by_client(report.training),
        cohort_trained=None if report.cohort_trained is None else _by_client(report.cohort_trained),
        **{moment: scores_of(evaluation) for moment in MOMENTS if (evaluation := getattr(report, moment)) is not None},
        everybody={moment: scores_of(evaluation) for moment, evaluation in everybody.items()},
        validation=validation if validation != Tests() else None,
    )


def _notes(report: RoundReport) -> dict[str, dict[str, Any]]:
    """What the parts of a round add to its line, each by its name."""
    notes = {name: to_builtins(note) for name, note in report.parts.items()}
    return {**notes, PRESENCE: {"missing": report.missing}} if report.missing else notes


def _validated(evaluation: Evaluation | None) -> Evaluation | None:
    return None if evaluation is None else evaluation.validation


def _by_client(evaluation: Evaluation) -> ByClient:
    return {name: plain_numbers(values) for name, values in evaluation.values.items()}


def scores_of(evaluation: Evaluation) -> Scores:
    """An evaluation as it is written down."""
    sampled: dict[str, Any] = {}
    if evaluation.sample is not None:
        errors = {name: plain_number(getattr(evaluation, name)) for name in ("error", "weighted_error")}
        sampled = {"clients": evaluation.sample.clients.tolist(), **errors}
    return Scores(
        mean=plain_number(evaluation.mean),
        weighted=plain_number(evaluation.weighted),
        std=plain_number(evaluation.std),
        worst_decile=plain_number(evaluation.worst_decile),
        values=_by_client(evaluation),
        **sampled,
    )


def tested_sample(scores: Scores, clients: int) -> TestedSample | None:
    """Who was tested, of so many clients; none if that was everybody."""
    return None if scores.clients is None else TestedSample(np.array(scores.clients, np.int64), clients)


def by_client(scores: Scores, metric: str, clients: int) -> Floats:
    """A metric of every client: `[K]`, NaN for who was not tested.

    >>> sampled = Scores(mean=0.5, weighted=0.5, std=0.0, worst_decile=0.5, values={"accuracy": [0.5]}, clients=[1])
    >>> by_client(sampled, "accuracy", clients=2)
    array([nan, 0.5])
    """
    values, sample = numbers(scores.values[metric]), tested_sample(scores, clients)
    return values if sample is None else sample.spread(values)


def plain_numbers(values: Floats) -> list[Number]:
    """Numbers as JSON knows them: none for what is not finite.

    >>> plain_numbers(np.array([0.5, np.nan]))
    [0.5, None]
    """
    if np.isfinite(values).all():
        finite: list[Number] = values.tolist()
        return finite
    return [plain_number(value) for value in values.tolist()]


def plain_number(value: float) -> Number:
    """A number as JSON knows it."""
    return value if math.isfinite(value) else None


def numbers(values: Sequence[Number]) -> Floats:
    """What `plain_numbers` came from: none becomes NaN."""
    return np.array(values, np.float64)


@dataclass
class History:
    """The lines of all rounds so far."""

    task: Task
    test_sizes: list[int]
    lines: list[Line] = field(default_factory=list)
    validation_sizes: list[int] = field(default_factory=list)

    def evaluations(self, moment: Moment) -> list[Scores]:
        """What was measured at a moment, in the order of rounds. Where everybody trained, that is what they store."""
        return [scores for _, scores in self.measured(moment)]

    def measured(self, moment: Moment) -> list[tuple[int, Scores]]:
        """The same with the rounds."""
        return [(line.round, scores) for line in self.lines if (scores := line.at(moment)) is not None]

    def validated(self, moment: Moment) -> list[Scores]:
        """The same on validation samples; nothing if there are none."""
        held = (line.validation.at(moment) for line in self.lines if line.validation is not None)
        return [scores for scores in held if scores is not None]

    def last(self, moment: Moment) -> Evaluation | None:
        """The evaluation at a moment of the very last round, if everybody was tested then."""
        scores = self.lines[-1].at(moment) if self.lines and getattr(self.lines[-1], moment) is not None else None
        return self.newest(moment) if scores is not None and scores.clients is None else None

    def stored(self, first: Evaluation) -> Evaluation:
        """Everybody's score right after their own last training; `first` is everybody's before any."""
        held = first
        for line in self.lines:
            if line.cohort_trained is not None:
                cohort = np.array(line.cohort, np.int64)
                validated = None if line.validation is None else line.validation.cohort_trained
                values, held_out = (
                    None if scores is None else self._of_cohort(scores) for scores in (line.cohort_trained, validated)
                )
                assert values is not None
                held = held.updated(cohort, self._evaluation(values, held_out, cohort))
        return held

    def newest(self, moment: Moment) -> Evaluation | None:
        """The last evaluation at a moment that there is."""
        evaluations, validated = self.evaluations(moment), self.validated(moment)
        if not evaluations:
            return None
        held_out = self._everybody(validated[-1]) if validated else None
        return self._evaluation(self._everybody(evaluations[-1]), held_out)

    def _evaluation(
        self,
        values: Mapping[str, Floats],
        validated: Mapping[str, Floats] | None,
        whose: Integers | slice = slice(None),
    ) -> Evaluation:
        scale = self.task.primary.scale
        sizes, held_sizes = np.array(self.test_sizes), np.array(self.validation_sizes)
        validation = None if validated is None else Evaluation(scale, validated, held_sizes[whose])
        return Evaluation(scale, values, sizes[whose], validation)

    def _of_cohort(self, values: ByClient) -> dict[str, Floats]:
        return {metric.scale.name: numbers(values[metric.scale.name]) for metric in self.task.metrics}

    def _everybody(self, scores: Scores) -> dict[str, Floats]:
        return {metric.scale.name: self._of_everybody(scores, metric.scale.name) for metric in self.task.metrics}

    def _of_everybody(self, scores: Scores, metric: str) -> Floats:
        return by_client(scores, metric, len(self.test_sizes))

    def curves(self, metric: str) -> Curves:
        """A metric by moment, mean and way to choose the round; nothing as long as nothing was evaluated.

        With validation samples there is `by_validation` too: the value in the round in which what the task is judged by
        was best on these.
        """
        scale, judged = self.task.metric(metric).scale, self.task.primary.scale
        weights = {"mean": None, "weighted": np.array(self.test_sizes)}
        held_weights = {"mean": None, "weighted": np.array(self.validation_sizes)}
        curves: Curves = {}
        for moment in MOMENTS:
            clients = [self._of_everybody(scores, metric) for scores in self.evaluations(moment)]
            if not clients:
                continue
            curves[moment] = {}
            held = [self._of_everybody(scores, judged.name) for scores in self.validated(moment)]
            for mean, sizes in weights.items():
                validation = [mean_over_clients(values, held_weights[mean]) for values in held]
                curve = over_rounds(scale, [mean_over_clients(values, sizes) for values in clients], validation, judged)
                curves[moment][mean] = {at: plain_number(value) for at, value in curve.items()}
        return curves

    def validation_curves(self) -> Curves:
        """What the task is judged by, on validation samples, likewise."""
        scale = self.task.primary.scale
        curves: Curves = {}
        for moment in MOMENTS:
            clients = [self._of_everybody(scores, scale.name) for scores in self.validated(moment)]
            weights = {"mean": None, "weighted": np.array(self.validation_sizes)}
            for mean, sizes in weights.items() if clients else ():
                curve = over_rounds(scale, [mean_over_clients(values, sizes) for values in clients])
                curves.setdefault(moment, {})[mean] = {at: plain_number(value) for at, value in curve.items()}
        return curves

    def honest(self, names: Sequence[str], hostile: Sequence[int]) -> dict[str, Any]:
        """Who is hostile, and by moment the honest clients' mean over rounds and their worst decile in the last one."""
        if not hostile:
            return {}
        honest = [row for row in range(len(names)) if row not in set(hostile)]
        scale, sizes = self.task.primary.scale, np.array(self.test_sizes)[honest]
        moments: dict[str, Any] = {}
        for moment in MOMENTS:
            tests = [self._of_everybody(scores, scale.name)[honest] for scores in self.evaluations(moment)]
            if tests:
                means = over_rounds(scale, [mean_over_clients(values) for values in tests])
                worst = Evaluation(scale, {scale.name: tests[-1]}, sizes).worst_decile
                moments[moment] = {
                    "mean": {at: plain_number(value) for at, value in means.items()},
                    "worst_decile": plain_number(worst),
                }
        return {"hostile": [names[row] for row in hostile], "honest": moments}

    def sampled(self) -> dict[str, Any]:
        """How many clients a sample of the last round has, of how many, and by moment its means' standard errors."""
        if not self.lines:
            return {}
        newest = self.lines[-1]
        tests = [(moment, scores) for moment in MOMENTS if (scores := getattr(newest, moment)) is not None]
        samples = [(moment, scores) for moment, scores in tests if scores.clients is not None]
        if not samples:
            return {}
        sample: dict[str, Any] = {
            "clients": max(len(scores.clients) for _, scores in samples),
            "of": len(self.test_sizes),
            "at_the_end": bool(newest.everybody),
        }
        for moment, scores in samples:
            sample[moment] = {"error": scores.error, "weighted_error": scores.weighted_error}
        return sample

    def seconds(self) -> dict[str, Any]:
        """Time in all, and per round by activity."""
        total = {name: sum(getattr(line.seconds, name) for line in self.lines) for name in ACTIVITIES}
        rounds = max(len(self.lines), 1)
        return {
            "total": sum(total.values()),
            "per_round": {name: seconds / rounds for name, seconds in total.items()},
        }

    def epsilons(self, clients: int) -> list[Number]:
        """Every client's ε so far, 0 for who has not trained; none if it is infinite."""
        spent: list[Number] = [0.0] * clients
        for line in self.lines:
            for client, epsilon in zip((*line.cohort, *line.missing), line.parts[PRIVACY]["clients"], strict=True):
                spent[client] = epsilon
        return spent

    def effort(self) -> dict[str, Any]:
        """What a client computes in a round, on average: `steps` by what they train, samples `forward`, and `tuning`.

        The last is of a test, where clients tune before it. There is nothing in runs that do not tell of it.
        """
        efforts = [line.effort for line in self.lines if line.effort]
        if not efforts:
            return {}
        totals = dict.fromkeys((name for columns in efforts for name in columns), 0)
        for columns in efforts:
            for name, values in columns.items():
                totals[name] += sum(values)
        client_rounds = max(1, sum(len(columns[FORWARD]) for columns in efforts))
        means = {name: total / client_rounds for name, total in totals.items()}
        forward = means.pop(FORWARD)
        tuned = [line.tuning for line in self.lines if line.tuning is not None]
        gradients, tests = sum(tuning.gradients for tuning in tuned), sum(tuning.tests for tuning in tuned)
        return {
            "steps": {name.removeprefix(STEPS): mean for name, mean in means.items()},
            FORWARD: forward,
            **({TUNING: gradients / tests} if tests else {}),
        }

    def bytes(self) -> dict[str, Any]:
        """Bytes up and down, in all and per participating client and round."""
        up, down = (sum(getattr(line.bytes, way) for line in self.lines) for way in ("up", "down"))
        client_rounds = max(sum(len(line.cohort) for line in self.lines), 1)
        return {
            "up": up,
            "down": down,
            "total": up + down,
            "per_client_round": {"up": up / client_rounds, "down": down / client_rounds},
        }

    def diverged(
        self,
        names: Mapping[int, str],
        what: Literal["diverged", "tuning_diverged", "quarantined", "missing"] = "diverged",
    ) -> dict[str, list[int]]:
        """The rounds in which clients (or their tuning) diverged, were in quarantine, or did not answer, by name."""
        rounds: dict[str, list[int]] = {}
        for line in self.lines:
            for client in getattr(line, what):
                rounds.setdefault(names[client], []).append(line.round)
        return rounds

    def training_of(self, metric: str) -> Floats:
        """A metric of every client on the samples that it trained on, in the last round in which it did: `[K]`.

        NaN for one that never did.
        """
        values = np.full(len(self.test_sizes), np.nan)
        for line in self.lines:
            if line.training is not None:
                values[line.cohort] = numbers(line.training[metric])
        return values

    def training_frame(self, names: Sequence[str]) -> DataFrame:
        """Every metric of every round and client that trained in it, as a pandas frame."""
        from pandas import DataFrame

        metrics = [metric.scale.name for metric in self.task.metrics]
        rows = (
            (line.round, names[client], *(line.training[metric][place] for metric in metrics))
            for line in self.lines
            if line.training is not None
            for place, client in enumerate(line.cohort)
        )
        return DataFrame(rows, columns=("round", "client", *metrics))


def training_mean(line: Line, metric: str) -> float:
    """A metric's mean over the cohort of a round, on the samples that it trained on; NaN where it was not recorded.

    >>> cost = {"seconds": Seconds(1, 0, 0), "bytes": Travelled(8, 8)}
    >>> training_mean(Line(round=1, cohort=[3, 1], training={"loss": [0.5, None]}, **cost), "loss")
    0.5
    """
    return mean_over_clients(numbers((line.training or {}).get(metric, [])))
