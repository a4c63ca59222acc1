"""Pixels on the scale of somebody's published program, where its results depend on it.

FL-bench, the program of pFedSim's authors, reads images as numbers from 0 to 255 and then subtracts the channels'
means and divides by their standard deviations, both of which it gives for numbers from 0 to 1 (commit 9382b2c; later
versions divide by 255 first). So inputs reach 1,276 where others reach 2, and batch norm, learning rate and accuracy
meet other numbers. Comparing with the published results needs the same scale; nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from coterie.core.pixels import Pixels, PixelScale
from coterie.data.dataset import Dataset
from coterie.errors import CoterieError, require

PIECE = 512
"""Images at a time, so that temporaries stay small."""


@dataclass(frozen=True)
class Channels:
    """The means and standard deviations of the channels, for pixels from 0 to 1."""

    means: tuple[float, ...]
    deviations: tuple[float, ...]


PUBLISHED = {"cifar10": Channels((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))}
"""FL-bench's constants (commit 9382b2c), by data set."""


def rescaled(dataset: Dataset, scale: str) -> Dataset:
    """A data set on another scale: `published`, or as it is.

    Loaded images are x = (p / 255 − 0.5) / 0.5 of pixels p from 0 to 255. Published, they are (p − mean) / deviation:
    an affine map of x, by channel, or another scale of the pixels themselves. The others stay as they were loaded.

    >>> black = Dataset("cifar10", torch.full((1, 3, 32, 32), -1.0), torch.tensor([0]), classes=10)
    >>> round(float(rescaled(black, "published").inputs[0, 0, 0, 0]), 4)  # (0 - 0.4914) / 0.2023
    -2.4291
    >>> rescaled(black, "") is black
    True
    """
    if not scale:
        return dataset
    if dataset.name not in PUBLISHED:
        known = ", ".join(PUBLISHED)
        raise CoterieError(f"scale = {scale}: data '{dataset.name}' has no published scale ({known} has); leave it out")
    channels, inputs = PUBLISHED[dataset.name], dataset.inputs
    fits = inputs.ndim == 4 and inputs.shape[1] == len(channels.means)
    require(
        fits and (isinstance(inputs, Pixels) or float(inputs.abs().max()) <= 1),
        f"scale = {scale}: data '{dataset.name}' must be images of 3 channels, scaled to -1 .. 1; leave it out",
    )
    if isinstance(inputs, Pixels):
        return replace(dataset, inputs=replace(inputs, scale=PixelScale(1.0, channels.means, channels.deviations)))
    means, deviations = (torch.tensor(values)[:, None, None] for values in (channels.means, channels.deviations))
    result = torch.empty_like(inputs)
    for begin in range(0, len(inputs), PIECE):
        # Pixels are whole numbers: rounded, they are what the program read, and so is each step after it.
        pixels = ((inputs[begin : begin + PIECE] + 1) * 127.5).round_()
        torch.div(pixels.sub_(means), deviations, out=result[begin : begin + PIECE])
    return replace(dataset, inputs=result)
