"""New samples to predict, with or without labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.data.arrays import Array, Classes, read_npz, to_inputs
from coterie.data.images import IMAGE_SUFFIXES, class_images, decode_files
from coterie.data.loading import DEFAULT_LABEL
from coterie.data.tables import (
    DEFAULT_CLIENT,
    TABLE_SUFFIXES,
    TableSplits,
    declared_names,
    feature_arrays,
    holds_images,
    label_column,
    read_table,
)
from coterie.deployment.site_data import Shape, fitted
from coterie.errors import CoterieError, require, unknown
from coterie.files import expanded


@dataclass(frozen=True)
class Samples:
    """Inputs `[N, ...]`, what each is called (a file, or its place), and the labels `[N]` where they are known."""

    names: tuple[str, ...]
    inputs: Tensor
    labels: Tensor | None = None

    def only(self, places: Tensor) -> Samples:
        """Some of them: those at `places [m]`."""
        names = tuple(self.names[place] for place in places.tolist())
        return Samples(names, self.inputs[places], None if self.labels is None else self.labels[places])


def read_samples(
    path: Path, shape: Shape, classes: Classes, label: str = DEFAULT_LABEL, *, progress: bool = True
) -> Samples:
    """Samples of the given shape: an array `x` in `.npz`, the rows of `.csv` or `.parquet`, or a folder of images.

    Labels are read where there are any: the array `y`, the column `label`, folders named after classes.
    """
    path = expanded(path)
    require(path.exists(), f"data '{path}': there is no such file or folder")
    suffix = path.suffix.lower()
    is_table = path.is_file() and suffix in TABLE_SUFFIXES
    require(label == DEFAULT_LABEL or is_table, f"label = {label}: names a column of a table, but {path} is none")
    size = (shape[1], shape[2]) if len(shape) == 3 else None
    names: tuple[str, ...] = ()
    if is_table:
        values, labels, images = _table(path, size, label, progress)
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
        return Samples(names, inputs)
    labels = labels.reshape(-1)
    require(len(labels) == len(inputs), f"data '{what}': {len(inputs)} inputs but {len(labels)} labels")
    return Samples(names, inputs, torch.from_numpy(classes.number(labels, what)))


def _table(path: Path, size: tuple[int, int] | None, label: str, progress: bool) -> tuple[Array, Array | None, bool]:
    """Features, labels if there is such a column, and whether the features are images."""
    table = read_table((path,))
    names = table.column_names
    if label not in names and label != DEFAULT_LABEL:
        raise unknown(f"column of {path}", label, names)
    images = holds_images(TableSplits((path,)))
    left_out = (label, None if label == DEFAULT_CLIENT else DEFAULT_CLIENT)
    (values,) = feature_arrays([table], [path], left_out, size if images else None, path.stem, progress)
    declared = declared_names(table.schema, label)
    return values, label_column(table, label, path, declared) if label in names else None, images


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
