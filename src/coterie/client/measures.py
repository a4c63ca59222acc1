"""What clients measure and send besides parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.views import ClientView
from coterie.core.exchange import Uploads


@dataclass(frozen=True)
class ClassMeans:
    """The mean feature of each class in the client's training data, NaN for classes that it does not have: `[C, d]`."""

    name: ClassVar[str] = "class_means"

    def __call__(self, worker: ClientView) -> Tensor:
        """Measure with the extractor as it is, in evaluation mode."""
        own = worker.problem.train[worker.client]
        return mean_by_class(worker.train_features(), worker.problem.labels[own], worker.federation.classes)


def mean_by_class(vectors: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean of the `vectors [n, d]` of each class, NaN for classes without any: `[C, d]`.

    >>> mean_by_class(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), classes=3)
    tensor([[2.],
            [nan],
            [5.]])
    """
    sums = vectors.new_zeros(classes, vectors.shape[1]).index_add_(0, labels, vectors)
    return sums / torch.bincount(labels, minlength=classes)[:, None]


def mean_of_owners(means: Tensor, before: Tensor) -> Tensor:
    """The clients' class means `[m, C, d]` averaged over those that have the class, each counting once: `[C, d]`.

    A class that none of them has (NaN) keeps its mean of `before [C, d]`; means that overflowed do not count.

    >>> nan = torch.nan
    >>> mean_of_owners(torch.tensor([[[1.0], [nan]], [[3.0], [nan]]]), before=torch.tensor([[0.0], [7.0]]))
    tensor([[2.],
            [7.]])
    """
    means = torch.where(means.isfinite().all(2, keepdim=True), means, torch.nan)
    return torch.where(means.isnan().all(0), before, means.nanmean(0))


def class_mean_of_clients(uploads: Uploads) -> Tensor:
    """The clients' class means averaged by their class counts, NaN where nobody has the class: `[C, d]`.

    A class that nobody of this cohort has keeps its last mean.
    """
    means = uploads.measured["class_means"]
    counts = uploads.federation.class_counts[uploads.cohort].float()[:, :, None]
    total = (means.nan_to_num() * counts).sum(0) / counts.sum(0)
    before = uploads.federation.values["prototypes"]
    return torch.where(counts.sum(0) > 0, total, before)
