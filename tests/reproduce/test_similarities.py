"""pFedSim's table 2: who holds what, what is compared, and that classifiers tell who is similar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.data import Dataset
from coterie.errors import CoterieError
from coterie.maths.channels import channel_distances
from coterie.reproduce import similarities
from coterie.reproduce.check import check_results
from coterie.reproduce.similarities import (
    LABELS,
    MEASURES,
    PAIRS,
    answer_of,
    compared,
    comparison_of,
    data_similarity,
    dealt,
    drawn,
    measured,
    numbers_of,
    rebuild,
)
from coterie.runs.experiment import Experiment


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
    found = measured({"rounds": 4, "epochs": 2}, dealt(data := noise(), seed=0), seed=0, data=data)
    assert PAIRS[0] == ("i", "i'")
    assert max(found["classifiers"]) == found["classifiers"][0]
    assert found["data"] == sorted(found["data"], reverse=True)
    assert found["classifiers"][0] > found["classifiers"][3]


def test_models_are_compared_by_the_formulas() -> None:
    data = noise(200)
    partition = dealt(data, seed=0)
    result = Experiment(
        method="local", data=data, partition=partition, model="lenet5", rounds=1, epochs=1, lr=0.05, engine="serial"
    ).run()
    found, models = compared(result), [result.model(client) for client in range(4)]
    assert found.keys() | {"data"} == MEASURES.keys()
    for matrix in found.values():
        assert torch.equal(matrix, matrix.T)

    def loss(of: int, at: int) -> torch.Tensor:
        own = torch.from_numpy(partition.train[at])
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(models[of](data.inputs[own]), data.labels[own]).double()

    flat = [torch.nn.utils.parameters_to_vector(model.parameters()).detach().double() for model in models]
    apart = (flat[0] - flat[2]).norm() + 1e-5
    gains = [(loss(0, 0) - loss(2, 0)) / apart, (loss(2, 2) - loss(0, 2)) / apart]
    assert float(found["losses"][0, 2]) == pytest.approx(float(sum(gains)) / 2, rel=1e-4)

    statistics = []
    for client, model in enumerate(models):
        # What the two convolutions put out, before batch norm.
        inputs, outputs = data.inputs[torch.from_numpy(partition.train[client])], []
        for layer in model.features:
            inputs = layer(inputs)
            if isinstance(layer, torch.nn.Conv2d):
                outputs.append(inputs.detach().double().movedim(1, 0).flatten(1))
        own = [torch.stack([one.mean(1), one.std(1, correction=0)]) for one in outputs]
        statistics.append(torch.cat(own, dim=1))
    distance = channel_distances(torch.stack(statistics), result.federation.layout)[0, 2]
    assert float(found["outputs"][0, 2]) == pytest.approx(1 / float(distance), rel=1e-4)


def kept(reading: str, seed: int, classifiers: list[float]) -> dict[str, Any]:
    by_measure = {name: [0.9, 0.5, 0.4, 0.2] for name in MEASURES} | {"classifiers": classifiers}
    return {"reading": reading, "seed": seed, "similarities": by_measure, "partition": "0" * 64}


def test_a_claim_is_seen_if_every_seed_shows_it() -> None:
    falls, does_not = [0.9, 0.5, 0.4, 0.2], [0.9, 0.5, 0.6, 0.2]
    runs = {
        "20 steps, seed 0": kept("20 steps", 0, does_not),
        "20 epochs, seed 0": kept("20 epochs", 0, falls),
        "20 epochs, seed 1": kept("20 epochs", 1, falls),
    }
    assert answer_of(runs) == "not seen after 20 steps, seen after 20 epochs"
    runs["20 epochs, seed 2"] = kept("20 epochs", 2, does_not)
    assert answer_of(runs) == "not seen after 20 steps, seen with 2 of 3 seeds after 20 epochs"
    assert comparison_of(runs) == "not seen after 20 steps, not seen after 20 epochs"
    for run in runs.values():
        run["similarities"] |= dict.fromkeys(("outputs", "updates", "losses"), does_not)
    assert comparison_of(runs) == "not seen after 20 steps, seen after 20 epochs"
    shown = numbers_of(runs)
    last = next(line for line in shown if line.startswith("| ours, 20 epochs (3 seeds) | classifier similarity |"))
    assert last.endswith("| 0.90 ± 0.00 | 0.50 ± 0.00 | 0.47 ± 0.12 | 0.20 ± 0.00 | with 2 of 3 seeds |")
    assert shown[-2].endswith("| not seen after 20 steps, seen with 2 of 3 seeds after 20 epochs |")
    assert shown[-1].endswith("| not seen after 20 steps, seen after 20 epochs |")


def test_the_picture_has_every_measure_and_is_the_same_twice() -> None:
    runs = {"20 steps, seed 0": kept("20 steps", 0, [0.9, 0.5, 0.4, 0.2])}
    picture = drawn(runs)
    assert picture is not None
    assert all(title in picture.decode() for title, _ in MEASURES.values())
    assert picture == drawn(runs)


def test_what_was_measured_is_kept_and_a_damaged_file_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def measure(reading: object, partition: object, seed: int, data: object) -> dict[str, list[float]]:
        ran.append(seed)
        return {name: [0.9, 0.5, 0.4, 0.2] for name in MEASURES}

    monkeypatch.setattr(similarities, "measured", measure)
    monkeypatch.setattr(similarities, "load", lambda name: noise(100))
    page = rebuild(tmp_path, [0])
    assert rebuild(tmp_path, [0]) == page
    assert (tmp_path / "pfedsim-table2.svg").is_file()
    assert f"20 steps, seed 0: {dealt(noise(100), 0, most=640).hash[:12]}" in page
    rebuild(tmp_path, [0, 1])
    assert ran == [0, 0, 1, 1]  # both readings of "20 iterations", each once
    assert next(check_results(tmp_path)) == "pfedsim-table2: as on the page (runs: 4)"
    path = tmp_path / "pfedsim-table2.json"
    whole = path.read_text()
    path.write_text(whole.replace("0.4", "0.9", 1))
    with pytest.raises(CoterieError, match=r"pfedsim-table2.json: '20 steps, seed 0' is not as it was written; put"):
        rebuild(tmp_path, [0])
    path.write_text(whole[:100])
    with pytest.raises(CoterieError, match=r"pfedsim-table2.json: is damaged \(.*\); move it away and run the table"):
        rebuild(tmp_path, [0])
