"""From scores to numbers: per client, per moment, over rounds. All are recorded; none is chosen silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from sklearn.metrics import f1_score, roc_auc_score

from coterie.local import Score

Floats = npt.NDArray[np.float64]
Moment = Literal["received", "trained"]
MOMENTS: tuple[Moment, ...] = ("received", "trained")


@dataclass(frozen=True)
class Evaluation:
    """One moment of one round: accuracy, mean loss and test size of every client, each `[K]`.

    >>> e = Evaluation(np.array([1.0, 0.5]), np.array([0.1, 0.7]), np.array([10, 30]))
    >>> float(e.mean), float(e.weighted), float(e.worst_decile)
    (0.75, 0.625, 0.5)
    """

    accuracy: Floats
    loss: Floats
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, scores: Sequence[Score]) -> Evaluation:
        """The evaluation that the clients' scores amount to."""
        sizes = np.array([len(score.correct) for score in scores], np.int64)
        correct = np.array([float(score.correct.sum()) for score in scores])
        losses = np.array([float(score.losses.double().sum()) for score in scores])
        tested = np.maximum(sizes, 1)
        return cls(correct / tested, losses / tested, sizes)

    def updated(self, clients: npt.NDArray[np.int64], newer: Evaluation) -> Evaluation:
        """The same with some clients' entries replaced."""
        accuracy, loss = self.accuracy.copy(), self.loss.copy()
        accuracy[clients], loss[clients] = newer.accuracy, newer.loss
        return Evaluation(accuracy, loss, self.sizes)

    @property
    def mean(self) -> float:
        """Every client counts the same."""
        return float(self.accuracy.mean())

    @property
    def weighted(self) -> float:
        """Every test sample counts the same."""
        return float(np.average(self.accuracy, weights=self.sizes))

    @property
    def worst_decile(self) -> float:
        """The mean accuracy of the worst tenth of the clients (at least one)."""
        worst = np.sort(self.accuracy)[: max(1, len(self.accuracy) // 10)]
        return float(worst.mean())

    @property
    def std(self) -> float:
        """The standard deviation of accuracy over clients."""
        return float(self.accuracy.std())


def over_rounds(values: Sequence[float]) -> dict[str, float]:
    """The three ways to sum up a curve.

    >>> over_rounds([0.1, 0.9, 0.5])
    {'best': 0.9, 'last': 0.5, 'last5': 0.5}
    """
    return {"best": max(values), "last": values[-1], "last5": float(np.mean(values[-5:]))}


def final_metrics(scores: Sequence[Score], labels: Sequence[npt.NDArray[np.int64]]) -> dict[str, float | None]:
    """Macro-F1 and one-against-rest AUC, each the mean over clients that can have one.

    A client's AUC is over the classes in its own test data; with a single class there is none.
    """
    f1, auc = [], []
    for score, truth in zip(scores, labels, strict=True):
        assert score.probabilities is not None
        probabilities = score.probabilities.double().numpy()
        f1.append(f1_score(truth, probabilities.argmax(1), average="macro", zero_division=0))
        present = np.unique(truth)
        if len(present) > 1:
            auc.append(np.mean([roc_auc_score(truth == c, probabilities[:, c]) for c in present]))
    return {"macro_f1": float(np.mean(f1)), "auc": float(np.mean(auc)) if auc else None}
