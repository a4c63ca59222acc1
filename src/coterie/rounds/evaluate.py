"""From scores to numbers: per client, per moment, over rounds. All are recorded; none is chosen silently."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coterie.client.scores import Score, sums_of
from coterie.core.numbers import Scale
from coterie.core.task import Metric, Task
from coterie.core.task.base import LOSS, SAMPLES, Sums

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Moment = Literal["received", "trained", "stored"]
"""When a model is tested: after the download; after the round's training, in which others may have rested, who then
show what they hold with the newest shared part; or right after the client's own last training, whenever that was."""
MOMENTS: tuple[Moment, ...] = ("received", "trained", "stored")


@dataclass(frozen=True)
class TestedSample:
    """Who was tested where not everybody was: the ids `clients [m]`, drawn at random from `of` clients."""

    clients: Integers
    of: int

    def spread(self, values: Floats) -> Floats:
        """Their `values [m]` as everybody's: `[of]`, NaN for who was not tested.

        >>> TestedSample(np.array([2, 0]), of=3).spread(np.array([0.5, 1.0]))
        array([1. , nan, 0.5])
        """
        everybody = np.full(self.of, np.nan)
        everybody[self.clients] = values
        return everybody


@dataclass(frozen=True)
class Evaluation:
    """One moment of one round: every metric of every client, and test sizes, each `[K]`.

    Means, deviation and the worst clients are those of the metric that the task is judged by, whose `scale` says what
    is worse. Clients for whom there is no such number (NaN) do not count in them. Where a `sample` of the clients was
    tested, all is of those: `[m]`, in their order.

    >>> values = {"accuracy": np.array([1.0, 0.5]), "loss": np.array([0.1, 0.7])}
    >>> e = Evaluation(Scale("accuracy"), values, np.array([10, 30]))
    >>> float(e.mean), float(e.weighted), float(e.worst_decile)
    (0.75, 0.625, 0.5)
    """

    scale: Scale
    values: Mapping[str, Floats]
    sizes: Integers
    validation: Evaluation | None = None  # the same on validation samples, where there are some
    sample: TestedSample | None = None  # whom it is of, where not of everybody

    @classmethod
    def nobody(cls, task: Task, clients: int, validated: bool) -> Evaluation:
        """The evaluation of clients that have not been tested."""
        values = {metric.scale.name: np.full(clients, np.nan) for metric in task.metrics}
        validation = cls.nobody(task, clients, False) if validated else None
        return cls(task.primary.scale, values, np.zeros(clients, np.int64), validation)

    def of_sample(self, clients: Tensor, of: int) -> Evaluation:
        """The same as that of a sample drawn from so many; as it is if that is everybody."""
        if len(clients) == of:
            return self
        sample = TestedSample(clients.numpy(), of)
        held = None if self.validation is None else replace(self.validation, sample=sample)
        return replace(self, sample=sample, validation=held)

    @classmethod
    def of(cls, task: Task, scores: Sequence[Score], validation: Sequence[int] | None = None) -> Evaluation:
        """The evaluation that the clients' scores amount to; the last samples of each may be for validation."""
        if validation is not None:
            parts = [
                score.split([len(score.losses) - size, size]) for score, size in zip(scores, validation, strict=True)
            ]
            return replace(
                cls.of(task, [tested for tested, _ in parts]), validation=cls.of(task, [held for _, held in parts])
            )
        return cls.of_sums(task, sums_of(scores))

    @classmethod
    def of_sums(cls, task: Task, sums: Sequence[Sums]) -> Evaluation:
        """The evaluation that sums over each client's samples amount to; without samples there is no number."""
        sizes = np.array([of_client[SAMPLES] for of_client in sums], np.int64)
        values = {metric.scale.name: _values(metric, sums, sizes) for metric in task.metrics}
        return cls(task.primary.scale, values, sizes)

    @classmethod
    def joined(cls, parts: Sequence[tuple[Tensor, Evaluation]]) -> Evaluation:
        """The evaluation of everybody, from those of some clients (`[m]` ids) each."""
        back = np.argsort(np.concatenate([clients.numpy() for clients, _ in parts]))
        evaluations = [part for _, part in parts]
        values = {
            name: np.concatenate([part.values[name] for part in evaluations])[back] for name in evaluations[0].values
        }
        held = [(clients, part.validation) for clients, part in parts if part.validation is not None]
        validation = cls.joined(held) if len(held) == len(parts) else None
        return cls(evaluations[0].scale, values, np.concatenate([part.sizes for part in evaluations])[back], validation)

    def updated(self, clients: Integers, newer: Evaluation) -> Evaluation:
        """The same with some clients' entries replaced."""
        values = {name: column.copy() for name, column in self.values.items()}
        for name, column in values.items():
            column[clients] = newer.values[name]
        sizes = self.sizes.copy()
        sizes[clients] = newer.sizes
        validation = None
        if self.validation is not None and newer.validation is not None:
            validation = self.validation.updated(clients, newer.validation)
        return Evaluation(self.scale, values, sizes, validation)

    def chosen(self, places: Integers) -> Evaluation:
        """That of some of the clients, by their places here."""
        values = {name: column[places] for name, column in self.values.items()}
        held = None if self.validation is None else self.validation.chosen(places)
        return Evaluation(self.scale, values, self.sizes[places], held)

    @property
    def judged(self) -> Floats:
        """The metric that the task is judged by: `[K]`."""
        return self.values[self.scale.name]

    @property
    def loss(self) -> Floats:
        """The mean loss: `[K]`."""
        return self.values[LOSS]

    @property
    def mean(self) -> float:
        """Every client counts the same."""
        return mean_over_clients(self.judged)

    @property
    def weighted(self) -> float:
        """Every client counts by its test samples."""
        return mean_over_clients(self.judged, self.sizes)

    @property
    def worst_decile(self) -> float:
        """The mean over the worst tenth of the clients (at least one)."""
        worst = self.scale.worst_first(_known(self.judged).tolist())
        return mean_over_clients(np.array(worst[: max(1, len(worst) // 10)]))

    @property
    def std(self) -> float:
        """The standard deviation over clients."""
        known = _known(self.judged)
        return float(known.std()) if len(known) else float("nan")

    @property
    def error(self) -> float:
        """The standard error of `mean` as an estimate of everybody's: 0 if everybody was tested."""
        return 0.0 if self.sample is None else sampling_error(self.judged, self.sample.of)

    @property
    def weighted_error(self) -> float:
        """The standard error of `weighted` as an estimate of everybody's: 0 if everybody was tested."""
        return 0.0 if self.sample is None else sampling_error(self.judged, self.sample.of, self.sizes)


def sampling_error(values: Floats, of: int, sizes: Integers | None = None) -> float:
    """The standard error of the mean of m clients' `values [m]`, drawn from so many without putting back.

    It is s / √m · √(1 − m / K), with s² over m − 1. With `sizes [m]` the mean R is a ratio, Σ n a / Σ n, and s is that
    of n (a − R) over the mean size. Clients without a number do not count; of fewer than two there is none.

    >>> round(sampling_error(np.array([0.0, 1.0, 0.0, 1.0]), of=8), 6)  # s² = 1/3: √(1/3 / 4 · 1/2)
    0.204124
    >>> sampling_error(np.array([0.0, 1.0]), of=2)
    0.0
    """
    known = ~np.isnan(values)
    count, values = int(known.sum()), values[known]
    if count < 2:
        return math.nan
    weights = np.ones(count) if sizes is None else sizes[known] / sizes[known].mean()
    off = weights * (values - (weights * values).mean())
    return float(math.sqrt((off**2).sum() / (count - 1) / count * (1 - count / of)))


def mean_loss(sums: Mapping[str, int | float | None]) -> float | None:
    """The mean loss that a score's sums say; none without samples. What cannot be told for its size is infinite.

    >>> mean_loss({"loss": 3.0, "samples": 2}), mean_loss({"loss": None, "samples": 2})
    (1.5, inf)
    """
    samples, loss = sums.get(SAMPLES), sums.get(LOSS)
    if not samples:
        return None
    return loss / samples if loss is not None and math.isfinite(loss) else math.inf


def _values(metric: Metric, sums: Sequence[Sums], sizes: Integers) -> Floats:
    """What each client's sums amount to, `[K]`; means, which most metrics are, of all clients at once."""
    if type(metric).value is not Metric.value:
        return np.array([metric.value(each) if each[SAMPLES] else math.nan for each in sums])
    quantity = metric.quantity
    totals = np.array([each.get(quantity) for each in sums], np.float64)  # none, where nothing is known, becomes NaN
    # Without samples there is no number, whatever somebody says that they come to.
    means: Floats = np.divide(totals, sizes, out=np.full(len(sums), math.nan), where=sizes > 0)
    return means


def mean_over_clients(values: Floats, sizes: Integers | None = None) -> float:
    """The mean of the clients' `values [K]`, by `sizes [K]` if given; clients without a number do not count.

    >>> mean_over_clients(np.array([1.0, np.nan, 2.0]), np.array([1, 5, 3]))
    1.75
    """
    unknown = np.isnan(values)
    if unknown.any():
        values, sizes = values[~unknown], None if sizes is None else sizes[~unknown]
    if not len(values):
        return math.nan
    return float(values.mean() if sizes is None else (values * sizes).sum() / sizes.sum())


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def over_rounds(
    scale: Scale, values: Sequence[float], validation: Sequence[float] = (), judged: Scale | None = None
) -> dict[str, float]:
    """The ways to sum up a curve: three, and with the curve of the `validation` score (`judged` by its scale) a fourth.

    That is the value in the round in which validation was best, the first of them if there are several.

    >>> over_rounds(Scale("accuracy"), [0.1, 0.9, 0.5])
    {'best': 0.9, 'last': 0.5, 'last5': 0.5}
    >>> over_rounds(Scale("accuracy"), [0.1, 0.9, 0.5], validation=[0.2, 0.3, 0.4])["by_validation"]
    0.5
    """
    ways = {"best": scale.best(values), "last": values[-1], "last5": float(np.mean(values[-5:]))}
    if len(validation):
        best = (judged or scale).best(validation)
        chosen = next((place for place, value in enumerate(validation) if value == best), None)
        ways["by_validation"] = math.nan if chosen is None else values[chosen]
    return ways


@dataclass(frozen=True)
class Finished:
    """What is said of the finished models: the task's final `metrics`, and `quality`, a row for each client."""

    metrics: Mapping[str, float | None] = field(default_factory=dict)
    quality: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, scores: Sequence[Score], labels: Sequence[Tensor]) -> Finished:
        """By every client's scores of its test samples, whose labels are given."""
        quality = task.quality([score.kept for score in scores], labels)
        return cls(task.final_metrics(sums_of(scores), quality), quality)
