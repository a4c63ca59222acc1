"""pFedSim's table 2: do classifiers of clients with similar labels look alike? Four clients train alone, nobody mixes.

The paper deals CIFAR-10 to four clients by labels (0-4, 0-4, 2-6, 5-9), starts them with one LeNet5 and trains each for
"20 iterations", which may mean steps or epochs: both are run. Compared are the data (the
share of samples whose label both clients hold, eq. 1), the classifiers (the mean cosine of their rows, eq. 2) and the
models' updates as a whole. Two further measures of the paper, from other papers, are not rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.machine import machine
from coterie.data import Dataset, load
from coterie.experiment.experiment import Experiment
from coterie.files import write_whole
from coterie.maths.similarity import class_cosines, cosines
from coterie.partition import Partition
from coterie.reproduce.cells import PINNED
from coterie.reproduce.page import machines_of
from coterie.reproduce.store import Record, content_of, write_content
from coterie.rng import numpy_stream

KEY = "pfedsim-table2"
TITLE = "pFedSim, table 2: do similar clients have similar classifiers?"
CLAIM = "The more alike their data, the more alike the classifiers of two clients."
LABELS = {"i": range(5), "i'": range(5), "j": range(2, 7), "k": range(5, 10)}
PAIRS = (("i", "i'"), ("i", "j"), ("j", "k"), ("i", "k"))
PAPER = {"data": (1.0, 0.53, 0.32, 0.0), "updates": (0.24, 0.11, 0.13, 0.08), "classifiers": (0.92, 0.53, 0.41, 0.22)}
TITLES = {
    "data": "data similarity",
    "updates": "cosine of updates (in the paper: MDB)",
    "classifiers": "classifier similarity",
}
READINGS: Mapping[str, dict[str, Any]] = {
    "20 steps": {"rounds": 1, "epochs": 1, "steps": 20},
    "20 epochs": {"rounds": 20, "epochs": 1},
}
BATCH, RATE = 32, 0.01
KEPT = frozenset({"reading", "seed", "similarities", "machine"})
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


def measured(reading: Mapping[str, Any], seed: int, data: Dataset) -> dict[str, list[float]]:
    """The similarities of all pairs after four clients trained alone."""
    steps = reading.get("steps")
    partition = dealt(data, seed, None if steps is None else BATCH * int(steps))
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
    result = experiment.run(progress=True)
    federation = result.federation
    rows = federation["model"].rows(federation.everyone)
    matrix = federation.layout.classifier_weights[-1]
    classifiers = matrix.columns.take(rows).view(len(rows), *matrix.shape)
    trained = federation.layout.columns("parameters")
    updates = trained.take(rows) - trained.take(federation.initial)
    found = {
        "data": torch.from_numpy(data_similarity(dealt(data, seed).class_counts(data))),
        "updates": cosines(updates),
        "classifiers": sum(class_cosines(classifiers), torch.tensor(0.0)) / matrix.shape[0],
    }
    return {name: _of_pairs(matrix) for name, matrix in found.items()}


def _of_pairs(matrix: Tensor) -> list[float]:
    place = {name: number for number, name in enumerate(LABELS)}
    return [float(matrix[place[one], place[other]]) for one, other in PAIRS]


def rebuild(results: Path, seeds: Sequence[int]) -> str:
    """Run what has not been run yet, write `pfedsim-table2.json` and `.md`, and give the page."""
    path, runs = _file(results), runs_of(results)
    data: Dataset | None = None
    for seed in seeds:
        for name, reading in READINGS.items():
            if f"{name}, seed {seed}" not in runs:
                data = load("cifar10") if data is None else data
                runs[f"{name}, seed {seed}"] = {
                    "reading": name,
                    "seed": seed,
                    "similarities": measured(reading, seed, data),
                    "machine": machine(),
                }
                write_content(path, "runs", runs)
    page = page_of(runs)
    write_whole(results / f"{KEY}.md", page.encode())
    return page


def _file(results: Path) -> Path:
    return results / f"{KEY}.json"


def runs_of(results: Path) -> dict[str, Record]:
    """What has been run, as it is kept."""
    return content_of(_file(results), "runs", KEPT) if _file(results).is_file() else {}


def command_of(runs: Mapping[str, Record]) -> str:
    """The command that runs these."""
    return " ".join(["coterie reproduce", KEY, "--seeds", *map(str, sorted({run["seed"] for run in runs.values()}))])


def page_of(runs: Mapping[str, Record]) -> str:
    """The page."""
    lines = [
        f"# {TITLE}",
        "",
        "Four clients hold CIFAR-10's labels 0-4, 0-4, 2-6 and 5-9, start with one LeNet5 and train alone. The paper "
        'says "20 iterations", which may mean steps or epochs; the mean over seeds is shown for each.',
        "",
        *numbers_of(runs),
        "",
        "The paper's remaining two measures, taken from other papers, are not rebuilt.",
        "",
        "```console",
        f"$ {command_of(runs)}",
        "```",
        "",
        *(f"- {text}" for text in machines_of(runs.values())),
    ]
    return "\n".join(lines) + "\n"


def numbers_of(runs: Mapping[str, Record]) -> list[str]:
    """The paper's numbers and ours as a table, by reading."""
    names = [f"({one}, {other})" for one, other in PAIRS]
    lines = [
        f"| | measure | {' | '.join(names)} | order as in the data |",
        "|---|---|" + "---:|" * (len(names) + 1),
    ]
    lines += [_line("paper", TITLES[name], values) for name, values in PAPER.items()]
    for reading, own in _by_reading(runs).items():
        seeds = f"ours, {reading} ({len(own)} seed{'s' if len(own) > 1 else ''})"
        lines += [_line(seeds, title, _means(own, name)) for name, title in TITLES.items()]
    return lines


def answer_of(runs: Mapping[str, Record]) -> str:
    """What became of the claim, by reading.

    >>> run = {"reading": "20 steps", "similarities": {"classifiers": [0.9, 0.5, 0.6, 0.1]}}
    >>> answer_of({"20 steps, seed 0": run})
    'not seen after 20 steps'
    """
    seen = {reading: _falls(_means(own, "classifiers")) for reading, own in _by_reading(runs).items()}
    return ", ".join(f"{'seen' if falls else 'not seen'} after {reading}" for reading, falls in seen.items())


def _by_reading(runs: Mapping[str, Record]) -> dict[str, list[Record]]:
    found = {reading: [run for run in runs.values() if run["reading"] == reading] for reading in READINGS}
    return {reading: own for reading, own in found.items() if own}


def _means(runs: Sequence[Record], name: str) -> list[float]:
    means: list[float] = np.mean([run["similarities"][name] for run in runs], axis=0).tolist()
    return means


def _falls(values: Sequence[float]) -> bool:
    return all(one > other for one, other in pairwise(values))


def _line(who: str, title: str, values: Sequence[float]) -> str:
    falling = "yes" if _falls(values) else "no"
    return f"| {who} | {title} | {' | '.join(f'{value:.2f}' for value in values)} | {falling} |"
