"""New samples to predict, with or without labels."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from coterie.data.arrays import Array, Classes, read_npz, to_inputs
from coterie.data.images import IMAGE_SUFFIXES, class_images, decode_files
from coterie.data.loading import DEFAULT_LABEL
from coterie.data.tables import (
    DEFAULT_CLIENT,
    TABLE_SUFFIXES,
    Source,
    TableSplits,
    declared_names,
    feature_arrays,
    holds_images,
    label_column,
    numbers_in,
    read_table,
)
from coterie.deployment.site_data import Shape, fitted
from coterie.errors import CoterieError, require, unknown
from coterie.files import expanded

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Samples:
    """Inputs `[N, ...]`, what each is called (a file, or its place); where known, labels `[N]` and whose each is."""

    names: tuple[str, ...]
    inputs: Tensor
    labels: Tensor | None = None
    owners: tuple[str, ...] = ()

    def only(self, places: Tensor) -> Samples:
        """Some of them: those at `places [m]`."""
        chosen = places.tolist()
        names = tuple(self.names[place] for place in chosen)
        owners = tuple(self.owners[place] for place in chosen) if self.owners else ()
        return Samples(names, self.inputs[places], None if self.labels is None else self.labels[places], owners)

    def of_client(self, client: str) -> Samples:
        """Those of one client."""
        if client not in self.owners:
            raise unknown("client in the data", client, set(self.owners))
        return self.only(torch.tensor([place for place, owner in enumerate(self.owners) if owner == client]))


def read_samples(
    path: Path,
    shape: Shape,
    classes: Classes,
    label: str = DEFAULT_LABEL,
    client: str | None = None,
    *,
    features: tuple[str, ...] = (),
    progress: bool = True,
) -> Samples:
    """Samples of the given shape: an array `x` in `.npz`, the rows of `.csv` or `.parquet`, or a folder of images.

    Labels are read where there are any: the array `y`, the column `label`, folders named after classes. In a table
    `client` is the column that says whose a sample is; `features` are the columns that are inputs, in their order.
    """
    path = expanded(path)
    require(path.exists(), f"data '{path}': there is no such file or folder")
    suffix = path.suffix.lower()
    is_table = path.is_file() and suffix in TABLE_SUFFIXES
    require(label == DEFAULT_LABEL or is_table, f"label = {label}: names a column of a table, but {path} is none")
    require(client is None or is_table, f"client_column = {client}: names a column of a table, but {path} is none")
    size = (shape[1], shape[2]) if len(shape) == 3 else None
    names: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    if is_table:
        table = read_table((path,))
        values, labels, images = _of_table(table, path, size, label, client, features, progress)
        column = client or (DEFAULT_CLIENT if DEFAULT_CLIENT in table.column_names else None)
        if column is not None and column not in (*features, label):
            owners = tuple(map(str, label_column(table, column, path, ()).tolist()))
    elif path.is_file() and suffix == ".npz":
        arrays, images = read_npz(path), False
        require("x" in arrays, f"{path} has no array 'x' (it holds {', '.join(sorted(arrays)) or 'nothing'})")
        values, labels = arrays["x"], arrays.get("y")
    elif path.is_dir():
        require(size is not None, f"data '{path}': is a folder of images, but the model's inputs have shape {shape}")
        files = _files(path)
        names = tuple(str(file.relative_to(path)) for _, file in files)
        values, images = decode_files([file for _, file in files], size, path.name, progress), True
        labels = np.array([name for name, _ in files], dtype=str) if files[0][0] is not None else None
    else:
        allowed = ", ".join((*TABLE_SUFFIXES, ".npz"))
        raise CoterieError(f"data '{path}': unknown kind of file '{path.suffix}' (allowed: {allowed}, or a folder)")
    what = path.stem
    inputs = fitted(to_inputs(values, what), shape, what, resized=images)
    finite = torch.isfinite(inputs.flatten(1)).all(1)
    if not bool(finite.all()):
        raise CoterieError(f"data '{what}': sample {int((~finite).nonzero()[0])} holds NaN or infinite values")
    names = names or tuple(map(str, range(len(inputs))))
    if labels is None:
        return Samples(names, inputs, owners=owners)
    labels = labels.reshape(-1)
    require(len(labels) == len(inputs), f"data '{what}': {len(inputs)} inputs but {len(labels)} labels")
    return Samples(names, inputs, torch.from_numpy(classes.number(labels, what)), owners)


def _of_table(
    table: pa.Table,
    path: Path,
    size: tuple[int, int] | None,
    label: str,
    client: str | None,
    features: tuple[str, ...],
    progress: bool,
) -> tuple[Array, Array | None, bool]:
    """Features, labels if there is such a column, and whether the features are images."""
    names = table.column_names
    for column, usual in ((label, DEFAULT_LABEL), (client, None)):
        if column is not None and column not in names and column != usual:
            raise unknown(f"column of {path}", column, names)
    images = holds_images(TableSplits((path,)))
    if features and not images:
        values = named_inputs(table, features, path, label, client)
    else:
        owner = client or (None if label == DEFAULT_CLIENT else DEFAULT_CLIENT)
        if not images:
            log.warning("%s: the model does not say what its inputs are called; columns are taken as they stand", path)
        (values,), _ = feature_arrays([table], [path], (label, owner), size if images else None, path.stem, progress)
    declared = declared_names(table.schema, label)
    return values, label_column(table, label, path, declared) if label in names else None, images


def named_inputs(
    table: pa.Table,
    features: tuple[str, ...],
    source: Source,
    label: str = DEFAULT_LABEL,
    client: str | None = None,
) -> Array:
    """The columns of a table that are a model's inputs, by name and in the model's order `[N, features]`.

    Neither may one be missing nor may there be others, but for a label and a client column.

    >>> named_inputs(pa.table({"weight": [60.0], "age": [9.0]}), ("age", "weight"), "new.csv").tolist()
    [[9.0, 60.0]]
    >>> named_inputs(pa.table({"weight": [60.0], "Age": [9.0]}), ("age", "weight"), "new.csv")
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: new.csv: the model's input 'age' is missing; 'Age' is no input of the model; rename \
or remove such columns (--label and --client-column name others that may be there)
    """
    besides = {label, client or DEFAULT_CLIENT}
    missing = [name for name in features if name not in table.column_names]
    strange = [name for name in table.column_names if name not in features and name not in besides]
    faults = [f"the model's input{_several(missing)} missing"] if missing else []
    faults += [f"{_several(strange).strip()} no input of the model"] if strange else []
    require(
        not faults,
        f"{source}: {'; '.join(faults)}; rename or remove such columns (--label and --client-column name others that "
        "may be there)",
    )
    return numbers_in(table, features, source)


SHOWN = 5


def _several(names: list[str]) -> str:
    """Names with the verb that goes with them: at most some of them."""
    listed = ", ".join(f"'{name}'" for name in names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
    return f" {listed} is" if len(names) == 1 else f"s {listed} are"


def _files(folder: Path) -> list[tuple[str | None, Path]]:
    """The images that lie in the folder itself, else those in folders named after their classes."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
    if files:
        return [(None, file) for file in files]
    require(
        not (folder / "train").is_dir(),
        f"{folder} holds a folder 'train': name the one whose images are to be predicted",
    )
    return [*class_images(folder)]
