"""pFedSim's table 2: who holds what, what is compared, and that classifiers tell who is similar."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.data import Dataset
from coterie.reproduce.similarities import LABELS, PAIRS, data_similarity, dealt, measured


def noise(samples: int = 600) -> Dataset:
    """Images of ten classes, each of a brightness of its own in a corner of its own."""
    stream = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % 10
    inputs = 0.1 * torch.randn(samples, 3, 32, 32, generator=stream)
    for label in range(10):
        row, column = divmod(label, 4)
        inputs[labels == label, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 1.0
    return Dataset("noise", inputs, labels, classes=10)


def test_clients_hold_their_labels_and_no_sample_twice() -> None:
    data = noise()
    partition = dealt(data, seed=3)
    for name, train in zip(partition.names, partition.train, strict=True):
        assert set(data.labels[torch.from_numpy(train)].tolist()) == set(LABELS[name])
    everything = np.concatenate([*partition.train, *partition.test])
    assert len(np.unique(everything)) == len(everything) == len(data)
    assert [len(train) for train in dealt(data, seed=3, most=7).train] == [7, 7, 7, 7]


def test_data_similarity_by_hand() -> None:
    # 0 and 1 share label 1: (3 + 1) of their 10 samples; 0 and 2 share nothing.
    counts = np.array([[2, 3, 0], [0, 1, 4], [0, 0, 5]])
    found = data_similarity(counts)
    assert found[0, 1] == 4 / 10
    assert found[0, 2] == 0
    assert found[1, 2] == 9 / 10
    assert np.array_equal(np.diag(found), [1, 1, 1])


@pytest.mark.thorough
def test_classifiers_of_clients_with_the_same_labels_are_the_most_alike() -> None:
    found = measured({"rounds": 4, "epochs": 2}, seed=0, data=noise())
    assert PAIRS[0] == ("i", "i'")
    assert max(found["classifiers"]) == found["classifiers"][0]
    assert found["data"] == sorted(found["data"], reverse=True)
    assert found["classifiers"][0] > found["classifiers"][3]
