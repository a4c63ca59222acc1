"""pFedSim's table 2: who holds what, what is compared, and that classifiers tell who is similar."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.data import Dataset
from coterie.errors import CoterieError
from coterie.reproduce import similarities
from coterie.reproduce.check import check_results
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


def test_what_was_measured_is_kept_and_a_damaged_file_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def measure(reading: object, seed: int, data: object) -> dict[str, list[float]]:
        ran.append(seed)
        return {"data": [1.0, 0.5, 0.3, 0.0], "updates": [0.4, 0.3, 0.2, 0.1], "classifiers": [0.9, 0.5, 0.4, 0.2]}

    monkeypatch.setattr(similarities, "measured", measure)
    monkeypatch.setattr(similarities, "load", lambda name: None)
    page = similarities.rebuild(tmp_path, [0])
    assert similarities.rebuild(tmp_path, [0]) == page
    similarities.rebuild(tmp_path, [0, 1])
    assert ran == [0, 0, 1, 1]  # both readings of "20 iterations", each once
    assert next(check_results(tmp_path)) == "pfedsim-table2: as on the page (runs: 4)"
    path = tmp_path / "pfedsim-table2.json"
    whole = path.read_text()
    path.write_text(whole.replace("0.4", "0.9", 1))
    with pytest.raises(CoterieError, match=r"pfedsim-table2.json: '20 steps, seed 0' is not as it was written; put"):
        similarities.rebuild(tmp_path, [0])
    path.write_text(whole[:100])
    with pytest.raises(CoterieError, match=r"pfedsim-table2.json: is damaged \(.*\); move it away and run the table"):
        similarities.rebuild(tmp_path, [0])
