"""What a data set is to Coterie: resident tensors, addressed by index; a part of one, another scale, a digest."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.pixels import Inputs, Pixels, PixelScale, some
from coterie.core.task import Classification, Task, as_task
from coterie.display import Displayed
from coterie.errors import CoterieError, require
from coterie.rng import numpy_stream
from coterie.typed import EXAMPLE, TypedOptions

log = logging.getLogger("coterie")

Ints = npt.NDArray[np.int64]
FROM_ARRAYS = "torch.as_tensor(array) (ct.from_arrays takes arrays and lists as they are)"


@dataclass(frozen=True, repr=False)
class Dataset(Displayed, metaclass=TypedOptions):
    """All samples of a data set in memory, the official training split first.

    `inputs [N, ...]` are float32, already normalised (for images `[N, channels, height, width]`, pixels
    scaled to [0, 1] and then by (x − 0.5) / 0.5), or int64 for models that take whole numbers, such as the numbers
    of words; or `Pixels`, which are kept as bytes and scaled just so when a batch is taken. `owners [N]`, where given,
    names for each sample the client or domain it belongs to, as an index into `owner_names`; each is a client unless a
    run says otherwise, or `owners_are_clients` does. `task` says what a label is: one of so many `classes` unless told
    otherwise.

    >>> data = Dataset("toy", torch.zeros(6, 1, 2, 2), torch.tensor([0, 1, 0, 1, 0, 1]), classes=2)
    >>> len(data), data.shape, data.train_size
    (6, (1, 2, 2), 6)
    """

    name: str
    inputs: Inputs = field(metadata={EXAMPLE: FROM_ARRAYS})
    labels: Tensor = field(metadata={EXAMPLE: FROM_ARRAYS})
    classes: int = 0
    train_size: int = -1
    owners: Tensor | None = None
    owner_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = field(default=())
    task: Task | None = None
    feature_names: tuple[str, ...] = field(default=())
    owners_are_clients: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be trained on, naming the data set and the sample."""
        n = len(self.labels)
        task = Classification() if self.task is None else self.task
        if isinstance(task, Classification):
            task = replace(task, classes=task.classes or self.classes)
            object.__setattr__(self, "classes", task.classes)
        object.__setattr__(self, "task", task)
        if self.train_size < 0:
            object.__setattr__(self, "train_size", n)
        require(n > 0, f"data '{self.name}': there are no samples")
        require(len(self.inputs) == n, f"data '{self.name}': {len(self.inputs)} inputs but {n} labels")
        require(
            self.inputs.dtype in (torch.float32, torch.int64),
            f"data '{self.name}': inputs must be float32, or int64 for models that take whole numbers",
        )
        require(
            self.inputs.numel() > 0,
            f"data '{self.name}': samples of shape {tuple(self.inputs.shape[1:])} hold no numbers",
        )
        self.of_task.check_labels(self.labels, self.name)
        if isinstance(self.inputs, Tensor):
            require_finite(self.inputs, self.name)
        require(
            1 <= self.train_size <= n,
            f"data '{self.name}': train_size = {self.train_size} must lie in 1..{n}",
        )
        if self.owners is not None:
            require(len(self.owners) == n, f"data '{self.name}': {len(self.owners)} owners but {n} samples")

    def __repr__(self) -> str:
        labels = f"{self.classes} classes" if self.classes else self.of_task.name
        owned = f", {len(self.owner_names)} owners" if self.owners is not None else ""
        return f"Dataset({self.name!r}, {len(self)} samples of shape {self.shape}, {labels}{owned})"

    @property
    def of_task(self) -> Task:
        """The task that the labels are of."""
        assert self.task is not None  # a data set without one was given its own
        return self.task

    def with_task(self, task: str | Task) -> Dataset:
        """The same with a task's own loss and metrics; another kind of task is refused, and its own changes nothing."""
        if task in ("", self.of_task.name):
            return self
        given = as_task(task)
        require(
            given.name == self.of_task.name,
            f"task = {given.name}: the task of data '{self.name}' is {self.of_task.name}; leave task out",
        )
        return replace(self, task=given)

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.labels)

    @property
    def names_clients(self) -> bool:
        """Whether it says which client each sample is of, so that nobody has to deal them out."""
        return self.owners is not None and self.owners_are_clients

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def class_counts(self, indices: np.ndarray | Tensor) -> np.ndarray:
        """How many of the samples at `indices` belong to each class: `[classes]`, nothing without classes."""
        if not self.classes:
            return np.empty(0, np.int64)
        chosen = self.labels[torch.as_tensor(indices, dtype=torch.int64)]
        return torch.bincount(chosen, minlength=self.classes).numpy()


def require_finite(inputs: Tensor, name: str) -> None:
    """An error that names the first sample of `inputs [N, ...]` that holds anything but finite numbers."""
    if not bool(torch.isfinite(inputs.sum())) and not bool(torch.isfinite(inputs).all()):
        first = int(torch.nonzero(~torch.isfinite(inputs).reshape(len(inputs), -1).all(1))[0])
        raise CoterieError(f"data '{name}': sample {first} holds NaN or infinite values; remove or fill it")


FAR_APART = 1000
"""So many times as wide as another may an input be before a warning: a model would hear the widest alone."""


def warn_of_ranges(data: Dataset) -> None:
    """A warning if the columns of a table differ so much in range that a model would hear the widest ones alone."""
    inputs = data.inputs
    if not isinstance(inputs, Tensor) or inputs.ndim != 2 or not inputs.is_floating_point():
        return
    low, high = inputs.aminmax(dim=0)
    spans = high - low
    spans[spans == 0] = torch.nan  # what never changes has no range
    if bool(spans.isnan().all()):
        return
    widest, narrowest = int(spans.nan_to_num(-1).argmax()), int(spans.nan_to_num(torch.inf).argmin())
    if float(spans[widest]) <= FAR_APART * float(spans[narrowest]):
        return
    names = data.feature_names or tuple(f"number {place}" for place in range(inputs.shape[1]))
    log.warning(
        "data '%s': its inputs are not of one scale: %s spans %.3g, %s spans %.3g, so that models learn little; "
        "scale = standard brings all to about -1 .. 1 (scale = none leaves them so)",
        data.name,
        names[widest],
        float(spans[widest]),
        names[narrowest],
        float(spans[narrowest]),
    )


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
            samples = np.arange(begin, end) if kind is None else begin + np.flatnonzero(labels == kind)
            chosen.append(stream.permutation(samples)[: round(share * len(samples))])
    index = torch.from_numpy(np.sort(np.concatenate(chosen)))
    require(len(index) > 0, f"share = {share:g}: leaves no samples of data '{dataset.name}'")
    return replace(
        dataset,
        inputs=some(dataset.inputs, index),
        labels=dataset.labels[index],
        owners=None if dataset.owners is None else dataset.owners[index],
        train_size=int((index < dataset.train_size).sum()),
    )


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
    """A data set on another scale: `published`, or as it is (others are agreed: `coterie.data.scaling`).

    Loaded images are x = (p / 255 − 0.5) / 0.5 of pixels p from 0 to 255. Published, they are (p − mean) / deviation:
    an affine map of x, by channel, or another scale of the pixels themselves. The others stay as they were loaded.

    >>> black = Dataset("cifar10", torch.full((1, 3, 32, 32), -1.0), torch.tensor([0]), classes=10)
    >>> round(float(rescaled(black, "published").inputs[0, 0, 0, 0]), 4)  # (0 - 0.4914) / 0.2023
    -2.4291
    >>> rescaled(black, "") is black
    True
    """
    if scale != "published":
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
