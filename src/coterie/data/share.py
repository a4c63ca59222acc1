"""A part of a data set, for runs that are to be shorter than the real ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from coterie.core.pixels import some
from coterie.data.dataset import Dataset
from coterie.errors import require
from coterie.rng import numpy_stream


def part_of(dataset: Dataset, share: float, seed: int) -> Dataset:
    """A share of a data set's samples, drawn at random from every class, of training and test samples alike.

    >>> whole = Dataset("toy", torch.zeros(60, 1), torch.arange(60) % 3, classes=3, train_size=30)
    >>> half = part_of(whole, 0.5, seed=0)
    >>> len(half), half.train_size, torch.bincount(half.labels).tolist()
    (30, 15, [10, 10, 10])
    """
    require(0 < share <= 1, f"share = {share:g}: must be above 0 and at most 1")
    if share == 1:
        return dataset
    stream = numpy_stream(seed, "data:share")
    chosen: list[np.ndarray] = []
    for begin, end in ((0, dataset.train_size), (dataset.train_size, len(dataset))):
        labels = dataset.labels[begin:end].numpy()
        kinds = range(dataset.classes) if dataset.classes else [None]
        for kind in kinds:
            own = np.arange(begin, end) if kind is None else begin + np.flatnonzero(labels == kind)
            chosen.append(stream.permutation(own)[: round(share * len(own))])
    index = torch.from_numpy(np.sort(np.concatenate(chosen)))
    require(len(index) > 0, f"share = {share:g}: leaves no samples of data '{dataset.name}'")
    return replace(
        dataset,
        inputs=some(dataset.inputs, index),
        labels=dataset.labels[index],
        owners=None if dataset.owners is None else dataset.owners[index],
        train_size=int((index < dataset.train_size).sum()),
    )
