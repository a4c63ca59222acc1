"""Whether two data sets are the same, told from a few bytes that do not give the data away."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.pixels import Pixels, whole
from coterie.data.dataset import Dataset

AT_ONCE = 1 << 16
WHOLE = 64
"""So many samples, evenly spread, are hashed number by number."""


def fingerprint(data: Dataset) -> dict[str, str]:
    """SHA-256 of all labels, and of the inputs: of a checksum of every sample, and of some samples whole.

    An input that changes in any number changes its checksum, and so does another order of the samples. Hashing all
    numbers would take seconds; numbers that swap places within a sample are noticed in the samples that are hashed
    whole alone.

    >>> toy = Dataset("toy", torch.zeros(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]), classes=2)
    >>> {part: len(digest) for part, digest in fingerprint(toy).items()}
    {'labels': 64, 'inputs': 64}
    """
    if isinstance(data.inputs, Pixels):
        inputs = _of_inputs(data.inputs.kept, f"{data.inputs.scale} ")
    else:
        inputs = _of_inputs(data.inputs)
    labels = hashlib.sha256(f"{data.labels.dtype} {len(data)}\n".encode() + _plain(data.labels))
    return {"labels": labels.hexdigest(), "inputs": inputs}


def older_fingerprint(data: Dataset) -> dict[str, str]:
    """The same as versions told it that kept images as the numbers that models take."""
    return fingerprint(replace(data, inputs=whole(data.inputs)))


def _of_inputs(inputs: Tensor, scale: str = "") -> str:
    flat = inputs.reshape(len(inputs), -1)
    spread = torch.linspace(0, len(inputs) - 1, min(WHOLE, len(inputs))).long()
    digest = hashlib.sha256(f"{scale}{inputs.dtype} {tuple(inputs.shape)}\n".encode())
    for part in flat.split(AT_ONCE):
        digest.update(_plain(_checksums(part)))
    digest.update(_plain(flat[spread]))
    return digest.hexdigest()


def _checksums(flat: Tensor) -> Tensor:
    """A number for every sample `[N, n]`, the sum of its bits read as whole numbers: `[N]`, int64.

    Such sums wrap around and do not depend on the order in which they are taken, so every machine gets the same.
    """
    if flat.dtype == torch.int64:
        return flat.sum(1)
    if flat.dtype == torch.uint8:
        return (flat.view(torch.int64) if flat.shape[1] % 8 == 0 else flat).sum(1, dtype=torch.int64)
    bits = flat.contiguous().view(torch.int32)
    # Two numbers at a time, where that can be: half the work.
    return bits.view(torch.int64).sum(1) if flat.shape[1] % 2 == 0 else bits.sum(1, dtype=torch.int64)


def _plain(tensor: Tensor) -> bytes:
    array = tensor.contiguous().numpy()
    return np.asarray(array, array.dtype.newbyteorder("<")).tobytes()
