"""What a data set is to Coterie: resident tensors, addressed by index."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.pixels import Inputs
from coterie.core.task import Classification, Task
from coterie.display import Displayed
from coterie.errors import CoterieError, require
from coterie.typed import EXAMPLE, TypedOptions

DEFAULT_LABEL = "label"
"""The column of a table that holds the labels, unless another is named."""
FROM_ARRAYS = "torch.as_tensor(array) (ct.from_arrays takes arrays and lists as they are)"


@dataclass(frozen=True, repr=False)
class Dataset(Displayed, metaclass=TypedOptions):
    """All samples of a data set in memory, the official training split first.

    `inputs [N, ...]` are float32, already normalised (for images `[N, channels, height, width]`, pixels
    scaled to [0, 1] and then by (x − 0.5) / 0.5), or int64 for models that take whole numbers, such as the numbers
    of words; or `Pixels`, which are kept as bytes and scaled just so when a batch is taken. `owners [N]`, where given,
    names for each sample the client or domain it belongs to, as an index into `owner_names`. `task` says what a label
    is: one of so many `classes` unless told otherwise.

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
        """The same with a task's own loss and metrics; another kind of task is refused, a mere name changes nothing."""
        wanted = task if isinstance(task, str) else task.name
        require(
            wanted in ("", self.of_task.name),
            f"task = {wanted}: the task of data '{self.name}' is {self.of_task.name}; leave task out",
        )
        return self if isinstance(task, str) else replace(self, task=task)

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.labels)

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
