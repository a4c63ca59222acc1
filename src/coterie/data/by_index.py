"""Own data from data sets that give a sample by its number: PyTorch's, those of Hugging Face, and lists of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from coterie.core.task import Task
from coterie.data.archives import progress_bar
from coterie.data.arrays import Array, TestSplit, from_arrays
from coterie.data.dataset import Dataset
from coterie.data.loading import DEFAULT_LABEL
from coterie.errors import CoterieError, described, require, unknown
from coterie.typed import shown, typed

SPLITS = {"train", "test", "valid", "validation", "val"}


@typed
def from_dataset(
    dataset: Any,
    label: str = DEFAULT_LABEL,
    client: str | None = None,
    *,
    test: Any = None,
    name: str = "own",
    task: str | Task = "",
    progress: bool = False,
) -> Dataset:
    """A data set from one that gives samples by number (`len(it)`, `it[0]`), which is read once, transforms included.

    A sample is `(input, label)`, as PyTorch's have it, or a table with the key `label`, as those of Hugging Face: what
    stands beside it, but for `client`, is the input. Inputs are numbers, arrays, tensors or images of one size. A list
    of data sets, or a table of them by name, is one of each client. `test` is an official test split, made likewise.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> ward = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    >>> from_dataset(ward)
    Dataset('own', 4 samples of shape (3,), 2 classes)
    >>> from_dataset({"north": ward, "south": ward}).owner_names
    ('north', 'south')
    """
    train = _read(dataset, "dataset", label, client, name, progress)
    held = None if test is None else _read(test, "test", label, client, name, progress)
    split: TestSplit | None = None
    if held is not None:
        require(held.columns == train.columns, f"test: its inputs are {held.columns}, not {train.columns}")
        split = (held.x, held.y) if held.owners is None else (held.x, held.y, held.owners)
    named = train.class_names if isinstance(train.y[0], int) else ()
    return from_arrays(
        train.x,
        train.y,
        owners=train.owners,
        test=split,
        class_names=named,
        feature_names=train.columns if train.x.ndim == 2 and len(train.columns) == train.x.shape[1] else (),
        name=name,
        task=task,
    )


@dataclass(frozen=True)
class _Samples:
    """What was read: inputs `[N, ...]`, labels `[N]`, perhaps whose each is, and the keys of the inputs."""

    x: Array
    y: list[Any]
    owners: list[Any] | None
    columns: tuple[str, ...]
    class_names: tuple[str, ...]


def _read(given: Any, what: str, label: str, client: str | None, name: str, progress: bool) -> _Samples:
    """All samples of a data set, of a list or of a table of them."""
    if isinstance(given, Mapping):
        require(bool(given), f"{what}: the table is empty")
        names = [str(key) for key in given]
        require(
            not SPLITS.issuperset(names),
            f"{what}: holds the splits {', '.join(names)}; hand them over one by one: from_dataset(it['train'], "
            "test=it['test'])",
        )
        sets = list(given.values())
    elif isinstance(given, list | tuple) and given and not _is_sample(given[0]):
        names, sets = [str(number) for number in range(len(given))], list(given)
    else:
        return _read_one(given, what, label, client, name, progress)
    require(client is None, f"client = {client}: each of the data sets is a client already; leave client out")
    width = len(str(len(sets) - 1))
    parts = [
        _read_one(one, f"{what} of client {key}", label, None, name, progress)
        for key, one in zip(names, sets, strict=True)
    ]
    for key, part in zip(names, parts, strict=True):
        fits = part.x.shape[1:] == parts[0].x.shape[1:] and part.columns == parts[0].columns
        require(
            fits,
            f"{what} of client {key}: inputs have shape {part.x.shape[1:]}, those of {names[0]} {parts[0].x.shape[1:]}",
        )
    if not isinstance(given, Mapping):
        names = [key.zfill(width) for key in names]  # in the order of the list
    x = np.concatenate([part.x for part in parts])
    y = [one for part in parts for one in part.y]
    owners = [key for key, part in zip(names, parts, strict=True) for _ in part.y]
    return _Samples(x, y, owners, parts[0].columns, parts[0].class_names)


def _is_sample(value: object) -> bool:
    """Whether a list's first entry is a sample rather than a data set."""
    return isinstance(value, tuple | Mapping)


def _read_one(dataset: Any, what: str, label: str, client: str | None, name: str, progress: bool) -> _Samples:
    require(not isinstance(dataset, DataLoader), f"{what}: is a DataLoader; hand over what it reads, its .dataset")
    by_number = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    require(
        by_number and not isinstance(dataset, str | Tensor | np.ndarray) and not hasattr(dataset, "iloc"),
        f"{what}: {shown(dataset)} does not give samples by number (len(it), it[0]); for arrays and tensors there is "
        "ct.from_arrays, for tables ct.from_frame, for streams list(it)",
    )
    require(len(dataset) > 0, f"{what}: there are no samples")
    inputs, labels, owners = [], [], []
    columns: tuple[str, ...] = ()
    with progress_bar(f"reading {name}", len(dataset), progress) as advance:
        for number in range(len(dataset)):
            try:
                sample = dataset[number]
            except Exception as error:  # whatever somebody's code or transforms raise
                raise CoterieError(f"{what}: sample {number} cannot be read ({described(error)})") from error
            if isinstance(sample, Mapping):
                for column in (label, *([] if client is None else [client])):
                    if column not in sample:
                        raise unknown(f"key of sample {number} of {what}", column, map(str, sample))
                columns = tuple(str(key) for key in sample if key not in (label, client))
                require(bool(columns), f"{what}: sample {number} holds nothing besides '{label}'")
                values = [sample[key] for key in sample if key not in (label, client)]
                inputs.append(_input(values[0] if len(values) == 1 else values, number, what))
                labels.append(_plain(sample[label]))
                if client is not None:
                    owners.append(_plain(sample[client]))
            else:
                require(
                    isinstance(sample, tuple | list) and len(sample) == 2,
                    f"{what}: sample {number} is {shown(sample)}, not (input, label) nor a table with '{label}'",
                )
                require(client is None, f"client = {client}: samples of {what} have no keys; give a list of data sets")
                inputs.append(_input(sample[0], number, what))
                labels.append(_plain(sample[1]))
            first, here = inputs[0].shape, inputs[-1].shape
            require(
                first == here, f"{what}: sample {number} has shape {here}, those before it {first}; bring all to one"
            )
            advance(1)
    x = np.stack(inputs)
    if x.ndim == 1:
        x = x[:, None]
    return _Samples(x, labels, owners or None, columns, _class_names(dataset, label))


def _input(value: Any, number: int, what: str) -> Array:
    try:
        return np.asarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
    except (ValueError, TypeError) as error:
        raise CoterieError(f"{what}: the input of sample {number} makes no array ({described(error)})") from None


def _plain(value: Any) -> Any:
    """A label as a plain number or text, or as the one-hot row that it is."""
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value


def _class_names(dataset: Any, label: str) -> tuple[str, ...]:
    """What the data set calls its classes: Hugging Face's description of the label, or torchvision's `classes`."""
    features = getattr(dataset, "features", None)
    described_label = features.get(label) if isinstance(features, Mapping) else None
    names: Sequence[Any] = getattr(described_label, "names", None) or getattr(dataset, "classes", None) or ()
    return tuple(names) if isinstance(names, list | tuple) and all(isinstance(one, str) for one in names) else ()
