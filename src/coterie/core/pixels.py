"""Images kept as the bytes they are: a quarter of the memory, scaled batch by batch as models take them.

A data set's inputs are a tensor of the numbers that models take, or `Pixels`. Both give batches alike
(`inputs[index]`), to the bit: scaling acts on each number alone. Bytes may lie in a file that is mapped, not read: what
nobody asks for takes no memory, and all processes of a machine share what is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.training import MemoryFormat
from coterie.errors import CoterieError


@dataclass(frozen=True)
class PixelScale:
    """How pixels p from 0 to 255 become numbers: (p / whole − mean) / deviation, one for all channels or for each.

    >>> PixelScale()(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist()
    [-1.0, -0.6000000238418579, 1.0]
    """

    whole: float = 255.0
    means: tuple[float, ...] = (0.5,)
    deviations: tuple[float, ...] = (0.5,)

    def __call__(self, pixels: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        """Numbers, float32, of pixels `[..., channels, height, width]` (or of any shape, if all are treated alike)."""
        numbers = pixels.to(torch.float32, memory_format=memory_format, copy=True)
        if self.whole != 1:
            numbers.div_(self.whole)
        return numbers.sub_(self._shaped(self.means, numbers)).div_(self._shaped(self.deviations, numbers))

    @staticmethod
    def _shaped(values: tuple[float, ...], like: Tensor) -> Tensor | float:
        return values[0] if len(values) == 1 else _by_channel(values, like.device)


@lru_cache(maxsize=16)
def _by_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Numbers for each channel, brought to a device once rather than with every batch: `[channels, 1, 1]`."""
    return torch.tensor(values, device=device)[:, None, None]


@dataclass(frozen=True)
class MappedFile:
    """Where in a file bytes lie that are mapped into memory, and as what."""

    path: str
    offset: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray) -> MappedFile | None:
        """Where an array is mapped from; none if it is not, or not all of it in order."""
        if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous:
            return None
        base: Any = array
        while isinstance(base.base, np.memmap):
            base = base.base
        inside = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return cls(str(Path(array.filename).resolve()), int(base.offset) + inside, array.shape)

    def opened(self) -> Tensor:
        """The bytes; whoever writes to them changes a copy of their own."""
        try:
            mapped = np.memmap(self.path, np.uint8, "c", self.offset, self.shape)
        except (OSError, ValueError) as error:
            raise CoterieError(f"{self.path} cannot be mapped any more ({error}); run it again") from None
        return torch.from_numpy(mapped)


@dataclass(frozen=True, eq=False)
class Pixels:
    """Inputs kept as bytes: `pixels[index]` gives samples as models take them, `[..., *shape]` float32.

    >>> pixels = Pixels(torch.tensor([[0, 255], [51, 0]], dtype=torch.uint8))
    >>> pixels[torch.tensor([1])], pixels.shape, pixels.nbytes
    (tensor([[-0.6000, -1.0000]]), torch.Size([2, 2]), 4)
    """

    kept: Tensor  # [N, ...] uint8
    scale: PixelScale = PixelScale()
    memory: MemoryFormat = "contiguous"
    file: MappedFile | None = None  # where the bytes are mapped from, if they are

    @classmethod
    def mapped(cls, array: np.ndarray) -> Pixels:
        """Bytes of an array: those of a mapped file stay there."""
        file = MappedFile.of(array)
        return cls(torch.from_numpy(np.array(array, order="C")) if file is None else file.opened(), file=file)

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, Tensor) and index.ndim > 1 and index.dtype == torch.int64:
            return samples_at(self, index)
        # Whole samples are copied this way; indexing would pick their numbers one by one.
        plain = isinstance(index, Tensor) and index.ndim == 1 and index.dtype == torch.int64
        raw = self.kept.index_select(0, index) if plain else self.kept[index]
        changes = self.memory == "channels_last" and raw.ndim == 4 and raw.shape[1] > 1
        return self.scale(raw, torch.channels_last if changes else torch.preserve_format)

    def to(self, device: torch.device | str) -> Pixels:
        """The same on a device."""
        there = self.kept.to(device)
        return self if there is self.kept else replace(self, kept=there, file=None)

    def share_memory_(self) -> Pixels:
        """Let other processes of this machine read the same bytes; those of a file they map for themselves."""
        if self.file is None:
            self.kept.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Whether other processes can read the same bytes."""
        return self.file is not None or self.kept.is_shared()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.file is not None:
            return _mapped_again, (self.file, self.scale, self.memory)
        return Pixels, (self.kept, self.scale, self.memory)

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def shape(self) -> torch.Size:
        """The shape of all samples together."""
        return self.kept.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.kept.ndim

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers that models take."""
        return torch.float32

    @property
    def device(self) -> torch.device:
        """Where the bytes are."""
        return self.kept.device

    @property
    def nbytes(self) -> int:
        """The memory that the bytes take."""
        return self.kept.nbytes

    def numpy(self) -> np.ndarray:
        """All samples at once as models take them."""
        return self[:].numpy()

    def numel(self) -> int:
        """How many numbers there are."""
        return self.kept.numel()

    def is_floating_point(self) -> bool:
        """Whether models take numbers with fractions: always."""
        return True


Inputs = Tensor | Pixels
"""A data set's inputs: `inputs[index]` gives samples as models take them."""


def _mapped_again(file: MappedFile, scale: PixelScale, memory: MemoryFormat) -> Pixels:
    return Pixels(file.opened(), scale, memory, file)


def whole(inputs: Inputs) -> Tensor:
    """All samples at once as models take them: `[N, ...]`."""
    return inputs if isinstance(inputs, Tensor) else inputs[:]


def some(inputs: Inputs, index: Tensor) -> Inputs:
    """Some of the samples, kept as all are."""
    return inputs[index] if isinstance(inputs, Tensor) else replace(inputs, kept=inputs.kept[index], file=None)


def samples_at(inputs: Inputs, places: Tensor) -> Tensor:
    """The samples at `places [...]` as models take them: `[..., *shape]`.

    >>> samples_at(torch.arange(6.0).view(3, 2), torch.tensor([[2, 0]])).tolist()
    [[[4.0, 5.0], [0.0, 1.0]]]
    """
    flat = places.flatten()
    # Whole samples are copied this way; indexing would pick their numbers one by one.
    chosen: Tensor = inputs.index_select(0, flat) if isinstance(inputs, Tensor) else inputs[flat]
    shaped: Tensor = chosen.unflatten(0, places.shape)
    return shaped


@dataclass(frozen=True)
class Views:
    """How images are seen while clients train on them: mirrored, and shifted by some `padding` at the most.

    All that is drawn of an image is a number, so that streams do not depend on how many batches they are for.
    What a shift leaves empty is filled with what lies inside the edge, mirrored.

    >>> views = Views(padding=1, flips=True)
    >>> views.seen(torch.arange(3.0).view(1, 1, 1, 3).expand(3, 1, 3, 3), torch.tensor([4, 7, 13]))[:, 0, 0].tolist()
    [[0.0, 1.0, 2.0], [1.0, 2.0, 1.0], [2.0, 1.0, 0.0]]
    """

    padding: int
    flips: bool

    def drawn(self, count: int, stream: torch.Generator) -> Tensor:
        """A number for each of so many images: `[count]`."""
        ways = (2 * self.padding + 1) ** 2 * (2 if self.flips else 1)
        return torch.randint(ways, (count,), generator=stream)

    def seen(self, images: Tensor, numbers: Tensor) -> Tensor:
        """The `images [..., channels, height, width]` as their `numbers [...]` say."""
        flat, side = images.flatten(0, -4), 2 * self.padding + 1
        channels, height, width = flat.shape[1:]
        number = numbers.flatten().to(flat.device)[:, None]
        rows = _mirrored(torch.arange(height, device=flat.device) + number % side - self.padding, height)
        columns = _mirrored(torch.arange(width, device=flat.device) + number // side % side - self.padding, width)
        columns = torch.where(number >= side**2, columns.flip(1), columns)
        places = (rows[:, :, None] * width + columns[:, None]).flatten(1)
        out = flat.flatten(2).gather(2, places[:, None].expand(-1, channels, -1)).view(flat.shape)
        if flat.is_contiguous(memory_format=torch.channels_last):
            out = out.contiguous(memory_format=torch.channels_last)
        seen: Tensor = out.unflatten(0, images.shape[:-3])
        return seen


def _mirrored(places: Tensor, size: int) -> Tensor:
    """Places along a side of an image, those beyond its ends mirrored at them."""
    inside = places.abs()
    return torch.where(inside < size, inside, 2 * (size - 1) - inside)


def as_memory(inputs: Inputs, memory: MemoryFormat) -> Inputs:
    """Images `[N, channels, height, width]` of which batches are cut in a memory format."""
    if isinstance(inputs, Pixels):
        return replace(inputs, memory=memory)
    if memory == "contiguous" or inputs.ndim != 4:
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last)
