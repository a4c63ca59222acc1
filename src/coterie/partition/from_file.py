"""A partition that stands in a file: somebody else's, or one that was drawn before."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from coterie.data.archives import data_folder
from coterie.data.dataset import Dataset
from coterie.errors import CoterieError, require
from coterie.files import expanded, resolved
from coterie.partition.partition import PARTS, SUFFIX, Partition, is_partition_file, labels_sha256
from coterie.partition.rule import Rule, Shares

FOLDER = "partitions"
"""Where in the data folder files are looked for by their bare names."""
ANY_FILE = f"FILE{SUFFIX}"


@dataclass(frozen=True)
class FromFile(Rule):
    """Take every client's samples from a file of index arrays, as `Partition.save` writes it.

    A path is made absolute; a bare name that is no file here is looked for in `partitions/` of the data folder. The
    file's test samples stand, whatever the split says. So do its validation samples, unless the split wants a share
    for validation: then they count as training samples again, and that share is drawn. The seed matters for this draw
    only. What is recorded is the file's SHA-256, not its place.

    >>> import tempfile, torch
    >>> data = Dataset("toy", torch.zeros(6, 1), torch.arange(6) % 2, classes=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mine = Path(folder) / "mine.npz"
    ...     Partition(train=(np.array([0, 1]), np.array([3])), test=(np.array([2]), np.array([4, 5]))).save(mine)
    ...     part = FromFile(mine)(data, seed=0)
    >>> part.rule, [len(train) for train in part.train], [len(test) for test in part.test]
    ('file', [2, 1], [1, 2])
    """

    path: str | Path

    name: ClassVar[str] = "file"

    def __post_init__(self) -> None:
        require(is_partition_file(self.path), f"partition = {self.path}: must be a file {ANY_FILE}")
        # Not read yet: a run that carries on has its partition, and needs the file no more.
        object.__setattr__(self, "path", str(_place(str(self.path))))

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Read the file and see that it fits the data."""
        path = Path(self.path)
        require(
            path.is_file(),
            f"partition = {path}: there is no such file; a bare name is also looked for in {data_folder(FOLDER)}",
        )
        partition = Partition.load(path)
        try:
            _check_order(partition, dataset)
            partition.check(dataset)
            _check_parts(partition)
        except CoterieError as error:
            raise CoterieError(f"partition file '{path}': {error}") from None
        return Shares(
            pools=list(partition.train),
            tests=list(partition.test),
            validations=list(partition.validation),
            names=partition.names,
            notes=(f"read from {path.name}",),
            resolved={**partition.parameters, "clients": partition.clients, "test": "given"},
        )

    def recorded(self) -> dict[str, Any]:
        """Nothing of its own: a file is the same wherever it lies."""
        return {}


def _place(name: str) -> Path:
    """The absolute path of a file: as it is named, or in the data folder if that has one of this bare name."""
    path = expanded(name)
    if path.name == name and not path.is_file() and (kept := data_folder(FOLDER) / name).is_file():
        path = kept
    return resolved(path)


def _check_order(partition: Partition, dataset: Dataset) -> None:
    """The same data set may have been read from other files, in another order: then its numbers mean other samples."""
    order = partition.parameters.get("labels_sha256")
    require(
        order in (None, labels_sha256(dataset.labels.numpy())),
        f"it counts through the samples of '{dataset.name}' in another order than they were read in here (the labels' "
        "SHA-256 differs); read the data set from the files that the partition was made with",
    )


def _check_parts(partition: Partition) -> None:
    for client, name in enumerate(partition.names):
        require(len(partition.test[client]) > 0, f"client '{name}' has no test samples; give it some or leave it out")
        for part, other in combinations(PARTS, 2):
            both = np.intersect1d(getattr(partition, part)[client], getattr(partition, other)[client])
            require(len(both) == 0, f"client '{name}': {len(both)} samples are in both {part} and {other}")
