"""Randomness as a function of (seed, purpose, round, client), and of nothing else.

No stream is ever shared, so results do not depend on the engine, the number of workers or the order
in which clients are processed. `client` is a client's *key* (see `Federation.keys`), not its position.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def stream_seed(seed: int, purpose: str, round: int = 0, client: int = -1) -> int:
    """A 63-bit seed for one stream.

    >>> stream_seed(0, "batches", 1, 3) == stream_seed(0, "batches", 1, 3)
    True
    >>> stream_seed(0, "batches", 1, 3) == stream_seed(0, "batches", 1, 4)
    False
    """
    name = f"{seed}/{purpose}/{round}/{client}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1


def numpy_stream(seed: int, purpose: str, round: int = 0, client: int = -1) -> np.random.Generator:
    """A NumPy generator for one stream.

    >>> int(numpy_stream(0, "partition").integers(10)) == int(numpy_stream(0, "partition").integers(10))
    True
    """
    return np.random.default_rng(stream_seed(seed, purpose, round, client))


def torch_stream(seed: int, purpose: str, round: int = 0, client: int = -1) -> torch.Generator:
    """A PyTorch generator for one stream.

    >>> torch.equal(torch.rand(3, generator=torch_stream(0, "a")), torch.rand(3, generator=torch_stream(0, "a")))
    True
    """
    return torch.Generator().manual_seed(stream_seed(seed, purpose, round, client))
