"""Inputs of tables on one scale: what is counted at each client, how that is merged, and what inputs become of it.

A column in thousands beside one in fractions is all that a model would hear. So the columns of a table are brought to
about −1 .. 1: `standard` to mean 0 and deviation 1, `range` from the lowest and highest value to −1 and 1. The numbers
come from the training samples of all clients that take part, counted at each and merged, and stay as they are from then
on: for other samples of the same clients, for newcomers, and in every file of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coterie.core.pixels import Inputs
from coterie.data.dataset import Dataset
from coterie.errors import require

Columns64 = npt.NDArray[np.float64]  # [n], a number for each column

AGREED_SCALES = ("standard", "range")
"""The scales whose numbers are counted from the samples of clients."""
NEVER_CHANGES = 1e-6
"""A deviation below this part of its mean is what single precision leaves of none."""


@dataclass(frozen=True)
class Moments:
    """How many samples there are, and of each column its mean and the sum of squared deviations from that.

    Those of several clients merge into those of all their samples (Chan, Golub and LeVeque, 1983), without the loss of
    digits that sums of squares have where a mean is large beside its deviation.

    >>> both = Moments.of(torch.tensor([[1.0], [3.0]])).merged(Moments.of(torch.tensor([[8.0]])))
    >>> both.count, both.means.tolist(), both.squares.tolist()  # 9 + 1 + 16
    (3, [4.0], [26.0])
    """

    count: int
    means: Columns64
    squares: Columns64

    @classmethod
    def of(cls, inputs: Tensor) -> Moments:
        """Those of samples `[N, n]`."""
        values = inputs.double().numpy()
        means = values.mean(0) if len(values) else np.zeros(values.shape[1])
        return cls(len(values), means, np.square(values - means).sum(0))

    def merged(self, other: Moments) -> Moments:
        """Those of both together."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.means - self.means
        means = self.means + apart * (other.count / count)
        return Moments(
            count, means, self.squares + other.squares + np.square(apart) * (self.count * other.count / count)
        )

    @property
    def deviations(self) -> Columns64:
        """The standard deviations of the columns."""
        return np.sqrt(self.squares / max(1, self.count))


@dataclass(frozen=True)
class AgreedScale:
    """What inputs become: (x − shift) / divisor, column by column, in single precision.

    >>> AgreedScale.standard(Moments.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]])))(torch.tensor([[4.0, 6.0]])).tolist()
    [[2.0, 1.0]]
    """

    shift: Tensor  # [n]
    divisor: Tensor  # [n]

    @classmethod
    def _of(cls, shift: Columns64, divisor: Columns64) -> AgreedScale:
        """A column that never changes is shifted to 0 and not divided: what is new in it must not become endless."""
        steady = divisor <= NEVER_CHANGES * np.abs(shift)
        return cls(torch.from_numpy(shift).float(), torch.from_numpy(np.where(steady, 1.0, divisor)).float())

    @classmethod
    def standard(cls, moments: Moments) -> AgreedScale:
        """To mean 0 and deviation 1."""
        return cls._of(moments.means, moments.deviations)

    @classmethod
    def range(cls, lowest: Columns64, highest: Columns64) -> AgreedScale:
        """From the lowest and highest values to −1 and 1.

        >>> AgreedScale.range(np.array([10.0]), np.array([30.0]))(torch.tensor([[10.0], [25.0]])).tolist()
        [[-1.0], [0.5]]
        """
        return cls._of((lowest + highest) / 2, (highest - lowest) / 2)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs `[N, n]` on the agreed scale."""
        return (inputs - self.shift) / self.divisor

    def plain(self) -> dict[str, list[float]]:
        """The same as plain values."""
        return {"shift": self.shift.tolist(), "divisor": self.divisor.tolist()}

    @classmethod
    def parse(cls, values: Mapping[str, Sequence[float]]) -> AgreedScale:
        """What plain values describe, checked: they may come from anybody's file.

        >>> AgreedScale.parse({"shift": [2.0], "divisor": [0.0]})
        Traceback (most recent call last):
        ...
        coterie.errors.CoterieError: scaling: must be a shift and a divisor above 0 for each column
        """
        shift, divisor = (torch.tensor(values.get(name, ()), dtype=torch.float32) for name in ("shift", "divisor"))
        good = shift.ndim == 1 and shift.shape == divisor.shape and bool(torch.isfinite(shift + divisor).all())
        require(good and bool((divisor > 0).all()), "scaling: must be a shift and a divisor above 0 for each column")
        return cls(shift, divisor)


class OnScale(nn.Module):
    """A model that takes inputs as they are in the data, and brings them to the scale that it was trained on."""

    shift: Tensor
    divisor: Tensor

    def __init__(self, scaling: AgreedScale, model: nn.Module) -> None:
        super().__init__()
        self.register_buffer("shift", scaling.shift)
        self.register_buffer("divisor", scaling.divisor)
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """The model's outputs `[N, C]` for inputs `[N, n]`."""
        out: Tensor = self.model((inputs - self.shift) / self.divisor)
        return out


def require_columns(inputs: Inputs, scale: str, what: str) -> Tensor:
    """Inputs that are columns of numbers; an error says why others cannot be scaled."""
    require(
        isinstance(inputs, Tensor) and inputs.ndim == 2 and inputs.is_floating_point(),
        f"scale = {scale}: is for columns of numbers, and a sample of {what} has the shape {tuple(inputs.shape[1:])}"
        f"{'' if inputs.is_floating_point() else ' of whole numbers'}; leave it out (images are scaled to -1 .. 1)",
    )
    assert isinstance(inputs, Tensor)
    return inputs


def scaled(data: Dataset, scale: str, trained_on: Iterable[npt.NDArray[np.int64]]) -> tuple[Dataset, AgreedScale]:
    """Data on a scale that comes from each client's training samples, `[n_k]` their places; and what was done.

    >>> table = Dataset("toy", torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([0, 1, 1]), classes=2)
    >>> scaled(table, "standard", [np.array([0]), np.array([1])])[0].inputs[:, 0].tolist()  # the last is held out
    [-1.0, 1.0, 7.0]
    """
    inputs = require_columns(data.inputs, scale, f"data '{data.name}'")
    clients = [inputs[torch.from_numpy(places)] for places in trained_on if len(places)]
    require(bool(clients), f"scale = {scale}: nobody has training samples to take it from")
    if scale == "standard":
        moments = Moments.of(clients[0])
        for own in clients[1:]:
            moments = moments.merged(Moments.of(own))
        found = AgreedScale.standard(moments)
    else:
        ends = [own.double().aminmax(dim=0) for own in clients]
        lowest, highest = (np.stack(list(map(np.asarray, part))) for part in zip(*ends, strict=True))
        found = AgreedScale.range(lowest.min(0), highest.max(0))
    return replace(data, inputs=found(inputs)), found
