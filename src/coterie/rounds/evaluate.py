"""From scores to numbers: per client, per moment, over rounds. All are recorded; none is chosen silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie.client.scores import Score

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
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
        return cls(correct / sizes, losses / sizes, sizes)

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


def final_metrics(scores: Sequence[Score], labels: Sequence[Integers]) -> dict[str, float | None]:
    """Macro-F1 and one-against-rest AUC, each the mean over clients that can have one.

    A client's AUC is over the classes in its own test data; with a single class there is none. Scores that
    are not numbers (a model that overflowed) rank lowest.
    """
    f1, auc = [], []
    for score, truth in zip(scores, labels, strict=True):
        assert score.probabilities is not None
        probabilities = np.nan_to_num(score.probabilities.double().numpy())
        f1.append(macro_f1(truth, probabilities.argmax(1)))
        if len(np.unique(truth)) > 1:
            auc.append(macro_auc(truth, probabilities))
    return {"macro_f1": float(np.mean(f1)), "auc": float(np.mean(auc)) if auc else None}


# scikit-learn has both, but takes milliseconds a call, of which there would be one per client and class.


def macro_f1(truth: Integers, guess: Integers) -> float:
    """The mean F1 of the classes that occur in either: 2·hits / (samples + guesses).

    >>> macro_f1(np.array([0, 0, 1]), np.array([0, 1, 1]))
    0.6666666666666666
    """
    classes = int(max(truth.max(), guess.max())) + 1
    hits = np.bincount(truth[truth == guess], minlength=classes)
    both = np.bincount(truth, minlength=classes) + np.bincount(guess, minlength=classes)
    return float(np.mean(2 * hits[both > 0] / both[both > 0]))


def macro_auc(truth: Integers, scores: Floats) -> float:
    """The mean over the classes in `truth [n]` of the share of pairs that `scores [n, C]` rank right; ties are half.

    >>> macro_auc(np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]))
    0.5
    """
    from scipy.stats import rankdata  # slow to import, seldom needed

    ranks = rankdata(scores, axis=0)
    shares = []
    for present in np.unique(truth):
        ours = truth == present
        positives, negatives = int(ours.sum()), int((~ours).sum())
        above = ranks[ours, present].sum() - positives * (positives + 1) / 2
        shares.append(above / (positives * negatives))
    return float(np.mean(shares))
