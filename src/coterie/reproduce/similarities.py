"""pFedSim's table 2: do classifiers of clients with similar labels look alike? Four clients train alone, nobody mixes.

The paper deals CIFAR-10 to four clients by labels (0-4, 0-4, 2-6, 5-9), starts them with one LeNet5 and trains each for
"20 iterations", which may mean steps or epochs: both are run. Then clients are compared in five ways:

- their data: the share of samples whose label both clients hold (eq. 1);
- WDB: 1 / d of f-FedAP, the distance of what their convolutions make of their own data;
- MDB: the cosine of their models' updates;
- LDB: by how much the other's model does better on a client's training samples, divided by the distance of the two
  models, as in FedFomo; the mean of both directions;
- their classifiers: the mean cosine of the rows (eq. 2).

Of WDB, MDB and LDB the paper gives no formulas; these are those of the methods that it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.worker import Worker
from coterie.core.machine import machine
from coterie.data import Dataset, load
from coterie.maths.channels import ChannelStatistics, channel_distances
from coterie.maths.similarity import class_cosines, cosines
from coterie.methods.fedfomo import helpfulness
from coterie.partition import Partition
from coterie.reproduce.cells import PINNED
from coterie.reproduce.store import Record, content_of, write_content
from coterie.rng import numpy_stream
from coterie.runs.experiment import Experiment
from coterie.runs.result import Result

KEY = "pfedsim-table2"
LABELS = {"i": range(5), "i'": range(5), "j": range(2, 7), "k": range(5, 10)}
PAIRS = (("i", "i'"), ("i", "j"), ("j", "k"), ("i", "k"))
READINGS: Mapping[str, dict[str, Any]] = {
    "20 steps": {"rounds": 1, "epochs": 1, "steps": 20},
    "20 epochs": {"rounds": 20, "epochs": 1},
}
BATCH, RATE = 32, 0.01
KEPT = frozenset({"reading", "seed", "similarities", "partition", "machine"})
"""What a record of a run has."""


def dealt(data: Dataset, seed: int, most: int | None = None) -> Partition:
    """The four clients: a class is shared evenly among those who hold it; with `most`, only so many samples each."""
    stream = numpy_stream(seed, "pfedsim-table2")
    pools: dict[str, list[np.ndarray]] = {name: [] for name in LABELS}
    for label in range(data.classes):
        samples = stream.permutation(np.flatnonzero(data.labels.numpy() == label))
        holders = [name for name, labels in LABELS.items() if label in labels]
        for name, own in zip(holders, np.array_split(samples, len(holders)), strict=True):
            pools[name].append(own)
    whole = [stream.permutation(np.concatenate(parts)) for parts in pools.values()]
    train = tuple(pool[: len(pool) - 1][:most] for pool in whole)
    # Nobody is tested here; a run wants a test sample of each client all the same.
    return Partition(train=train, test=tuple(pool[-1:] for pool in whole), names=tuple(LABELS), rule="by hand")


def data_similarity(counts: np.ndarray) -> np.ndarray:
    """Eq. (1): of the samples of two clients, the share whose label both hold; of `counts [K, C]`: `[K, K]`.

    >>> data_similarity(np.array([[2, 2, 0], [0, 1, 3]])).tolist()
    [[1.0, 0.375], [0.375, 1.0]]
    """
    held = counts > 0
    both = (held[:, None] & held[None]).astype(np.int64)  # [K, K, C]
    together = counts[:, None] + counts[None]
    return np.asarray((both * together).sum(-1) / together.sum(-1))


def measured(reading: Mapping[str, Any], partition: Partition, seed: int, data: Dataset) -> dict[str, list[float]]:
    """The similarities of all pairs, by measure, after four clients trained alone."""
    experiment = Experiment(
        method="local",
        data=data,
        partition=partition,
        model="lenet5",
        batch=BATCH,
        lr=RATE,
        seed=seed,
        rounds=reading["rounds"],
        epochs=reading["epochs"],
        evaluate_every=reading["rounds"],
        engine=str(PINNED["engine"]),
        threads=1,
    )
    found = compared(experiment.run(progress=True))
    found["data"] = torch.from_numpy(data_similarity(dealt(data, seed).class_counts(data)))
    return {name: _of_pairs(matrix) for name, matrix in found.items()}


def compared(result: Result) -> dict[str, Tensor]:
    """How alike the clients' models are, by measure: `[K, K]` each, symmetric."""
    federation, problem = result.federation, result.prepared.problem()
    layout, rows = federation.layout, federation["model"].rows(federation.everyone)
    matrix, parameters = layout.classifier_weights[-1], layout.columns("parameters")
    classifiers = matrix.columns.take(rows).view(len(rows), *matrix.shape)
    # A client judges others' models on the samples it trained on: it has no others.
    worker = Worker(replace(problem, validation=problem.train), result.prepared.method, federation.seed)
    statistics, gains = [], []
    for client in federation.everyone.tolist():
        worker.seat(federation, client)
        statistics.append(ChannelStatistics()(worker))
        gains.append(helpfulness(worker, rows[client], rows))
    gain = torch.stack(gains)
    return {
        "outputs": 1 / channel_distances(torch.stack(statistics), layout),
        "updates": cosines(parameters.take(rows) - parameters.take(federation.initial)),
        "losses": (gain + gain.T) / 2,
        "classifiers": sum(class_cosines(classifiers), torch.tensor(0.0)) / matrix.shape[0],
    }


def _of_pairs(matrix: Tensor) -> list[float]:
    place = {name: number for number, name in enumerate(LABELS)}
    return [float(matrix[place[one], place[other]]) for one, other in PAIRS]


def run_missing(results: Path, seeds: Sequence[int]) -> dict[str, Record]:
    """Run what has not been run yet, keep each run in `pfedsim-table2.json`, and give all of them."""
    runs = runs_of(results)
    data: Dataset | None = None
    for seed in seeds:
        for name, reading in READINGS.items():
            if f"{name}, seed {seed}" not in runs:
                data = load("cifar10") if data is None else data
                steps = reading.get("steps")
                partition = dealt(data, seed, None if steps is None else BATCH * int(steps))
                runs[f"{name}, seed {seed}"] = {
                    "reading": name,
                    "seed": seed,
                    "similarities": measured(reading, partition, seed, data),
                    "partition": partition.hash,
                    "machine": machine(),
                }
                write_content(_file(results), "runs", runs)
    return runs


def _file(results: Path) -> Path:
    return results / f"{KEY}.json"


def runs_of(results: Path) -> dict[str, Record]:
    """What has been run, as it is kept."""
    return content_of(_file(results), "runs", KEPT) if _file(results).is_file() else {}
