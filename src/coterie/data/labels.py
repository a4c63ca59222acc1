"""Labels as numbers: by their own order, or by a numbering that was agreed on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.images import Ints
from coterie.errors import CoterieError, require, unknown

Labels = npt.NDArray[Any]
WHOLE = re.compile(r"0|-?[1-9][0-9]*")
BEYOND = 2**63
"""Class numbers are below it, as the machine's whole numbers are."""


@dataclass(frozen=True)
class Classes:
    """Classes whose numbers are settled already, of which the data at hand may hold only some.

    Text is matched against `names`. Integers are the numbers themselves, unless the names are whole numbers too:
    then they are matched as text. Without names, text is refused if it is not a whole number.

    >>> Classes(3, ("cat", "dog", "owl")).number(np.array(["owl", "cat"]), "pets").tolist()
    [2, 0]
    >>> Classes(2, ("-1", "1")).number(np.array([1, -1]), "signs").tolist()
    [1, 0]
    """

    count: int
    names: tuple[str, ...] = ()

    def number(self, labels: Labels, what: str) -> Ints:
        """The labels `[N]` as class numbers `[N]`; `what` names the data in errors."""
        if labels.dtype.kind == "f" and bool(((labels == np.round(labels)) & (np.abs(labels) < BEYOND)).all()):
            labels = labels.astype(np.int64)
        if labels.dtype.kind in "iu" and any(WHOLE.fullmatch(name) for name in self.names):
            labels = labels.astype(str)
        if labels.dtype.kind in "US":
            labels = labels.astype(str)
            if self.names:
                return self._by_name(labels, what)
            wrong = next((str(label) for label in np.unique(labels) if not WHOLE.fullmatch(str(label))), None)
            require(
                wrong is None,
                f"data '{what}': label '{wrong}' is text, and the classes have no names; list them as class_names",
            )
            large = next((label for label in np.unique(labels).tolist() if len(label) > 18), None)
            require(large is None, f"data '{what}': label {large}: must have 18 digits at most")
            labels = labels.astype(np.int64)
        numbers, _ = label_indices(labels, what)
        beyond = np.flatnonzero(numbers >= self.count)
        if len(beyond):
            first = beyond[0]
            allowed = f"with {self.count} classes they must lie in 0..{self.count - 1}"
            raise CoterieError(f"data '{what}': label {numbers[first]} of sample {first}: {allowed}")
        return numbers

    def _by_name(self, labels: Labels, what: str) -> Ints:
        places = {name: place for place, name in enumerate(self.names)}
        distinct, which = np.unique(labels, return_inverse=True)
        for label in distinct.tolist():
            if label not in places:
                raise unknown(f"class in data '{what}'", label, places)
        return np.array([places[label] for label in distinct.tolist()], dtype=np.int64)[which]


def label_indices(values: Labels, name: str) -> tuple[Ints, tuple[str, ...]]:
    """Labels as int64: integers stay, text is numbered in sorted order and its names are returned.

    >>> label_indices(np.array(["b", "a", "b"]), "own")
    (array([1, 0, 1]), ('a', 'b'))
    """
    if values.dtype.kind in "US":
        return numbered(values)
    require(
        values.dtype.kind in "biuf",
        f"data '{name}': labels are of type {values.dtype}; they must be integers or text",
    )
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):  # numbers beyond float64 become infinite, and are refused as such
            values = values.astype(np.float64)  # smaller kinds know no 2**63, not even to be compared with
        wrong = np.flatnonzero(~(np.isfinite(values) & (values == np.round(values))))
        if len(wrong):
            value = values[wrong[0]]
            raise CoterieError(
                f"data '{name}': label {value} of sample {wrong[0]} is no integer (nor text); task='regression' takes "
                "numbers"
            )
    negative = np.flatnonzero(values < 0)
    if len(negative):
        first = negative[0]
        raise CoterieError(f"data '{name}': label {values[first]} of sample {first}: labels count from 0")
    large = np.flatnonzero(values >= BEYOND) if values.dtype.kind in "uf" else np.zeros(0, np.int64)
    if len(large):
        raise CoterieError(f"data '{name}': label {values[large[0]]} of sample {large[0]}: must be below 2**63")
    return values.astype(np.int64), ()


def label_numbers(values: Labels, name: str, task: str) -> npt.NDArray[np.float32]:
    """Labels as float32, where a task is about numbers.

    >>> label_numbers(np.array([3, 1]), "own", "regression")
    array([3., 1.], dtype=float32)
    """
    require(
        values.dtype.kind in "biuf",
        f"data '{name}': labels are of type {values.dtype}; the task {task} needs numbers",
    )
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, which the data set refuses
        return values.astype(np.float32)


def numbered(values: Labels) -> tuple[Ints, tuple[str, ...]]:
    """Each value's place among the sorted distinct values, and these as text."""
    distinct, places = np.unique(values, return_inverse=True)
    return places.astype(np.int64), tuple(str(value) for value in distinct)
