"""The embedded data set: 1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn.

They are 14 copies of one form, one after the other: the labels repeat the form's sequence of 130 digits, of which
five copies lack a few (one label, 3 for 8 at sample 385, is another than the form's). Copies differ as handwriting
does (a test measures it), so each counts as an owner of its samples. Nobody recorded who filled them in: they are
forms, and no more is known of them.
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coterie.data.dataset import Dataset
from coterie.data.registry import KnownDataset

SHAPE = (8, 8)
HIGHEST = 16
"""Pixels count inked dots: 0..16."""
FORM_STARTS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
"""The first sample of each form."""


def _table() -> npt.NDArray[np.float64]:
    """The pixels of every sample, then its label: `[N, 65]`.

    The file is read where scikit-learn keeps it: to import scikit-learn for it takes longer than a short run.
    """
    package = find_spec("sklearn")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            with gzip.open(path, "rt", encoding="ascii") as file:
                return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits as load_bunch

    bunch = load_bunch()
    return np.column_stack([bunch.data, bunch.target])


def load_digits() -> Dataset:
    """The digits, scaled to [0, 1] and then by (x − 0.5) / 0.5; there is no official test split. Owners are forms.

    >>> data = load_digits()
    >>> len(data), data.shape, data.classes, data.owner_names[:2]
    (1797, (1, 8, 8), 10, ('form-0', 'form-1'))
    """
    table = _table()
    pixels = table[:, :-1].astype(np.float32).reshape(-1, 1, *SHAPE)
    labels = table[:, -1].astype(np.int64)
    forms = np.searchsorted(FORM_STARTS, np.arange(len(labels)), side="right") - 1
    return Dataset(
        "digits",
        torch.from_numpy((pixels / HIGHEST - 0.5) / 0.5),
        torch.from_numpy(labels),
        classes=10,
        owners=torch.from_numpy(forms.astype(np.int64)),
        owner_names=tuple(f"form-{form}" for form in range(len(FORM_STARTS))),
        class_names=tuple("0123456789"),
    )


DIGITS = KnownDataset(
    "digits",
    "1,797 handwritten digits, 8 × 8, on 14 forms (the owners), embedded: no files needed",
    10,
    tuple("0123456789"),
    make=load_digits,
)
