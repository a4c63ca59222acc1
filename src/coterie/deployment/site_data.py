"""A site's own data, in the shape and with the class numbers that its federation agreed on, and known again later."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from coterie.core.pixels import whole
from coterie.data import Dataset, load_own
from coterie.data.arrays import Classes
from coterie.data.loading import DEFAULT_LABEL
from coterie.data.tables import holds_images, table_splits
from coterie.deployment.agreement import Agreement
from coterie.deployment.workplace import split_samples
from coterie.errors import CoterieError, require
from coterie.files import expanded
from coterie.partition.rule import Split

Shape = tuple[int, ...]


def load_site_data(agreement: Agreement, path: Path, label: str = DEFAULT_LABEL, *, progress: bool = True) -> Dataset:
    """All that a site has: a folder of class folders, `.npz`, `.csv`, `.parquet`, or a folder with `train` and `test`.

    A path always is one, never the name of a known data set. Images in folders and tables are resized to the
    agreement's height and width; whatever else has another shape is refused. Labels get the agreement's numbers:
    text is matched by name with `class_names`, integers are the numbers themselves. A site may lack classes.
    """
    path = expanded(path)
    require(path.exists(), f"data '{path}': there is no such file or folder")
    size = image_size(path, agreement.shape)
    classes = Classes(agreement.classes, agreement.class_names)
    data = load_own(path, label, size=size, progress=progress, classes=classes)
    inputs = fitted(whole(data.inputs), agreement.shape, data.name, resized=size is not None)
    if not agreement.scale:
        require_scaled(inputs, agreement.largest_input, data.name)
    # Whose a sample is plays no part here: all of them are this site's.
    return replace(data, inputs=inputs, owners=None, owner_names=())


def data_stamp(path: Path) -> str:
    """A text that differs once any file of the data was changed, added or removed, as its date and size tell."""
    path = expanded(path)
    files = (
        [path] if path.is_file() else sorted(Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    )
    mark = hashlib.sha256()
    for file in files:
        with suppress(FileNotFoundError):  # it went away just now, or is a link to nowhere
            about = file.stat()
            mark.update(f"{file}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ino}\n".encode())
    return mark.hexdigest()


def image_size(path: Path, shape: Shape) -> tuple[int, int] | None:
    """Height and width to which the images at `path` are to be resized; None if there are none, or none are wanted."""
    if len(shape) != 3:
        return None
    splits = table_splits(path)
    images = path.is_dir() if splits is None else holds_images(splits)
    return (shape[1], shape[2]) if images else None


def fitted(inputs: Tensor, shape: Shape, what: str, resized: bool) -> Tensor:
    """The inputs if each is of the shape; grey images that were read from files become RGB where that is wanted.

    >>> import torch
    >>> fitted(torch.zeros(5, 1, 8, 8), (3, 8, 8), "scans", resized=True).shape
    torch.Size([5, 3, 8, 8])
    """
    given = tuple(inputs.shape[1:])
    if given == shape:
        return inputs
    if resized and given == (1, *shape[1:]) and shape[0] == 3:
        return inputs.repeat(1, 3, 1, 1)
    raise CoterieError(f"data '{what}': one input has shape {given}, not {shape}; {_remedy(given, shape)}")


def require_scaled(inputs: Tensor, largest: float, what: str) -> None:
    """An error if inputs `[N, ...]` hold larger numbers than agreed: models that train on these would harm the others.

    >>> import torch
    >>> require_scaled(torch.tensor([[0.5, -2e6]]), 1000.0, "scans.csv")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: data 'scans.csv': it is not scaled, input 1 of a sample is -2e+06 (largest_input is \
1000); bring all to about -1 .. 1, the same way at every site, or agree on scale = standard
    """
    if not len(inputs) or not inputs.is_floating_point():
        return
    low, high = inputs.flatten(1).aminmax(dim=0)
    furthest = (-low).maximum(high)
    place = int(furthest.argmax())
    value = float(low[place] if -low[place] > high[place] else high[place])
    require(
        abs(value) <= largest,
        f"data '{what}': it is not scaled, input {place} of a sample is {value:.4g} (largest_input is {largest:g}); "
        "bring all to about -1 .. 1, the same way at every site, or agree on scale = standard",
    )


def _remedy(given: Shape, wanted: Shape) -> str:
    if len(given) == len(wanted) == 1:
        return f"it must have {wanted[0]} feature columns"
    if len(given) == len(wanted) == 3 and given[1:] != wanted[1:]:
        return "resize the images (those in folders and Parquet files are resized for you)"
    if len(given) == len(wanted) == 3:
        return "convert the images to grey" if wanted[0] == 1 else f"they must have {wanted[0]} channels"
    return "bring the data into that shape"


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
