"""The embedded data set for regression: 442 patients with diabetes that come with scikit-learn."""

from __future__ import annotations

import numpy as np
import torch

from coterie.core.task import Regression
from coterie.data.dataset import Dataset
from coterie.data.registry import KnownDataset


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


DIABETES = KnownDataset(
    "diabetes",
    "442 patients, 10 measurements, embedded; regression: progression after a year, standardised",
    0,
    make=load_diabetes,
)
