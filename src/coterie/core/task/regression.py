"""Regression: a label is a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.numbers import Scale
from coterie.core.task.base import SAMPLES, Loss, LossWithSlope, MeanLoss, Metric, Sums, Task, mean_of, merged
from coterie.devices import exact
from coterie.errors import CoterieError, require

LARGEST_ERROR = 1e30
"""The error of a prediction that is no number (a model overflowed); none counts more, so that sums stay finite."""


def errors(outputs: Tensor, labels: Tensor) -> Tensor:
    """The absolute errors in float64, none larger than `LARGEST_ERROR`: `[B]`."""
    absolute = (exact(outputs[..., 0]) - exact(labels)).abs()
    return absolute.nan_to_num(nan=LARGEST_ERROR, posinf=LARGEST_ERROR).clamp(max=LARGEST_ERROR)


@dataclass(frozen=True)
class SquaredError(LossWithSlope):
    """(output − label)²."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of every sample: `[B]`."""
        return (outputs[..., 0] - labels).square()

    def mean(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over the batch, in one operation."""
        return torch.nn.functional.mse_loss(outputs[..., 0], labels)

    def slope(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """2 · (output − label)."""
        return (outputs - labels[..., None]).mul_(2)


@dataclass(frozen=True)
class MeanAbsoluteError(Metric):
    """Σ|e| / n, in the label's unit."""

    @property
    def scale(self) -> Scale:
        """The smaller the better."""
        return Scale("mae", higher_is_better=False)

    @property
    def quantity(self) -> str:
        """What is averaged."""
        return "absolute_error"

    def quantities(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """|e|."""
        return {self.quantity: errors(outputs, labels)}


@dataclass(frozen=True)
class RootMeanSquaredError(Metric):
    """√(Σe² / n), in the label's unit: large errors count more."""

    @property
    def scale(self) -> Scale:
        """The smaller the better."""
        return Scale("rmse", higher_is_better=False)

    def quantities(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """e²."""
        return {"squared_error": errors(outputs, labels).square()}

    def value(self, sums: Sums) -> float:
        """The root of the mean."""
        return math.sqrt(mean_of("squared_error", sums))


@dataclass(frozen=True)
class R2(Metric):
    """1 − Σe² / Σ(y − ȳ)²: 1 is perfect, 0 no better than always saying the mean of these samples.

    Labels that are all the same leave nothing to explain: there is no R² then.
    """

    @property
    def scale(self) -> Scale:
        """The higher the better."""
        return Scale("r2")

    def quantities(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """e², y and y²."""
        numbers = labels.double()
        return {
            "squared_error": errors(outputs, labels).square(),
            "label": numbers,
            "squared_label": numbers.square(),
        }

    def value(self, sums: Sums) -> float:
        """From the sums alone: Σ(y − ȳ)² = Σy² − (Σy)² / n."""
        error, label, square, samples = (sums[name] for name in ("squared_error", "label", "squared_label", SAMPLES))
        if error is None or label is None or square is None or not samples:
            return math.nan
        spread = square - label * label / samples
        # What rounding leaves of equal labels is no spread.
        return 1 - error / spread if spread > 1e-12 * square else math.nan


@dataclass(frozen=True)
class Regression(Task):
    """Labels are numbers, float32; the model has one output, which is the prediction.

    Judged by the mean absolute error: unlike R², every client has one, however few test samples it holds and however
    alike they are, and a single gross error does not decide it. RMSE and R² are measured too.

    >>> Regression().predict(torch.tensor([[0.5], [2.0]]))
    tensor([0.5000, 2.0000])
    """

    loss: Loss = field(default_factory=SquaredError, kw_only=True)

    name: ClassVar[str] = "regression"
    label_dtype: ClassVar[torch.dtype] = torch.float32

    def own_metrics(self) -> tuple[Metric, ...]:
        """MAE, RMSE, R² and mean loss."""
        return (MeanAbsoluteError(), RootMeanSquaredError(), R2(), MeanLoss())

    @property
    def outputs(self) -> int:
        """The prediction alone."""
        return 1

    def predict(self, outputs: Tensor) -> Tensor:
        """The output itself."""
        return outputs[:, 0]

    def check_labels(self, labels: Tensor, what: str) -> None:
        """Labels are finite numbers."""
        require(labels.dtype == torch.float32, f"data '{what}': labels of a regression must be float32")
        wrong = torch.nonzero(~torch.isfinite(labels))
        if len(wrong):
            first = int(wrong[0])
            raise CoterieError(f"data '{what}': label of sample {first} is NaN or infinite; remove or fill it")

    def final_metrics(self, sums: Sequence[Sums], quality: Mapping[str, Tensor]) -> dict[str, float | None]:
        """R² over the test samples of all clients together, each predicted by its own client's model."""
        pooled = R2().value(merged(sums))
        return {"pooled_r2": None if math.isnan(pooled) else pooled}
