"""What a run leaves behind round by round, and its sum: the summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from coterie.client.effort import FORWARD, STEPS, effort_columns
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
from coterie.rounds.report import RoundReport

Line = dict[str, Any]
ACTIVITIES = ("train", "exchange", "evaluate")
COHORT = "cohort_trained"
TRAINING = "training"
"""Where a line holds how the cohort did on the samples that it trained on, while it did."""
PRIVACY = "privacy"
"""Where a line holds the largest ε of all clients so far and those of who was asked (none: infinite), if promised."""
EFFORT = "effort"
"""Where a line holds what the cohort computed, client by client: gradients by what they train, samples forward."""
TUNING = "tuning"
"""Where a line holds how many gradients clients computed to tune before their tests, and in how many tests."""
TUNED = ("gradients", "tests")
TESTED = "clients"
"""Where the scores of a moment say whose they are, if not everybody's; beside them stand the means' standard errors."""
ERRORS = ("error", "weighted_error")
EVERYBODY = "everybody"
"""Where the last line holds the scores of everybody, by moment, if samples were tested before."""
VALIDATION = "validation"
"""Where a line holds the same as for test samples of the validation samples, if there are any."""


def as_line(report: RoundReport) -> Line:
    """A round as plain values: one line of the metrics file."""
    parts = {name: msgspec.to_builtins(note) for name, note in report.parts.items()}
    line: Line = {
        "round": report.round,
        "cohort": report.cohort,
        **({"missing": report.missing} if report.missing else {}),
        "diverged": report.diverged,
        **({"quarantined": parts["quarantine"]["clients"]} if "quarantine" in parts else {}),
        "tuning_diverged": report.tuning_diverged,
        "seconds": report.seconds,
        "bytes": report.bytes,
    }
    if PRIVACY in parts:
        line[PRIVACY] = parts[PRIVACY]
    if report.efforts:
        line[EFFORT] = effort_columns(report.efforts)
    if report.tuning[1]:
        line[TUNING] = dict(zip(TUNED, report.tuning, strict=True))
    if report.training is not None:
        line[TRAINING] = _by_client(report.training)
    validation: Line = {}
    if report.cohort_trained is not None:
        line[COHORT] = _by_client(report.cohort_trained)
        if report.cohort_trained.validation is not None:
            validation[COHORT] = _by_client(report.cohort_trained.validation)
    for moment in MOMENTS:
        evaluation: Evaluation | None = getattr(report, moment)
        if evaluation is not None:
            line[moment] = _with_means(evaluation)
            if evaluation.validation is not None:
                validation[moment] = _with_means(evaluation.validation)
    if report.everybody:
        line[EVERYBODY] = {moment: _with_means(own) for moment, own in report.everybody.items()}
        held = {moment: own.validation for moment, own in report.everybody.items() if own.validation is not None}
        if held:
            validation[EVERYBODY] = {moment: _with_means(own) for moment, own in held.items()}
    return {**line, VALIDATION: validation} if validation else line


def _by_client(evaluation: Evaluation) -> Line:
    return {name: plain_numbers(values) for name, values in evaluation.values.items()}


def _with_means(evaluation: Evaluation) -> Line:
    return {
        "mean": plain_number(evaluation.mean),
        "weighted": plain_number(evaluation.weighted),
        "std": plain_number(evaluation.std),
        "worst_decile": plain_number(evaluation.worst_decile),
        **_by_client(evaluation),
        **_sampled(evaluation),
    }


def _sampled(evaluation: Evaluation) -> Line:
    """Whose the scores are and how far off the means may be, where a sample was tested."""
    if evaluation.sample is None:
        return {}
    errors = {name: plain_number(getattr(evaluation, name)) for name in ERRORS}
    return {**errors, TESTED: evaluation.sample.clients.tolist()}


def tested_sample(found: Line, clients: int) -> TestedSample | None:
    """Who was tested at a moment of a line, of so many clients; none if that was everybody."""
    return TestedSample(np.array(found[TESTED], np.int64), clients) if TESTED in found else None


def by_client(found: Line, metric: str, clients: int) -> Floats:
    """A metric of every client at a moment of a line: `[K]`, NaN for who was not tested.

    >>> by_client({"accuracy": [0.5], "clients": [1]}, "accuracy", clients=2)
    array([nan, 0.5])
    """
    values, sample = numbers(found[metric]), tested_sample(found, clients)
    return values if sample is None else sample.spread(values)


def plain_numbers(values: Floats) -> list[float | None]:
    """Numbers as JSON knows them: none for what is not finite.

    >>> plain_numbers(np.array([0.5, np.nan]))
    [0.5, None]
    """
    if np.isfinite(values).all():
        found: list[float | None] = values.tolist()
        return found
    return [plain_number(value) for value in values.tolist()]


def plain_number(value: float) -> float | None:
    """A number as JSON knows it."""
    return value if math.isfinite(value) else None


def numbers(values: Sequence[float | None]) -> Floats:
    """What `plain_numbers` came from: none becomes NaN."""
    return np.array(values, np.float64)


@dataclass
class History:
    """The lines of all rounds so far."""

    task: Task
    test_sizes: list[int]
    lines: list[Line] = field(default_factory=list)
    validation_sizes: list[int] = field(default_factory=list)

    def evaluations(self, moment: Moment) -> list[Line]:
        """What was measured at a moment, in the order of rounds. Where everybody trained, that is what they store."""
        return [found for _, found in self.measured(moment)]

    def measured(self, moment: Moment) -> list[tuple[int, Line]]:
        """The same with the rounds."""
        found = ((line["round"], at_moment(line, moment)) for line in self.lines)
        return [(round, measured) for round, measured in found if measured is not None]

    def validated(self, moment: Moment) -> list[Line]:
        """The same on validation samples; nothing if there are none."""
        found = (at_moment(line[VALIDATION], moment) for line in self.lines if VALIDATION in line)
        return [measured for measured in found if measured is not None]

    def last(self, moment: Moment) -> Evaluation | None:
        """The evaluation at a moment of the very last round, if that was evaluated."""
        told = at_moment(self.lines[-1], moment) if self.lines and moment in self.lines[-1] else None
        return self.newest(moment) if told is not None and TESTED not in told else None

    def stored(self, first: Evaluation) -> Evaluation:
        """Everybody's score right after their own last training; `first` is everybody's before any."""
        held = first
        for line in self.lines:
            if COHORT in line:
                cohort = np.array(line["cohort"], np.int64)
                held = held.updated(
                    cohort, self._evaluation(line[COHORT], line.get(VALIDATION, {}).get(COHORT), cohort)
                )
        return held

    def newest(self, moment: Moment) -> Evaluation | None:
        """The last evaluation at a moment that there is."""
        evaluations, validated = self.evaluations(moment), self.validated(moment)
        return self._evaluation(evaluations[-1], validated[-1] if validated else None) if evaluations else None

    def _evaluation(
        self, found: Line, validated: Line | None = None, whose: Integers | slice = slice(None)
    ) -> Evaluation:
        scale, names = self.task.primary.scale, [metric.scale.name for metric in self.task.metrics]
        validation = None
        if validated is not None:
            held = {name: self._everybodys(validated, name) for name in names}
            validation = Evaluation(scale, held, np.array(self.validation_sizes)[whose])
        values = {name: self._everybodys(found, name) for name in names}
        return Evaluation(scale, values, np.array(self.test_sizes)[whose], validation)

    def _everybodys(self, found: Line, metric: str) -> Floats:
        return by_client(found, metric, len(self.test_sizes))

    def curves(self, metric: str) -> dict[str, dict[str, dict[str, float | None]]]:
        """A metric's `[moment][mean | weighted][best | last | last5]`; nothing as long as nothing was evaluated.

        With validation samples there is `by_validation` too: the value in the round in which what the task is judged by
        was best on these.
        """
        scale, judged = self.task.metric(metric).scale, self.task.primary.scale
        weights = {"mean": None, "weighted": np.array(self.test_sizes)}
        held_weights = {"mean": None, "weighted": np.array(self.validation_sizes)}
        found: dict[str, dict[str, dict[str, float | None]]] = {}
        for moment in MOMENTS:
            clients = [self._everybodys(entry, metric) for entry in self.evaluations(moment)]
            if not clients:
                continue
            found[moment] = {}
            held = [self._everybodys(entry, judged.name) for entry in self.validated(moment)]
            # The first rounds of a run that an older version began tell nothing of validation, and cannot be chosen.
            held = [np.full(len(self.test_sizes), np.nan)] * (len(clients) - len(held)) + held if held else []
            for mean, sizes in weights.items():
                validation = [mean_over_clients(values, held_weights[mean]) for values in held]
                curve = over_rounds(scale, [mean_over_clients(values, sizes) for values in clients], validation, judged)
                found[moment][mean] = {at: plain_number(value) for at, value in curve.items()}
        return found

    def validation_curves(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """What the task is judged by, on validation samples: `[moment][mean | weighted][best | last | last5]`."""
        scale = self.task.primary.scale
        found: dict[str, dict[str, dict[str, float | None]]] = {}
        for moment in MOMENTS:
            clients = [self._everybodys(entry, scale.name) for entry in self.validated(moment)]
            if clients:
                weights = {"mean": None, "weighted": np.array(self.validation_sizes)}
                curves = {
                    mean: over_rounds(scale, [mean_over_clients(values, sizes) for values in clients])
                    for mean, sizes in weights.items()
                }
                found[moment] = {
                    mean: {at: plain_number(value) for at, value in curve.items()} for mean, curve in curves.items()
                }
        return found

    def sampled(self) -> dict[str, Any]:
        """How many clients a sample of the last round has, of how many, and by moment its means' standard errors."""
        newest = self.lines[-1] if self.lines else {}
        found = {moment: newest[moment] for moment in MOMENTS if TESTED in newest.get(moment, {})}
        if not found:
            return {}
        counts = {len(told[TESTED]) for told in found.values()}
        errors: Line = {moment: {name: told[name] for name in ERRORS} for moment, told in found.items()}
        return {"clients": max(counts), "of": len(self.test_sizes), "at_the_end": EVERYBODY in newest, **errors}

    def seconds(self) -> dict[str, Any]:
        """Time in all, and per round by activity."""
        total = {name: sum(line["seconds"][name] for line in self.lines) for name in ACTIVITIES}
        rounds = max(len(self.lines), 1)
        return {
            "total": sum(total.values()),
            "per_round": {name: seconds / rounds for name, seconds in total.items()},
        }

    def epsilons(self, clients: int) -> list[float | None]:
        """Every client's ε so far, 0 for who has not trained; none if it is infinite."""
        found: list[float | None] = [0.0] * clients
        for line in self.lines:
            asked = [*line["cohort"], *line.get("missing", ())]
            for client, spent in zip(asked, line[PRIVACY]["clients"], strict=True):
                found[client] = spent
        return found

    def effort(self) -> dict[str, Any]:
        """What a client computes in a round, on average: `steps` by what they train, samples `forward`, and `tuning`.

        The last is of a test, where clients tune before it. There is nothing in runs that do not tell of it.
        """
        told = [line[EFFORT] for line in self.lines if EFFORT in line]
        if not told:
            return {}
        totals = dict.fromkeys((name for columns in told for name in columns), 0)
        for columns in told:
            for name, values in columns.items():
                totals[name] += sum(values)
        client_rounds = max(1, sum(len(columns[FORWARD]) for columns in told))
        means = {name: total / client_rounds for name, total in totals.items()}
        forward = means.pop(FORWARD)
        tuned = [line[TUNING] for line in self.lines if TUNING in line]
        gradients, tests = (sum(one[name] for one in tuned) for name in TUNED)
        return {
            "steps": {name.removeprefix(STEPS): mean for name, mean in means.items()},
            FORWARD: forward,
            **({TUNING: gradients / tests} if tests else {}),
        }

    def bytes(self) -> dict[str, Any]:
        """Bytes up and down, in all and per participating client and round."""
        up, down = (sum(line["bytes"][way] for line in self.lines) for way in ("up", "down"))
        client_rounds = max(sum(len(line["cohort"]) for line in self.lines), 1)
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
        found: dict[str, list[int]] = {}
        for line in self.lines:
            for client in line.get(what, ()):  # lines of older runs do not tell of everything
                found.setdefault(names[client], []).append(line["round"])
        return found


def at_moment(line: Line, moment: Moment) -> Line | None:
    """What a line has of a moment: of everybody, if it has that. Where everybody trained, that is what they store.

    >>> at_moment({"trained": {"mean": 0.5}}, "stored"), at_moment({"everybody": {"stored": {"mean": 1}}}, "stored")
    ({'mean': 0.5}, {'mean': 1})
    """
    found: Line | None = line.get(EVERYBODY, {}).get(moment) or line.get(moment)
    if found is None and moment == "stored" and not (COHORT in line and TESTED in line.get("trained", {})):
        found = line.get("trained")
    return found
