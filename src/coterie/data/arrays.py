"""Own data from NumPy arrays, tensors and `.npz` files, with labels by their own order or by a numbering agreed on."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from coterie.core.pixels import Inputs, Pixels, PixelScale, whole
from coterie.core.task import Task, as_task
from coterie.data.archives import DAMAGE
from coterie.data.dataset import Dataset, Ints
from coterie.errors import CoterieError, require, unknown
from coterie.typed import shown, typed

Labels = npt.NDArray[Any]
WHOLE = re.compile(r"0|-?[1-9][0-9]*")
BEYOND = 2**63
"""Class numbers are below it, as the machine's whole numbers are."""


@dataclass(frozen=True)
class Classes:
    """Classes whose numbers are settled already, of which the data at hand may hold only some.

    Text is matched against `names`. Integers are the numbers themselves, unless the names are whole numbers too:
    then they are matched as text. Without names, text is refused if it is not a whole number.

    >>> Classes(3, ("cat", "dog", "owl")).number(np.array(["owl", "cat"]), "pets").tolist()
    [2, 0]
    >>> Classes(2, ("-1", "1")).number(np.array([1, -1]), "signs").tolist()
    [1, 0]
    """

    count: int
    names: tuple[str, ...] = ()

    def number(self, labels: Labels, what: str) -> Ints:
        """The labels `[N]` as class numbers `[N]`; `what` names the data in errors."""
        if labels.dtype.kind == "f" and bool(((labels == np.round(labels)) & (np.abs(labels) < BEYOND)).all()):
            labels = labels.astype(np.int64)
        if labels.dtype.kind in "iu" and any(WHOLE.fullmatch(name) for name in self.names):
            labels = labels.astype(str)
        if labels.dtype.kind in "US":
            labels = labels.astype(str)
            if self.names:
                return self._by_name(labels, what)
            wrong = next((str(label) for label in np.unique(labels) if not WHOLE.fullmatch(str(label))), None)
            require(
                wrong is None,
                f"data '{what}': label '{wrong}' is text, and the classes have no names; list them as class_names",
            )
            large = next((label for label in np.unique(labels).tolist() if len(label) > 18), None)
            require(large is None, f"data '{what}': label {large}: must have 18 digits at most")
            labels = labels.astype(np.int64)
        numbers, _ = label_indices(labels, what)
        beyond = np.flatnonzero(numbers >= self.count)
        if len(beyond):
            first = beyond[0]
            allowed = f"with {self.count} classes they must lie in 0..{self.count - 1}"
            raise CoterieError(f"data '{what}': label {numbers[first]} of sample {first}: {allowed}")
        return numbers

    def _by_name(self, labels: Labels, what: str) -> Ints:
        places = {name: place for place, name in enumerate(self.names)}
        distinct, which = np.unique(labels, return_inverse=True)
        for label in distinct.tolist():
            if label not in places:
                raise unknown(f"class in data '{what}'", label, places)
        return np.array([places[label] for label in distinct.tolist()], dtype=np.int64)[which]


def label_indices(values: Labels, name: str) -> tuple[Ints, tuple[str, ...]]:
    """Labels as int64: integers stay, text is numbered in sorted order and its names are returned.

    >>> label_indices(np.array(["b", "a", "b"]), "own")
    (array([1, 0, 1]), ('a', 'b'))
    """
    if values.dtype.kind in "US":
        return numbered(values)
    require(
        values.dtype.kind in "biuf",
        f"data '{name}': labels are of type {values.dtype}; they must be integers or text",
    )
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):  # numbers beyond float64 become infinite, and are refused as such
            values = values.astype(np.float64)  # smaller kinds know no 2**63, not even to be compared with
        wrong = np.flatnonzero(~(np.isfinite(values) & (values == np.round(values))))
        if len(wrong):
            value = values[wrong[0]]
            raise CoterieError(
                f"data '{name}': label {value} of sample {wrong[0]} is no integer (nor text); task='regression' takes "
                "numbers"
            )
    negative = np.flatnonzero(values < 0)
    if len(negative):
        first = negative[0]
        raise CoterieError(f"data '{name}': label {values[first]} of sample {first}: labels count from 0")
    large = np.flatnonzero(values >= BEYOND) if values.dtype.kind in "uf" else np.zeros(0, np.int64)
    if len(large):
        raise CoterieError(f"data '{name}': label {values[large[0]]} of sample {large[0]}: must be below 2**63")
    return values.astype(np.int64), ()


def label_numbers(values: Labels, name: str, task: str) -> npt.NDArray[np.float32]:
    """Labels as float32, where a task is about numbers.

    >>> label_numbers(np.array([3, 1]), "own", "regression")
    array([3., 1.], dtype=float32)
    """
    kind = "text" if values.dtype.kind in "US" else f"of type {values.dtype}"
    require(values.dtype.kind in "biuf", f"data '{name}': labels are {kind}; the task {task} needs numbers")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, which the data set refuses
        return values.astype(np.float32)


def numbered(values: Labels) -> tuple[Ints, tuple[str, ...]]:
    """Each value's place among the sorted distinct values, and these as text."""
    distinct, places = np.unique(values, return_inverse=True)
    return places.astype(np.int64), tuple(str(value) for value in distinct)


Array = npt.NDArray[Any]
Values = Array | Tensor | Sequence[Any]
TestSplit = tuple[Values, Values] | tuple[Values, Values, Values]

CHANNELS_FIRST = (1, 3)
CHANNELS_LAST = (1, 3, 4)
MOST_NPZ_BYTES = 64 << 30
CLASSES_WITHOUT_QUESTION = 1000
"""Up to here the number of classes is taken from the largest label; beyond, it must make sense."""


@typed
def from_arrays(
    x: Values,
    y: Values,
    *,
    owners: Values | None = None,
    test: TestSplit | None = None,
    classes: int | Classes | None = None,
    class_names: Sequence[str] = (),
    feature_names: Sequence[str] = (),
    name: str = "own",
    task: str | Task = "",
    keep_dtype: bool = False,
) -> Dataset:
    """A data set from arrays: `x [N, ...]`, `y [N]`, and where known each sample's client `owners [N]`.

    - uint8 values are scaled to [−1, 1], and kept as bytes until then; those of a file that is mapped
      (`np.load(file, mmap_mode="r")`) stay in it. All others are taken as they are, as float32;
    - with `keep_dtype` whole numbers stay whole numbers (int64) and dimensions stay as they are: for models that
      begin with an embedding;
    - `[N, features]` stays; `[N, H, W]` becomes one channel `[N, 1, H, W]`;
    - of four dimensions, the second is the channels if it is 1 or 3 (`[N, C, H, W]`), else the last if it is
      1, 3 or 4 (`[N, H, W, C]`), else the second;
    - integer labels count from 0, and there are `classes` of them (default: one per class name, or the
      largest plus one); labels that are text are numbered in sorted order. Owners, numbers or text, likewise.
      `Classes` say how labels are numbered where that is settled already. One-hot rows `[N, C]` are read as the
      classes that they mean;
    - `feature_names` are those of the columns of `x [N, features]`: exported models know their inputs by them;
    - with `task="regression"` labels are numbers, taken as they are; a task of your own (`Classification(loss=...)`)
      may stand there too;
    - `test` is `(x, y)` or `(x, y, owners)` of an official test split.

    >>> data = from_arrays(np.zeros((3, 8, 8), dtype=np.uint8), ["cat", "dog", "cat"], owners=[7, 7, 9])
    >>> data.shape, data.class_names, data.owner_names, data.labels.tolist()
    ((1, 8, 8), ('cat', 'dog'), ('7', '9'), [0, 1, 0])
    """
    inputs = [_kept(x, name, keep_dtype)]
    labels = [_labels(y, name)]
    given = [owners]
    if test is not None:
        require(
            isinstance(test, tuple) and len(test) in (2, 3),
            f"test = {shown(test)}: must be (x, y) or (x, y, owners) of an official test split",
        )
        inputs.append(_kept(test[0], name, keep_dtype))
        labels.append(_labels(test[1], name))
        given.append(test[2] if len(test) == 3 else None)
        shapes = [tuple(part.shape[1:]) for part in inputs]
        require(shapes[0] == shapes[1], f"data '{name}': training inputs are {shapes[0]}, test inputs {shapes[1]}")
    for part, part_labels in zip(inputs, labels, strict=True):
        require(len(part) == len(part_labels), f"data '{name}': {len(part)} inputs but {len(part_labels)} labels")
    learned, owned = as_task(task), _owner_indices(given, name)
    both = inputs[0] if len(inputs) == 1 else _both(*inputs)
    columns = tuple(feature_names)
    require(
        not columns or tuple(both.shape[1:]) == (len(columns),),
        f"data '{name}': {len(columns)} feature_names for inputs of shape {tuple(both.shape[1:])}; give one per column",
    )
    if learned.label_dtype.is_floating_point:
        require(classes is None and not class_names, f"data '{name}': the task {learned.name} has no classes")
        numbers = torch.from_numpy(label_numbers(_joined(labels, name), name, learned.name))
        return Dataset(name, both, numbers, 0, len(labels[0]), *owned, task=learned, feature_names=columns)
    if isinstance(classes, Classes):
        indices, names, count = classes.number(_joined(labels, name), name), classes.names, classes.count
    else:
        indices, names = label_indices(_joined(labels, name), name)
        names = names or tuple(class_names)
        count = _class_count(indices, names, classes, name)
    named = names if len(names) == count else ()
    return Dataset(name, both, torch.from_numpy(indices), count, len(labels[0]), *owned, named, learned, columns)


def load_npz(
    path: Path, client: str | None = None, *, name: str, classes: Classes | None = None, task: str | Task = ""
) -> Dataset:
    """Arrays `x`, `y`, or `x_train`, `y_train`, `x_test`, `y_test`, and optionally each sample's client.

    Clients lie under the key `client` (training samples first), or under `client_train` and `client_test`;
    the argument `client` replaces the word in these keys.
    """
    arrays = read_npz(path)
    split = "x_train" in arrays
    keys = ("x_train", "y_train", "x_test", "y_test") if split else ("x", "y")
    missing = [key for key in keys if key not in arrays]
    require(
        not missing,
        f"{path} has no array '{', '.join(missing)}' (needed: x, y or x_train, y_train, x_test, y_test)",
    )
    stem = client or "client"
    single = [key for key in (*keys, stem, f"{stem}_train", f"{stem}_test") if key in arrays and not arrays[key].ndim]
    require(not single, f"{path}: '{', '.join(single)}' is a single value; there must be one for each sample")
    clients: list[Array | None] = [None, None]
    if stem in arrays:
        border = len(arrays[keys[1]])
        clients = [arrays[stem][:border], arrays[stem][border:]] if split else [arrays[stem], None]
    elif split and f"{stem}_train" in arrays and f"{stem}_test" in arrays:
        clients = [arrays[f"{stem}_train"], arrays[f"{stem}_test"]]
    elif client is not None:
        raise CoterieError(f"client = {client}: {path} holds only {', '.join(sorted(arrays))}")
    test: TestSplit | None = None
    if split:
        test = (arrays["x_test"], arrays["y_test"])
        if clients[1] is not None:
            test = (*test, clients[1])
    x, y = (arrays[key] for key in keys[:2])
    return from_arrays(x, y, owners=clients[0], test=test, classes=classes, name=name, task=task)


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of a file, by name; none may be pickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        require(
            size <= MOST_NPZ_BYTES,
            f"{path} holds {size:,} bytes of arrays; at most {MOST_NPZ_BYTES:,} are read",
        )
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        # What does not begin as an array should is handed out as it stands.
        strange = next((key for key, value in arrays.items() if not isinstance(value, np.ndarray)), None)
        require(strange is None, f"cannot read {path} (what it has as '{strange}' is no array)")
        return arrays
    except CoterieError:
        raise
    except (*DAMAGE, ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise CoterieError(f"cannot read {path} ({' '.join(str(error).split())})") from error


def _kept(given: Values, name: str, keep_dtype: bool) -> Inputs:
    """Inputs as a data set keeps them: bytes as bytes."""
    values = given if isinstance(given, np.memmap) else _array(given)
    if values.dtype == np.uint8 and not keep_dtype:
        return Pixels.mapped(_channels_first(values, name))
    return to_inputs(values, name, keep_dtype)


def _both(train: Inputs, test: Inputs) -> Inputs:
    """Training and test samples, one after the other."""
    if isinstance(train, Pixels) and isinstance(test, Pixels):
        return Pixels(torch.cat([train.kept, test.kept]))
    return torch.cat([whole(train), whole(test)])


def to_inputs(values: Array, name: str, keep_dtype: bool = False) -> Tensor:
    """Inputs as float32, channels first, uint8 scaled to [−1, 1]; or whole numbers as int64 if they are to be kept.

    >>> to_inputs(np.zeros((5, 32, 24, 3)), "own").shape
    torch.Size([5, 3, 32, 24])
    """
    if keep_dtype and values.dtype.kind in "iu":
        require_samples(values, name)
        return torch.from_numpy(np.array(values, dtype=np.int64, order="C"))
    values = _channels_first(values, name)
    if values.dtype == np.uint8:
        return PixelScale()(torch.from_numpy(np.array(values, order="C")))
    # A copy in any case: the caller's array may change or go away.
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, which the data set refuses
        return torch.from_numpy(np.array(values, dtype=np.float32, order="C"))


def require_samples(values: Array, name: str) -> None:
    """An error if an array cannot be inputs."""
    require(
        values.ndim >= 2,
        f"data '{name}': inputs have shape {values.shape}; they must be [N, features] or images",
    )
    require(values.dtype.kind in "biuf", f"data '{name}': inputs are of type {values.dtype}; they must be numbers")


def _channels_first(values: Array, name: str) -> Array:
    """Inputs with their channels first, if they are images; the same memory."""
    require_samples(values, name)
    if values.ndim == 3:
        return values[:, None]
    if values.ndim == 4 and values.shape[1] not in CHANNELS_FIRST and values.shape[3] in CHANNELS_LAST:
        return values.transpose(0, 3, 1, 2)
    return values


def _array(values: Values) -> Array:
    require_unmasked(values)
    require_no_data_set(values)
    try:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except ValueError:
        raise CoterieError(f"{shown(values)} makes no array: its rows are not of one length") from None
    # Columns of tables and lists of str may come as objects; they are text or they are refused later.
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        return array.astype(str)
    return array


def require_unmasked(values: Values) -> None:
    """An error if some values are masked: as an array they would be what lies beneath the mask.

    >>> require_unmasked(np.ma.masked_equal([1, 2, 2], 2))
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: data: 2 values of an array are masked; fill them (.filled()), or leave samples out
    """
    parts = values if isinstance(values, list | tuple) else [values]
    masked = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    require(not masked, f"data: {masked} values of an array are masked; fill them (.filled()), or leave samples out")


def require_no_data_set(values: object) -> None:
    """An error if values are a data set or a loader: as an array, one without an end would be read for ever.

    >>> require_no_data_set(torch.utils.data.DataLoader([1, 2]))
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: a DataLoader makes no array: ct.from_dataset takes what it reads (its .dataset)
    """
    kinds = {type(part): part for part in values} if isinstance(values, list | tuple) else {type(values): values}
    for kind, part in kinds.items():
        require(
            not isinstance(part, DataLoader),
            "a DataLoader makes no array: ct.from_dataset takes what it reads (its .dataset)",
        )
        array_like = hasattr(kind, "__array__") or hasattr(kind, "__array_interface__")
        by_index = hasattr(kind, "__getitem__") and not isinstance(
            part, str | bytes | list | tuple | dict | range | np.generic
        )
        require(
            array_like or not by_index,
            f"{shown(part)} makes no array: ct.from_dataset takes data sets, or a list of them",
        )


def _labels(values: Values, name: str) -> Array:
    """Labels `[N]`, of one-hot rows `[N, C]` the class that each means."""
    array = _array(values)
    if array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "biuf":
        ones = (array == 1).sum(1) == 1
        if len(array) > 1 and bool(ones.all()) and bool(((array == 0) | (array == 1)).all()):
            classes: Array = array.argmax(1)
            return classes
    return _one_each(array, "labels", name)


def _one_each(values: Values, what: str, name: str) -> Array:
    """Labels or owners `[N]`; a row or a column of them will do, but a table has no order that anybody could know."""
    array = _array(values)
    require(
        sum(size != 1 for size in array.shape) <= 1,
        f"data '{name}': {what} have the shape {array.shape}; there must be one for each sample, [N]",
    )
    return array.reshape(-1)


def _joined(parts: list[Array], name: str) -> Array:
    texts = {part.dtype.kind in "US" for part in parts}
    require(len(texts) == 1, f"data '{name}': labels or owners are text in one split and numbers in the other")
    if len(parts) == 1:
        return parts[0]
    kinds = {part.dtype.kind for part in parts}
    known = kinds <= set("biufUS")  # of others, such as dates beside numbers, no array can be made
    require(known, f"data '{name}': labels or owners are of types {', '.join(str(part.dtype) for part in parts)}")
    return np.concatenate(parts)


def _class_count(indices: Ints, names: tuple[str, ...], classes: int | None, name: str) -> int:
    if classes is not None:
        return classes
    if names:
        return len(names)
    count = int(indices.max(initial=-1)) + 1
    require(
        count <= max(CLASSES_WITHOUT_QUESTION, len(indices)),
        f"data '{name}': labels go up to {count - 1} with {len(indices)} samples; number the classes from 0",
    )
    return count


def _owner_indices(given: list[Values | None], name: str) -> tuple[Tensor | None, tuple[str, ...]]:
    known = [_one_each(owners, "owners", name) for owners in given if owners is not None]
    if not known:
        return None, ()
    require(len(known) == len(given), f"data '{name}': owners are given for one of the splits only")
    owners = _joined(known, name)
    require(
        owners.dtype.kind in "biuUS",
        f"data '{name}': owners are of type {owners.dtype}; they must be integers or text",
    )
    indices, names = numbered(owners)
    return torch.from_numpy(indices), names
