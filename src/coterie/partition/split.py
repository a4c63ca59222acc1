"""How a client's samples become its training, validation and test parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.errors import require
from coterie.rng import numpy_stream
from coterie.typed import TypedOptions

Indices = npt.NDArray[np.int64]

# (1 − 0.9) · 10 is 0.999… in floating point; without this the cut would lose a sample.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Split(metaclass=TypedOptions):
    """A random, unstratified split of each client's own samples.

    `test` is the share of a client's samples that is kept for testing; the training part has
    `int((1 − test) · n)` samples, but both parts keep at least one where the client has two.
    `validation` is the share of the *training part* that is set aside afterwards.

    >>> train, validation, test = Split(test=0.25, validation=0.2)(np.arange(40), seed=0, client=3)
    >>> len(train), len(validation), len(test)
    (24, 6, 10)
    """

    test: float = 0.25
    validation: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.test < 1, f"test = {self.test:g}: must be greater than 0 and less than 1")
        require(0 <= self.validation < 1, f"validation = {self.validation:g}: must be at least 0 and less than 1")

    def __call__(self, pool: Indices, seed: int, client: int) -> tuple[Indices, Indices, Indices]:
        """Cut one client's samples into (train, validation, test), each in ascending order."""
        shuffled = numpy_stream(seed, "partition:split", client=client).permutation(pool)
        size = int((1 - self.test) * len(pool) + ROUNDING)
        size = max(1, min(size, len(pool) - 1))
        train, validation = self.without_validation(shuffled[:size], seed, client)
        return train, validation, np.sort(shuffled[size:])

    def without_validation(self, train: Indices, seed: int, client: int) -> tuple[Indices, Indices]:
        """Cut a training part into (train, validation).

        A sample that occurs several times goes to one side with all its copies, so that validation never
        sees a sample of the training part.

        >>> train, validation = Split(validation=0.5).without_validation(np.array([7, 7, 7, 9, 9, 9]), 0, 0)
        >>> sorted([train.tolist(), validation.tolist()])
        [[7, 7, 7], [9, 9, 9]]
        """
        nothing = np.empty(0, np.int64)
        if self.validation == 0:
            return np.sort(train), nothing
        samples, copies = np.unique(train, return_counts=True)
        wanted = int(self.validation * len(train) + ROUNDING)
        if len(samples) < 2:
            return np.sort(train), nothing
        order = numpy_stream(seed, "partition:validation", client=client).permutation(len(samples))
        taken = int(np.searchsorted(np.cumsum(copies[order]), max(1, wanted))) + 1
        taken = min(taken, len(samples) - 1)
        chosen = np.isin(train, samples[order[:taken]])
        return np.sort(train[~chosen]), np.sort(train[chosen])
