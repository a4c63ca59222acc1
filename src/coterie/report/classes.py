"""Which classes the clients of a run hold: as the run wrote down, or counted in its data set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data import DATASETS, Dataset, load
from coterie.data.share import part_of
from coterie.errors import CoterieError, require
from coterie.registry import is_reference
from coterie.report.reading import RunRecord

ABOUT = "about.json"


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """The training samples of each class at every client that takes part: `counts [K, C]`, and the classes' names."""

    counts: npt.NDArray[np.int64]
    names: tuple[str, ...]


def class_counts(run: RunRecord) -> ClassCounts:
    """The class counts of a run; an error says why there are none. Nothing is fetched, and no code of the run's run."""
    noted = _noted(run)
    if noted is not None:
        return noted
    partition = run.partition
    if partition is None:
        raise CoterieError("the partition cannot be read")
    data = _data_at_hand(run)
    require(data.classes > 0, f"data '{data.name}' has no classes")
    last = max((int(indices.max()) for indices in partition.train if len(indices)), default=-1)
    require(last < len(data), f"data '{data.name}' has changed since: it has no sample {last}")
    names = data.class_names or tuple(map(str, range(data.classes)))
    return ClassCounts(partition.class_counts(data)[list(run.participants)], names)


def _noted(run: RunRecord) -> ClassCounts | None:
    """What the run itself says of its classes, if it does."""
    path = run.directory.path / ABOUT
    if not path.is_file():
        return None
    try:
        about: Any = json.loads(path.read_text(encoding="utf-8"))
        counts = np.array(about["class_counts"], np.int64)
    except (ValueError, KeyError, TypeError):
        return None
    if counts.ndim != 2 or not counts.shape[1] or (counts < 0).any():
        return None
    if len(counts) == len(run.names) + (len(run.partition.held_out) if run.partition else 0):
        counts = counts[list(run.participants)]
    names = about.get("class_names") or range(counts.shape[1])
    if len(counts) != len(run.names) or len(names) != counts.shape[1]:
        return None
    return ClassCounts(counts, tuple(map(str, names)))


def _data_at_hand(run: RunRecord) -> Dataset:
    """The run's data set, if it is on this machine."""
    config = run.config
    name = str(config["data"])
    require(not name.startswith("given ("), "the data set was made in Python")
    require(not is_reference(name), "the data set is made by a file of code, which a report does not run")
    if name in DATASETS:
        missing = DATASETS[name].missing()
        require(missing is None, f"data '{name}' is not on this machine; {missing}")
    else:
        require(Path(name).exists(), f"data '{name}' is not on this machine")
    owner, task = config.get("client_column"), config.get("task", "")
    data = load(name, progress=False, label=config.get("label", "label"), client=owner, task=task)
    return part_of(
        data,
        float(config.get("share", 1.0)),
        int(config["partition_seed"] if "partition_seed" in config else config["seed"]),
    )
