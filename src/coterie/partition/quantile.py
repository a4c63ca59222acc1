"""Label skew for numbers: quantile bins of the target take the place of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.data.dataset import Dataset
from coterie.errors import require
from coterie.partition.dirichlet import Dirichlet
from coterie.partition.rule import require_count
from coterie.partition.split import Indices


@dataclass(frozen=True)
class Quantile(Dirichlet):
    """Cut the target into bins of equally many samples, and deal each bin out in Dirichlet(alpha) proportions.

    The samples are ranked by their labels (equal ones in the order of the data) and cut into `bins` blocks whose sizes
    differ by at most one: the lowest values, the next, and so on. These blocks are then shared out exactly as
    `dirichlet` does with classes: small alpha, and a client sees a narrow range of the target; `bins=1` only makes
    clients of unequal size.

    >>> import torch
    >>> from coterie.core.task import Regression
    >>> data = Dataset("toy", torch.zeros(200, 1), torch.arange(200.0), task=Regression())
    >>> part = Quantile(clients=4, alpha=0.1, least=10)(data, seed=0)
    >>> part.clients, sum(map(len, part.train + part.test))
    (4, 200)
    """

    clients: int = 10
    alpha: float = 0.5
    bins: int = 5

    name: ClassVar[str] = "quantile"
    needs_classes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("bins", self.bins)

    def groups(self, dataset: Dataset) -> list[Indices]:
        """The samples of every bin, in ascending order of their labels."""
        require(
            not dataset.classes,
            f"partition = {self.name}: cuts numbers into bins, and the labels of data '{dataset.name}' are classes; "
            "use dirichlet",
        )
        require(
            self.bins <= len(dataset),
            f"bins = {self.bins}: must be at most {len(dataset)}, the samples in data '{dataset.name}'",
        )
        ranked = np.argsort(dataset.labels.numpy(), kind="stable").astype(np.int64)
        return np.array_split(ranked, self.bins)
