"""Where the noise of a privacy promise comes from: a derived stream in simulations, the operating system at sites."""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.rng import torch_stream

SUMMED = 4  # Gaussians that make one, so that the rounding of a single one tells nothing


class NoiseSource(Protocol):
    """Random numbers that nobody else may know."""

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers `[count]`, float32."""
        ...

    def chosen(self, count: int, rate: float) -> Tensor:
        """A Poisson sample: which of `count` places are chosen, each with probability `rate` on its own (indices)."""
        ...


def noise_of(federation: Federation, client: int, purpose: str) -> NoiseSource:
    """The noise of this round for a client's privacy: one that repeats in a simulation, and never at a real site."""
    if not federation.simulated:
        return SecureNoise()
    return DerivedNoise(federation.seed, f"privacy:{purpose}", federation.round, int(federation.keys[client]))


class DerivedNoise:
    """A stream of (seed, purpose, round, client): a simulation repeats, and whoever knows the seed knows the noise.

    >>> DerivedNoise(0, "privacy", 1, 3).chosen(4, rate=1.0)
    tensor([0, 1, 2, 3])
    """

    def __init__(self, seed: int, purpose: str, round: int, client: int) -> None:
        self._stream = torch_stream(seed, purpose, round, client)

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(count, generator=self._stream)

    def chosen(self, count: int, rate: float) -> Tensor:
        """A Poisson sample."""
        return (torch.rand(count, generator=self._stream, dtype=torch.float64) < rate).nonzero()[:, 0]


class SecureNoise:
    """The operating system's secure generator: nobody can work the noise out, and it never repeats.

    A normal number is the sum of four by Box and Muller's method, halved, in double precision.

    >>> SecureNoise().normal(3).shape, SecureNoise().chosen(5, rate=1.0)
    (torch.Size([3]), tensor([0, 1, 2, 3, 4]))
    """

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers."""
        pairs = math.ceil(count * SUMMED / 2)
        radius = np.sqrt(-2 * np.log(1 - _uniform(pairs)))
        angle = 2 * math.pi * _uniform(pairs)
        drawn = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: count * SUMMED]
        return torch.from_numpy(drawn.reshape(SUMMED, count).sum(0) / math.sqrt(SUMMED)).float()

    def chosen(self, count: int, rate: float) -> Tensor:
        """A Poisson sample."""
        return torch.from_numpy((_uniform(count) < rate).nonzero()[0])


def _uniform(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Numbers from 0 to 1, without 1: `[count]`, 53 random bits each."""
    return (np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
