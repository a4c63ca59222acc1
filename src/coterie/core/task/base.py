"""What a task is: labels, loss, prediction, and metrics made of sums that can be merged."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core.numbers import Scale
from coterie.errors import require, unknown
from coterie.typed import TypedOptions

Sums = Mapping[str, int | float | None]
"""Sums over some samples by quantity, and under `samples` how many those are; none for what is not finite."""

SAMPLES = "samples"
LOSS = "loss"
LOSS_SCALE = Scale(LOSS, higher_is_better=False)


class Loss(ABC):
    """What training makes small, sample by sample: a sample's loss depends on nothing but itself.

    >>> class Absolute(Loss):
    ...     def __call__(self, outputs, labels):
    ...         return (outputs.squeeze(1) - labels).abs()
    >>> import torch
    >>> Absolute().mean(torch.tensor([[1.0], [4.0]]), torch.tensor([0.0, 1.0]))
    tensor(2.)
    """

    @abstractmethod
    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of every sample, `[B]`, of `outputs [B, C]` and `labels [B]`; differentiable in the outputs."""

    def mean(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over the batch, in as few operations as possible."""
        return self(outputs, labels).mean()


class LossWithSlope(Loss):
    """A loss whose derivative is written out: engines can do without autograd, and take many clients at once."""

    @abstractmethod
    def slope(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The derivative of every sample's loss by its outputs: a new `[..., C]` for `outputs [..., C]`."""


class Metric(ABC):
    """A number that says how good a model is, made of sums over samples.

    Sums of several batches or clients are merged by adding them; `value` says what they amount to. A sample's
    quantities depend on that sample alone. Quantities of one name are the same in all metrics of a task.

    >>> class Sure(Metric):
    ...     @property
    ...     def scale(self):
    ...         return Scale("sure", share=True)
    ...     def quantities(self, outputs, labels):
    ...         return {"sure": outputs.softmax(1).amax(1) > 0.9}
    >>> import torch
    >>> Sure().quantities(torch.tensor([[9.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0]))
    {'sure': tensor([ True, False])}
    """

    @property
    @abstractmethod
    def scale(self) -> Scale:
        """Its name, and how its numbers are read."""

    @abstractmethod
    def quantities(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What is summed, each `[B]`: bool where samples are counted, else float."""

    @property
    def quantity(self) -> str:
        """The quantity whose mean the metric is, unless `value` says otherwise: that of its own name."""
        return self.scale.name

    def value(self, sums: Sums) -> float:
        """What sums amount to; NaN if nothing can be said."""
        return mean_of(self.quantity, sums)


@dataclass(frozen=True)
class MeanLoss(Metric):
    """The mean of the task's loss; the task itself computes the quantity."""

    @property
    def scale(self) -> Scale:
        """The smaller the better."""
        return LOSS_SCALE

    def quantities(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Nothing beyond the loss, which every task sums up."""
        return {}


def mean_of(quantity: str, sums: Sums) -> float:
    """A quantity's mean over the samples; NaN without samples, or if the sum is not finite.

    >>> mean_of("correct", {"correct": 3, "samples": 4})
    0.75
    """
    total, samples = sums[quantity], sums[SAMPLES]
    return total / samples if total is not None and samples else math.nan


def merged(parts: Sequence[Sums]) -> dict[str, int | float | None]:
    """The sums over all samples of several parts.

    >>> merged([{"correct": 3, "samples": 4}, {"correct": 0, "samples": 1}])
    {'correct': 3, 'samples': 5}
    """
    whole: dict[str, int | float | None] = dict(parts[0])
    for part in parts[1:]:
        for name, total in part.items():
            before = whole[name]
            whole[name] = None if before is None or total is None else before + total
    return whole


@dataclass(frozen=True, kw_only=True)
class Task(metaclass=TypedOptions):
    """What a label is, the loss, the prediction and the metrics, in one object.

    `metrics` holds the task's own metrics first, then those that were asked for besides. `judged_by` names the one
    that tables show and by which the best round, the worst clients and the winner of a comparison are found.
    """

    loss: Loss
    metrics: tuple[Metric, ...] = ()
    judged_by: str = ""

    name: ClassVar[str]
    label_dtype: ClassVar[torch.dtype]

    def __post_init__(self) -> None:
        task_metrics = self.own_metrics()
        known = {metric.scale.name for metric in task_metrics}
        metrics = (*task_metrics, *(metric for metric in self.metrics if metric.scale.name not in known))
        names = [metric.scale.name for metric in metrics]
        require(len(set(names)) == len(names), f"metrics = {', '.join(names)}: two have one name")
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "judged_by", self.judged_by or names[0])
        if self.judged_by not in names:
            raise unknown("metric", self.judged_by, names)

    @abstractmethod
    def own_metrics(self) -> tuple[Metric, ...]:
        """The metrics that are always measured, the one that is usually judged by first."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many outputs the model needs."""

    @abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:
        """What a model with `outputs [n, C]` says about each sample: `[n]`."""

    @abstractmethod
    def check_labels(self, labels: Tensor, what: str) -> None:
        """Refuse labels that are not this task's; `what` names the data."""

    def check_outputs(self, width: int) -> None:
        """Refuse a model that puts out `width` numbers a sample."""
        require(
            width == self.outputs,
            f"model: it has {width} outputs; the task '{self.name}' needs {self.outputs}",
        )

    @property
    def primary(self) -> Metric:
        """The metric that the task is judged by."""
        return self.metric(self.judged_by)

    def metric(self, name: str) -> Metric:
        """A metric by name."""
        by_name = {metric.scale.name: metric for metric in self.metrics}
        if name not in by_name:
            raise unknown(f"metric of the task '{self.name}'", name, by_name)
        return by_name[name]

    def loss_mean(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return self.loss.mean(outputs, labels)

    def scores(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """All that is summed for the metrics, sample by sample: each `[B]`."""
        scores: dict[str, Tensor] = {}
        for metric in self.metrics:
            if metric.scale.name == LOSS:
                scores[LOSS] = self.loss(outputs, labels)
            scores |= metric.quantities(outputs, labels)
        return scores

    def kept(self, outputs: Tensor) -> Tensor | None:
        """What the final metrics need of every sample besides sums: `[n, ...]`, or nothing."""
        return None

    def quality(self, kept: Sequence[Tensor | None], labels: Sequence[Tensor]) -> dict[str, Tensor]:
        """What a run keeps of every client's finished model, by name, a row for each client; nothing by default.

        `kept` is what `kept` made of each client's outputs for its test samples, `labels` are theirs.
        """
        return {}

    def final_metrics(self, sums: Sequence[Sums], quality: Mapping[str, Tensor]) -> dict[str, float | None]:
        """Numbers of all clients for the end of a run, from their sums and `quality`; none where there is no number."""
        return {}

    def accepts(self, sums: object) -> bool:
        """Whether these may be sums of this task's quantities: what a site says of itself may be anything."""
        if not isinstance(sums, dict) or type(sums.get(SAMPLES)) is not int or sums[SAMPLES] < 0:
            return False
        example = self.scores(torch.zeros(1, self.outputs), torch.zeros(1, dtype=self.label_dtype))
        if sums.keys() != {*example, SAMPLES}:
            return False
        for name, quantity in example.items():
            total = sums[name]
            if quantity.dtype == torch.bool and not (type(total) is int and 0 <= total <= sums[SAMPLES]):
                return False
            if quantity.dtype != torch.bool and total is not None and type(total) not in (int, float):
                return False
        return True

    def described(self) -> dict[str, Any]:
        """What readers of a run's files need to know, as plain values."""
        scales = [metric.scale for metric in self.metrics]
        return {
            "name": self.name,
            "judged_by": self.judged_by,
            "metrics": {
                scale.name: {"higher_is_better": scale.higher_is_better, "share": scale.share} for scale in scales
            },
        }
