"""Which samples a site's model was never trained on, where it is asked about the site's own data again."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

import numpy as np
from torch import Tensor

from coterie.core.pixels import whole
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.workplace import split_samples
from coterie.partition.rule import Split


@dataclass(frozen=True)
class OwnData:
    """What is remembered of the data that a site trained on: a hash of all inputs together, and how they were divided.

    The hash tells whether some data is the same as a whole. It does not tell whether a sample was among it.
    """

    mark: str
    samples: int
    train_size: int
    key: int
    seed: int
    test: float
    validation: float

    @classmethod
    def of(cls, agreement: Agreement, client: int, data: Dataset) -> OwnData:
        """What a site remembers of its data."""
        split = (agreement.keys[client], agreement.seed, agreement.test, agreement.validation)
        return cls(mark_of(whole(data.inputs)), len(data), data.train_size, *split)

    def plain(self) -> dict[str, str | int | float]:
        """The same as plain values."""
        return asdict(self)

    def held_out(self, inputs: Tensor) -> Tensor | None:
        """The places of the samples that were kept for testing, if these inputs `[n, ...]` are that data: `[m]`."""
        if len(inputs) != self.samples or mark_of(inputs) != self.mark:
            return None
        split = Split(self.test, self.validation)
        return split_samples(split, self.seed, self.key, self.samples, self.train_size)[2]


def mark_of(inputs: Tensor) -> str:
    """The SHA-256 of all inputs `[n, ...]`, in their order.

    >>> import torch
    >>> mark_of(torch.zeros(2, 3)) == mark_of(torch.zeros(3, 2))
    False
    """
    mark = hashlib.sha256(str((tuple(inputs.shape), inputs.dtype)).encode())
    for part in inputs.split(1024):
        mark.update(np.ascontiguousarray(part.numpy()).tobytes())
    return mark.hexdigest()
