"""The data sets that come with scikit-learn: handwritten digits, and patients with diabetes."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.task import Regression
from coterie.data.catalogue import KnownDataset
from coterie.data.dataset import Dataset

DIGIT_NAMES = tuple("0123456789")
SHAPE = (8, 8)
HIGHEST = 16
"""Pixels count inked dots: 0..16."""
FORM_STARTS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)
"""The first sample of each form."""


def _digits_table() -> npt.NDArray[np.float64]:
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
    table = _digits_table()
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
        class_names=DIGIT_NAMES,
        owners_are_clients=False,  # sheets of paper, each filled in by many writers
    )


def load_diabetes() -> Dataset:
    """Ten measurements of each patient, and how far the disease has progressed a year later (25 to 346 points).

    Features and target are standardised over all 442 patients: mean 0, standard deviation 1. There is no official
    test split.

    >>> data = load_diabetes()
    >>> len(data), data.shape, data.of_task.name
    (442, (10,), 'regression')
    """
    from sklearn.datasets import load_diabetes as load_bunch  # slow to import, and needed for this set only

    bunch = load_bunch(scaled=False)
    inputs, target = np.asarray(bunch.data, np.float64), np.asarray(bunch.target, np.float64)
    return Dataset(
        "diabetes",
        torch.from_numpy(_standardised(inputs).astype(np.float32)),
        torch.from_numpy(_standardised(target).astype(np.float32)),
        task=Regression(),
    )


def _standardised(values: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = (values - values.mean(0)) / values.std(0)
    return scaled


DIGITS = KnownDataset(
    "digits",
    "1,797 handwritten digits, 8 × 8, on 14 forms (the owners), embedded: no files needed",
    10,
    DIGIT_NAMES,
    make=load_digits,
)
DIABETES = KnownDataset(
    "diabetes",
    "442 patients, 10 measurements, embedded; regression: progression after a year, standardised",
    0,
    make=load_diabetes,
)
