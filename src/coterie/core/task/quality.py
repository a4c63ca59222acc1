"""What classifiers are worth beyond accuracy, client by client: classes found, ranking, calibration.

Everything but the ranking is counts and sums over test samples, so that clients, runs and seeds can be merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

BINS = 10
"""Confidences are counted in so many bins of equal width."""
AT_ONCE = 1 << 17
"""Test samples that are gone through together: bounds the memory, however many clients there are."""


def quality_of(probabilities: Sequence[Tensor], labels: Sequence[Tensor], classes: int) -> dict[str, Tensor]:
    """What a run keeps of every client's finished model, a row for each; scores that are not numbers count as 0.

    `support` and `hits [K, C]`: a class's test samples, and those recognised. `macro_f1` and `auc [K]` (NaN where the
    client's test samples are of one class). `bin_samples`, `bin_hits`, `bin_confidence [K, BINS]`: the test samples
    whose highest probability lies in a bin, those of them that are right, and the sum of these probabilities.

    >>> found = quality_of([torch.tensor([[0.95, 0.05], [0.75, 0.25]])], [torch.tensor([0, 1])], classes=2)
    >>> found["hits"].tolist(), found["auc"].tolist(), found["bin_samples"].tolist()
    ([[1, 0]], [1.0], [[0, 0, 0, 0, 0, 0, 0, 1, 0, 1]])
    """
    counts = np.array([len(client_labels) for client_labels in labels], np.int64)
    parts = [_quality_of_some(probabilities[begin:end], labels[begin:end], classes) for begin, end in _pieces(counts)]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {name: torch.from_numpy(values) for name, values in whole.items()}


def _pieces(counts: Integers) -> Iterator[tuple[int, int]]:
    """Clients with so many samples each in pieces, each of about AT_ONCE samples."""
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + AT_ONCE, "right")))
        yield begin, end
        begin = end


def _quality_of_some(probabilities: Sequence[Tensor], labels: Sequence[Tensor], classes: int) -> dict[str, Array]:
    """The same of clients whose samples are gone through together."""
    clients = len(labels)
    owner = np.repeat(np.arange(clients), [len(client_labels) for client_labels in labels])
    truth, scores = torch.cat(list(labels)).numpy(), np.nan_to_num(torch.cat(list(probabilities)).double().numpy())
    guess, confidence = scores.argmax(1), scores.max(1)
    right = truth == guess
    place = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)

    def counted(kind: Integers, kinds: int, chosen: npt.NDArray[np.bool_] | slice = slice(None)) -> Integers:
        places = owner[chosen] * kinds + kind[chosen]
        return np.bincount(places, minlength=clients * kinds).reshape(clients, kinds)

    known = max(classes, scores.shape[1])  # a model may know more classes than the data has
    support, hits, guesses = counted(truth, known), counted(truth, known, right), counted(guess, known)
    both = support + guesses
    f1 = np.divide(2 * hits, both, out=np.zeros(both.shape), where=both > 0)
    ranked = (support > 0) & ((support > 0).sum(1) > 1)[:, None]  # of one class alone there is nothing to rank
    return {
        "support": support[:, :classes].astype(np.int32),
        "hits": hits[:, :classes].astype(np.int32),
        "macro_f1": _mean_where(f1, both > 0),
        "auc": _mean_where(_shares_ranked_right(owner, truth, scores, support, ranked), ranked),
        "bin_samples": counted(place, BINS).astype(np.int32),
        "bin_hits": counted(place, BINS, right).astype(np.int32),
        "bin_confidence": np.bincount(owner * BINS + place, confidence, clients * BINS).reshape(clients, BINS),
    }


def _mean_where(values: Floats, counts: npt.NDArray[np.bool_]) -> Floats:
    """Each row's mean over the entries that count, `[K, C]` both: `[K]`; NaN where none does.

    Rows of the same number are taken together, so that each is summed as it would be alone, to the bit.
    """
    means, numbers = np.full(len(values), np.nan), counts.sum(1)
    for number in np.unique(numbers[numbers > 0]).tolist():
        rows = numbers == number
        means[rows] = values[rows][counts[rows]].reshape(-1, number).mean(1)
    return means


def _shares_ranked_right(
    owner: Integers, truth: Integers, scores: Floats, support: Integers, ranked: npt.NDArray[np.bool_]
) -> Floats:
    """For every client and class, the share of pairs that `scores [n, C]` rank right, ties half: `[K, C]`.

    A class's samples among all of a client's, in ascending order, with twice the mean rank of equal scores: the sum of
    theirs less m(m + 1) is twice the number of pairs ranked right.
    """
    auc, samples = np.zeros(ranked.shape), support.sum(1)
    for present in np.flatnonzero(ranked.any(0)).tolist():
        chosen = np.flatnonzero(ranked[owner, present])
        order = chosen[np.lexsort((scores[chosen, present], owner[chosen]))]
        whose, values = owner[order], scores[order, present]
        new_client = np.r_[True, whose[1:] != whose[:-1]]
        first_of_client = np.flatnonzero(new_client)[np.cumsum(new_client) - 1]
        new = new_client | np.r_[True, values[1:] != values[:-1]]
        begins = np.flatnonzero(new)
        lengths = np.diff(np.r_[begins, len(order)])
        group = np.cumsum(new) - 1
        twice_the_rank = 2 * (begins[group] - first_of_client) + lengths[group] + 1
        of_class = truth[order] == present
        total = np.zeros(len(ranked), np.int64)
        np.add.at(total, whose[of_class], twice_the_rank[of_class])
        clients, m = ranked[:, present], support[:, present]
        pairs = (m * (samples - m))[clients]
        auc[clients, present] = (total - m * (m + 1))[clients] / 2 / pairs
    return auc


def fits(quality: Mapping[str, npt.NDArray[np.generic]], clients: int, classes: int) -> bool:
    """Whether all there is to say of a classification was said of so many clients and classes."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("hits", "support"), (clients, classes))
    shapes |= dict.fromkeys(("bin_samples", "bin_hits", "bin_confidence"), (clients, BINS))
    shapes |= dict.fromkeys(("auc", "macro_f1"), (clients,))
    return all(quality[name].shape == shape for name, shape in shapes.items())


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
