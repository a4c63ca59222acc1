"""Classification: a label is one of C classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from coterie.core.numbers import ACCURACY, Scale
from coterie.core.task.base import Loss, LossWithSlope, MeanLoss, Metric, Sums, Task
from coterie.core.task.quality import quality_of
from coterie.errors import CoterieError, require

# How many numbers PyTorch's vectors hold on this processor, where that is known.
LANES = {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 0)


@dataclass(frozen=True)
class CrossEntropy(LossWithSlope):
    """−log softmax(outputs) of the right class."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of every sample: `[B]`."""
        if not torch.is_grad_enabled() and outputs.shape[1] < LANES and len(outputs) >= 4 * LANES:
            return _side_by_side(outputs, labels)
        return functional.cross_entropy(outputs, labels, reduction="none")

    def mean(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The same number as the mean of the losses, in one operation instead of two."""
        return functional.cross_entropy(outputs, labels)

    def slope(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """softmax(outputs) − one-hot(label)."""
        # Softmax, step by step: over as few numbers as there are classes, that is several times faster.
        slope = (outputs - outputs.amax(-1, keepdim=True)).exp_()
        slope.div_(slope.sum(-1, keepdim=True))
        return slope.scatter_add_(-1, labels[..., None], slope.new_full((), -1.0).expand(*labels.shape, 1))


def _side_by_side(outputs: Tensor, labels: Tensor) -> Tensor:
    """The same bits with samples side by side in PyTorch's vectors: several times faster where classes are few.

    Rows that do not fill a vector it takes number by number. So it does here with the samples that are left over.
    """
    whole = len(outputs) // LANES * LANES
    first = functional.cross_entropy(outputs[:whole].t()[None], labels[None, :whole], reduction="none")[0]
    if whole == len(outputs):
        return first
    return torch.cat([first, functional.cross_entropy(outputs[whole:], labels[whole:], reduction="none")])


@dataclass(frozen=True)
class Accuracy(Metric):
    """The share of the samples whose class is predicted."""

    @property
    def scale(self) -> Scale:
        """A share, the higher the better."""
        return ACCURACY

    def quantities(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Whether the largest output is that of the right class."""
        return {self.quantity: outputs.argmax(-1) == labels}

    @property
    def quantity(self) -> str:
        """Correct predictions are counted."""
        return "correct"


@dataclass(frozen=True)
class Classification(Task):
    """Labels are class numbers, int64 in 0..C − 1; the model has an output a class and predicts the largest.

    `classes` may be left out where the data says how many there are.

    >>> task = Classification(2)
    >>> task.predict(torch.tensor([[0.2, 0.9]])), task.judged_by
    (tensor([1]), 'accuracy')
    """

    classes: int = 0
    loss: Loss = field(default_factory=CrossEntropy, kw_only=True)

    name: ClassVar[str] = "classification"
    label_dtype: ClassVar[torch.dtype] = torch.int64

    def own_metrics(self) -> tuple[Metric, ...]:
        """Accuracy and mean loss."""
        return (Accuracy(), MeanLoss())

    @property
    def outputs(self) -> int:
        """One a class."""
        return self.classes

    def predict(self, outputs: Tensor) -> Tensor:
        """The class of the largest output."""
        return outputs.argmax(1)

    def check_labels(self, labels: Tensor, what: str) -> None:
        """Labels are class numbers."""
        require(self.classes >= 2, f"data '{what}': {self.classes} class; at least 2 are needed")
        require(labels.dtype == torch.int64, f"data '{what}': labels must be int64")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.classes:
            raise CoterieError(
                f"data '{what}': labels lie in {low}..{high}; with {self.classes} classes they must lie "
                f"in 0..{self.classes - 1}"
            )

    def check_outputs(self, width: int) -> None:
        """A model may know more classes than the data has."""
        require(
            width >= self.classes,
            f"model: it has {width} outputs; the data has {self.classes} classes, each of which needs one",
        )

    def kept(self, outputs: Tensor) -> Tensor:
        """The classes' probabilities, `[n, C]`: macro-F1 and AUC do not follow from sums."""
        return outputs.softmax(-1)

    def quality(self, kept: Sequence[Tensor | None], labels: Sequence[Tensor]) -> dict[str, Tensor]:
        """Classes that are recognised, macro-F1, one-against-rest AUC and calibration, client by client.

        A client's AUC is over the classes in its own test data; with a single class there is none. Scores that
        are not numbers (a model that overflowed) rank lowest.
        """
        return quality_of([probabilities for probabilities in kept if probabilities is not None], labels, self.classes)

    def final_metrics(self, sums: Sequence[Sums], quality: Mapping[str, Tensor]) -> dict[str, float | None]:
        """Macro-F1 and AUC, each the mean over clients that can have one."""
        auc = quality["auc"][~quality["auc"].isnan()].numpy()
        return {"macro_f1": float(quality["macro_f1"].numpy().mean()), "auc": float(auc.mean()) if len(auc) else None}
