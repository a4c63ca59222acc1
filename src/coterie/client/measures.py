"""What clients measure and send besides parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Measure
from coterie.client.views import ClientView
from coterie.core.exchange import Uploads
from coterie.errors import require


@dataclass(frozen=True)
class ClassMeans:
    """The mean feature of each class in the client's training data, NaN for classes that it does not have: `[C, d]`."""

    name: ClassVar[str] = "class_means"
    of_classes: ClassVar[bool] = True

    def __call__(self, worker: ClientView) -> Tensor:
        """Measure with the extractor as it is, in evaluation mode."""
        labels = worker.problem.labels[worker.problem.train[worker.client]]
        return mean_by_class(worker.train_features(), labels, worker.federation.classes)


def mean_by_class(vectors: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean of the `vectors [n, d]` of each class, NaN for classes without any: `[C, d]`.

    >>> mean_by_class(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), classes=3)
    tensor([[2.],
            [nan],
            [5.]])
    """
    sums = vectors.new_zeros(classes, vectors.shape[1]).index_add_(0, labels, vectors)
    return sums / torch.bincount(labels, minlength=classes)[:, None]


def sound(measure: Measure, values: Tensor, counts: Tensor | None = None) -> Tensor:
    """Which clients' measurements `values [m, ...]` are such as they must be: `[m]`.

    All are finite; where they are of classes, but for classes that the client does not have, whose rows are NaN. Which
    these are, `counts [m, C]` say: the clients' training samples of each class. Where nobody knows them, they may be
    any classes but all.

    >>> nan = torch.nan
    >>> means = torch.tensor([[[1.0], [nan]], [[nan], [nan]], [[1.0], [torch.inf]]])
    >>> sound(Measure(ClassMeans()), means), sound(Measure(ClassMeans()), means, torch.tensor([[4, 1], [0, 0], [2, 3]]))
    (tensor([ True, False, False]), tensor([False,  True, False]))
    """
    if not (values.is_floating_point() or values.is_complex()):
        return torch.ones(len(values), dtype=torch.bool)
    values = values.cpu()
    if not measure.of_classes:
        return values[..., None].flatten(1).isfinite().all(1)
    rows = values[..., None].flatten(2) if values.ndim > 1 else values[:, None, None]
    require(
        counts is None or counts.shape == rows.shape[:2],
        f"measurement '{measure.name}' says of_classes, and has {rows.shape[1]} rows in place of one for each class",
    )
    absent = rows.isnan().all(2)
    whole = (absent | rows.isfinite().all(2)).all(1)
    return whole & (~absent.all(1) if counts is None else (absent == (counts == 0)).all(1))


def mean_of_owners(means: Tensor, before: Tensor) -> Tensor:
    """The clients' class means `[m, C, d]` averaged over those that have the class, each counting once: `[C, d]`.

    A class that none of them has (NaN) keeps its mean of `before [C, d]`.

    >>> nan = torch.nan
    >>> mean_of_owners(torch.tensor([[[1.0], [nan]], [[3.0], [nan]]]), before=torch.tensor([[0.0], [7.0]]))
    tensor([[2.],
            [7.]])
    """
    return _averaged(means, ~means.isnan().any(2), before)


def class_mean_of_clients(uploads: Uploads) -> Tensor:
    """The clients' class means averaged by their class counts, NaN where nobody has the class: `[C, d]`.

    A class that nobody of this cohort has keeps its last mean.
    """
    counts = uploads.federation.class_counts[uploads.cohort]
    return _averaged(uploads.measured["class_means"], counts, uploads.federation.values["prototypes"])


def _averaged(means: Tensor, weights: Tensor, before: Tensor) -> Tensor:
    """Class means `[m, C, d]` averaged by `weights [m, C]`; where these are all 0, those of `before [C, d]`.

    In double precision, class by class: the sum of numbers that are finite is finite then, as their mean is.
    """
    shares = weights.double()
    sums = [share @ rows.nan_to_num(nan=0.0).double() for share, rows in zip(shares.T, means.unbind(1), strict=True)]
    total = shares.sum(0)[:, None]
    return torch.where(total > 0, torch.stack(sums) / total, before.double()).to(before.dtype)
