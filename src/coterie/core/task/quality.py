"""What classifiers are worth beyond accuracy, client by client: classes found, ranking, calibration.

Everything but the ranking is counts and sums over test samples, so that clients, runs and seeds can be merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BINS = 10
"""Confidences are counted in so many bins of equal width."""


def quality_of(probabilities: Sequence[Tensor], labels: Sequence[Tensor], classes: int) -> dict[str, Tensor]:
    """What a run keeps of every client's finished model, a row for each; scores that are not numbers count as 0.

    `support` and `hits [K, C]`: a class's test samples, and those recognised. `macro_f1` and `auc [K]` (NaN where the
    client's test samples are of one class). `bin_samples`, `bin_hits`, `bin_confidence [K, BINS]`: the test samples
    whose highest probability lies in a bin, those of them that are right, and the sum of these probabilities.

    >>> found = quality_of([torch.tensor([[0.95, 0.05], [0.75, 0.25]])], [torch.tensor([0, 1])], classes=2)
    >>> found["hits"].tolist(), found["auc"].tolist(), found["bin_samples"].tolist()
    ([[1, 0]], [1.0], [[0, 0, 0, 0, 0, 0, 0, 1, 0, 1]])
    """
    clients = len(labels)
    found = {
        "support": np.zeros((clients, classes), np.int32),
        "hits": np.zeros((clients, classes), np.int32),
        "macro_f1": np.full(clients, np.nan),
        "auc": np.full(clients, np.nan),
        "bin_samples": np.zeros((clients, BINS), np.int32),
        "bin_hits": np.zeros((clients, BINS), np.int32),
        "bin_confidence": np.zeros((clients, BINS)),
    }
    for client, (given, own) in enumerate(zip(probabilities, labels, strict=True)):
        truth, scores = own.numpy(), np.nan_to_num(given.double().numpy())
        guess, confidence = scores.argmax(1), scores.max(1)
        right = truth == guess
        place = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        found["support"][client] = np.bincount(truth, minlength=classes)
        found["hits"][client] = np.bincount(truth[right], minlength=classes)
        found["macro_f1"][client] = macro_f1(truth, guess)
        if len(np.unique(truth)) > 1:
            found["auc"][client] = macro_auc(truth, scores)
        found["bin_samples"][client] = np.bincount(place, minlength=BINS)
        found["bin_hits"][client] = np.bincount(place[right], minlength=BINS)
        found["bin_confidence"][client] = np.bincount(place, confidence, BINS)
    return {name: torch.from_numpy(values) for name, values in found.items()}


def recalls(quality: Mapping[str, npt.NDArray[np.generic]]) -> Floats:
    """The share of each class's test samples that is recognised: `[..., C]`; NaN where there are none."""
    return _shares(quality["hits"], quality["support"])


def calibration_errors(quality: Mapping[str, npt.NDArray[np.generic]]) -> Floats:
    """The expected calibration error `[...]`: over the bins, |accuracy − mean confidence| weighted by their samples.

    >>> bins = {"bin_samples": [0, 4], "bin_hits": [0, 3], "bin_confidence": [0.0, 3.8]}
    >>> round(float(calibration_errors({name: np.array(values) for name, values in bins.items()})), 6)
    0.2
    """
    apart = np.abs(quality["bin_hits"].astype(np.float64) - quality["bin_confidence"].astype(np.float64))
    return _shares(apart.sum(-1), quality["bin_samples"].sum(-1))


def reliability(quality: Mapping[str, npt.NDArray[np.generic]]) -> tuple[Floats, Floats]:
    """The mean confidence and the accuracy in every bin: each `[..., BINS]`; NaN where a bin is empty."""
    samples = quality["bin_samples"]
    return _shares(quality["bin_confidence"], samples), _shares(quality["bin_hits"], samples)


def _shares(part: npt.NDArray[np.generic], whole: npt.NDArray[np.generic]) -> Floats:
    counts = np.asarray(whole, np.float64)
    shares: Floats = np.divide(part, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    return shares


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
    shares = []
    for present in np.unique(truth):
        ours = scores[truth == present, present]
        theirs = np.sort(scores[truth != present, present])
        below, not_above = np.searchsorted(theirs, ours, "left"), np.searchsorted(theirs, ours, "right")
        shares.append((below.sum() + not_above.sum()) / 2 / (len(ours) * len(theirs)))
    return float(np.mean(shares))
