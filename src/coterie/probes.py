"""What clients measure and send besides parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from coterie.exchange import Uploads
    from coterie.local import Worker


class Probe(Protocol):
    """A measurement at one client: the same shape at every client, sent with the upload.

    `moment` says when it is taken: on the model as `received`, or once it is `trained`.
    """

    name: ClassVar[str]
    moment: ClassVar[Literal["received", "trained"]]

    def __call__(self, worker: Worker) -> Tensor:
        """Measure at the client that `worker` stands for just now."""
        ...


@dataclass(frozen=True)
class ClassMeans:
    """The mean feature of each class in the client's training data, NaN for classes that it does not have: `[C, d]`."""

    name: ClassVar[str] = "class_means"
    moment: ClassVar[Literal["received", "trained"]] = "trained"

    def __call__(self, worker: Worker) -> Tensor:
        """Measure with the trained extractor, in evaluation mode."""
        own = worker.problem.train[worker.client]
        features, labels = worker.features(own), worker.problem.labels[own]
        means = torch.zeros(worker.federation.classes, features.shape[1])
        means.index_add_(0, labels, features)
        return means / torch.bincount(labels, minlength=len(means))[:, None]


def class_mean_of_clients(uploads: Uploads) -> Tensor:
    """The clients' class means averaged by their class counts, NaN where nobody has the class: `[1, C, d]`.

    A class that nobody of this cohort has keeps its last mean.
    """
    means = uploads.probes["class_means"]
    counts = uploads.federation.class_counts[uploads.cohort].float()[:, :, None]
    total = (means.nan_to_num() * counts).sum(0) / counts.sum(0)
    before = uploads.federation.values["prototypes"][0]
    return torch.where(counts.sum(0) > 0, total, before)[None]
