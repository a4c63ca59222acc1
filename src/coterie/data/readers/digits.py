"""The embedded data set: 1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn."""

from __future__ import annotations

import numpy as np
import torch

from coterie.data.dataset import Dataset

HIGHEST = 16
"""Pixels count inked dots: 0..16."""


def load_digits() -> Dataset:
    """The digits, scaled to [0, 1] and then by (x − 0.5) / 0.5; there is no official test split.

    >>> data = load_digits()
    >>> len(data), data.shape, data.classes
    (1797, (1, 8, 8), 10)
    """
    from sklearn.datasets import load_digits as load_bunch  # slow to import, and needed for this set only

    bunch = load_bunch()
    pixels = np.asarray(bunch.images, dtype=np.float32)[:, None]
    return Dataset(
        "digits",
        torch.from_numpy((pixels / HIGHEST - 0.5) / 0.5),
        torch.from_numpy(np.asarray(bunch.target, dtype=np.int64)),
        classes=10,
        class_names=tuple("0123456789"),
    )
