"""A metric that is no sum: average precision needs all scores of a client at once, and is told at the end of a run.

$ coterie run fedper --task ./examples/plugins/average_precision.py:Precise
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.nn.functional import one_hot

import coterie as ct
from coterie.core.task.base import Sums


@dataclass(frozen=True)
class Precise(ct.Classification):
    """Classification that also says how well each class is ranked: the area under precision over recall."""

    def quality(self, kept: Sequence[Tensor | None], labels: Sequence[Tensor]) -> dict[str, Tensor]:
        """What is kept of every client's finished model, besides the usual: the mean over its own classes."""
        own = [self._precision(scores, truth) for scores, truth in zip(kept, labels, strict=True) if scores is not None]
        return super().quality(kept, labels) | {"average_precision": torch.tensor(own, dtype=torch.float64)}

    def final_metrics(self, sums: Sequence[Sums], quality: Mapping[str, Tensor]) -> dict[str, float | None]:
        """Besides macro-F1 and AUC, the mean over clients."""
        return super().final_metrics(sums, quality) | {"average_precision": float(quality["average_precision"].mean())}

    @staticmethod
    def _precision(scores: Tensor, truth: Tensor) -> float:
        """Of one client's `scores [n, C]`; those that are no numbers rank lowest."""
        there = truth.unique()
        right = one_hot(truth, scores.shape[1])[:, there]
        return float(average_precision_score(right.numpy(), scores.nan_to_num()[:, there].numpy()))
