"""What a run leaves behind round by round, and its sum: the summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from coterie.core.task import Task
from coterie.rounds.evaluate import MOMENTS, Evaluation, Floats, Moment, mean_over_clients, over_rounds
from coterie.rounds.report import RoundReport

Line = dict[str, Any]
ACTIVITIES = ("train", "exchange", "evaluate")


def as_line(report: RoundReport) -> Line:
    """A round as plain values: one line of the metrics file."""
    line: Line = {
        "round": report.round,
        "cohort": report.cohort,
        "diverged": report.diverged,
        "tuning_diverged": report.tuning_diverged,
        "seconds": report.seconds,
        "bytes": report.bytes,
    }
    if report.cohort_trained is not None:
        found = report.cohort_trained.values
        line["cohort_trained"] = {name: plain_numbers(values) for name, values in found.items()}
    for moment in MOMENTS:
        evaluation: Evaluation | None = getattr(report, moment)
        if evaluation is not None:
            line[moment] = {
                "mean": plain_number(evaluation.mean),
                "weighted": plain_number(evaluation.weighted),
                "std": plain_number(evaluation.std),
                "worst_decile": plain_number(evaluation.worst_decile),
                **{name: plain_numbers(values) for name, values in evaluation.values.items()},
            }
    return line


def plain_numbers(values: Floats) -> list[float | None]:
    """Numbers as JSON knows them: none for what is not finite.

    >>> plain_numbers(np.array([0.5, np.nan]))
    [0.5, None]
    """
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

    def evaluations(self, moment: Moment) -> list[Line]:
        """What was measured at a moment, in the order of rounds. Where everybody trained, that is what they store."""
        return [found for _, found in self.measured(moment)]

    def measured(self, moment: Moment) -> list[tuple[int, Line]]:
        """The same with the rounds."""
        found = (
            (line["round"], line.get(moment) or (line.get("trained") if moment == "stored" else None))
            for line in self.lines
        )
        return [(round, measured) for round, measured in found if measured is not None]

    def last(self, moment: Moment) -> Evaluation | None:
        """The evaluation at a moment of the very last round, if that was evaluated."""
        return self.newest(moment) if self.lines and moment in self.lines[-1] else None

    def stored(self, first: Evaluation) -> Evaluation:
        """Everybody's score right after their own last training; `first` is everybody's before any."""
        held = first
        for line in self.lines:
            if "cohort_trained" in line:
                held = held.updated(np.array(line["cohort"]), self._evaluation(line["cohort_trained"]))
        return held

    def newest(self, moment: Moment) -> Evaluation | None:
        """The last evaluation at a moment that there is."""
        evaluations = self.evaluations(moment)
        return self._evaluation(evaluations[-1]) if evaluations else None

    def _evaluation(self, found: Line) -> Evaluation:
        values = {metric.scale.name: numbers(found[metric.scale.name]) for metric in self.task.metrics}
        return Evaluation(self.task.primary.scale, values, np.array(self.test_sizes))

    def curves(self, metric: str) -> dict[str, dict[str, dict[str, float | None]]]:
        """A metric's `[moment][mean | weighted][best | last | last5]`; nothing as long as nothing was evaluated."""
        scale = self.task.metric(metric).scale
        weights = {"mean": None, "weighted": np.array(self.test_sizes)}
        found: dict[str, dict[str, dict[str, float | None]]] = {}
        for moment in MOMENTS:
            clients = [numbers(entry[metric]) for entry in self.evaluations(moment)]
            if not clients:
                continue
            found[moment] = {}
            for mean, sizes in weights.items():
                curve = over_rounds(scale, [mean_over_clients(values, sizes) for values in clients])
                found[moment][mean] = {at: plain_number(value) for at, value in curve.items()}
        return found

    def seconds(self) -> dict[str, Any]:
        """Time in all, and per round by activity."""
        total = {name: sum(line["seconds"][name] for line in self.lines) for name in ACTIVITIES}
        rounds = max(len(self.lines), 1)
        return {
            "total": sum(total.values()),
            "per_round": {name: seconds / rounds for name, seconds in total.items()},
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
        self, names: Mapping[int, str], what: Literal["diverged", "tuning_diverged"] = "diverged"
    ) -> dict[str, list[int]]:
        """The rounds in which clients (or their tuning before a test) diverged, by client name."""
        found: dict[str, list[int]] = {}
        for line in self.lines:
            for client in line.get(what, ()):  # lines of older runs do not tell of tuning
                found.setdefault(names[client], []).append(line["round"])
        return found
