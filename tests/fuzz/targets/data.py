"""Data files, of one's own and of published data sets: refused in a line, or samples that can be trained on."""

from __future__ import annotations

import io
import struct
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image
from tests.fuzz.bases import damaged, damages, odd_values
from tests.fuzz.trial import Case, Target, must, refused

from coterie.core.pixels import whole
from coterie.data import load
from coterie.data.archives import tar_members
from coterie.data.layouts import read_idx

SAMPLES = 12


def table_text(cells: list[list[str]]) -> str:
    """A CSV file, cells as they are."""
    return "\n".join(",".join(row) for row in cells) + "\n"


def whole_table() -> list[list[str]]:
    """Its cells."""
    rows = [[f"{i / 4}", str(i % 5), str(i % 3), "xyz"[i % 3]] for i in range(SAMPLES)]
    return [["a", "b", "label", "client"], *rows]


def saved(**arrays: Any) -> bytes:
    """Arrays as a compressed .npz file."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def picture(number: int) -> bytes:
    """A small PNG."""
    file = io.BytesIO()
    Image.new("RGB", (6, 6), (number * 20 % 255, 10, 200)).save(file, "PNG")
    return file.getvalue()


@cache
def whole_files() -> dict[str, bytes]:
    """One of each kind, as it should be."""
    numbers = np.random.default_rng(0)
    x, y = numbers.normal(size=(SAMPLES, 3)).astype("float32"), np.arange(SAMPLES) % 3
    table = io.BytesIO()
    pq.write_table(pa.table({"a": x[:, 0], "b": x[:, 1], "label": y, "client": ["u", "v"] * (SAMPLES // 2)}), table)
    images = io.BytesIO()
    encoded = [{"bytes": picture(i), "path": f"{i}.png"} for i in range(SAMPLES)]
    pq.write_table(pa.table({"image": encoded, "label": y}), images)
    split = {"x_train": x[:9], "y_train": y[:9], "x_test": x[9:], "y_test": y[9:]}
    return {
        "table.csv": table_text(whole_table()).encode(),
        "arrays.npz": saved(x=x, y=y, client=np.array(["u", "v"] * (SAMPLES // 2))),
        "split.npz": saved(**split, client_train=y[:9], client_test=y[9:]),
        "images.npz": saved(x=(numbers.random((SAMPLES, 4, 4, 3)) * 255).astype("uint8"), y=y),
        "table.parquet": table.getvalue(),
        "images.parquet": images.getvalue(),
        "picture.png": picture(1),
        "images-idx3-ubyte": idx((SAMPLES, 4, 4)),
        "labels-idx1-ubyte": idx((SAMPLES,)),
        "archive.tar.gz": tar("w:gz"),
        "archive.tar.xz": tar("w:xz"),
        "archive.tar": tar("w"),
    }


def idx(shape: tuple[int, ...]) -> bytes:
    """A file of MNIST's own format."""
    count = int(np.prod(shape))
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(i % 3 for i in range(count))


def tar(mode: Any) -> bytes:
    """An archive of two files."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name in ("one", "two"):
            info = tarfile.TarInfo(name)
            info.size = 100
            archive.addfile(info, io.BytesIO(bytes(100)))
    return file.getvalue()


@st.composite
def damaged_files(draw: st.DrawFn) -> Case:
    """A file to which something happened."""
    kind = draw(st.sampled_from(sorted(whole_files())))
    whole = whole_files()[kind]
    return {"kind": kind, "content": damaged(whole, draw(damages(len(whole)))).hex()}


@st.composite
def odd_tables(draw: st.DrawFn) -> Case:
    """A table with other cells, columns or letters than it should have."""
    cells = whole_table()
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.integers(0, len(cells) - 1))
        column = draw(st.integers(0, 3))
        action = draw(st.sampled_from(("cell", "cell", "copy", "shorter", "longer", "no rows")))
        if action == "cell" and column < len(cells[row]):
            cells[row][column] = draw(odd_values)
        elif action == "copy":
            cells[0][column % len(cells[0])] = draw(st.sampled_from(cells[0]))
        elif action == "shorter":
            cells[row] = cells[row][: max(column, 1)]
        elif action == "longer":
            cells[row] = [*cells[row], draw(odd_values)]
        elif action == "no rows":
            cells = cells[: row + 1]
    coding = draw(st.sampled_from(("utf-8", "utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16", "cp1252")))
    return {"kind": "table.csv", "content": table_text(cells).encode(coding, errors="replace").hex()}


KINDS = ("<f4", "<f8", "<f2", "|u1", "<i4", "<i8", "<u8", "|b1", "<U3", "|S3", "<c8", "<M8[s]", "|V4")


@st.composite
def odd_arrays(draw: st.DrawFn) -> Case:
    """Arrays of any kind and shape where inputs, labels and clients should be."""
    arrays = {}
    for name in draw(st.sampled_from((("x", "y"), ("x", "y", "client"), ("x_train", "y_train", "x_test", "y_test")))):
        kind = np.dtype(draw(st.sampled_from(KINDS)))
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
        if draw(st.booleans()):
            shape = (SAMPLES, *shape[1:])
        content = draw(st.binary(min_size=1, max_size=24))
        need = int(np.prod(shape)) * kind.itemsize
        arrays[name] = np.frombuffer((content * (need // len(content) + 1))[:need], kind).reshape(shape)
    return {"kind": "arrays.npz", "content": saved(**arrays).hex()}


def check_file(case: Case, folder: Path) -> None:
    """What is read from a file holds finite numbers, a label for each sample, and clients that have names."""
    kind = str(case["kind"])
    path = folder / kind
    path.write_bytes(bytes.fromhex(case["content"]))
    if kind.startswith("archive"):
        refused(lambda: list(tar_members(path, lambda name: True, 1 << 20)))
    elif kind.endswith("-ubyte"):
        check_idx(path)
    elif kind.endswith(".png"):
        check_folder(path, folder / "own")
    else:
        for task in ("classification", "regression"):
            refused(lambda task=task: check_data(path, task))
    must(sorted(one.name for one in folder.iterdir() if one.name != "own") == [kind], "something was written")


def check_data(path: Path, task: str = "") -> None:
    """A data set is whole."""
    data = load(path, progress=False, task=task)
    must(len(data) == len(data.labels) == len(data.inputs) > 0, f"{len(data.inputs)} inputs, {len(data.labels)} labels")
    must(bool(whole(data.inputs).isfinite().all()), "inputs are not finite")
    must(bool(data.labels.isfinite().all()), "labels are not finite")
    must(0 < data.train_size <= len(data), f"{data.train_size} training samples of {len(data)}")
    if task == "classification":
        must(data.classes >= 2, f"{data.classes} classes")
        must(int(data.labels.min()) >= 0 and int(data.labels.max()) < data.classes, "labels beyond the classes")
    if data.owners is not None:
        must(len(data.owners) == len(data), "owners of some samples only")
        must(int(data.owners.max()) < len(data.owner_names), "owners without a name")
    must(all(size > 0 for size in data.inputs.shape), f"inputs of shape {tuple(data.inputs.shape)}")


def check_idx(path: Path) -> None:
    """MNIST's own files: one of four is damaged."""
    others = path.parent / "own"
    others.mkdir()
    files = []
    for part in ("train", "t10k"):
        for name, shape in (("images-idx3-ubyte", (SAMPLES, 28, 28)), ("labels-idx1-ubyte", (SAMPLES,))):
            file = others / f"{part}-{name}"
            file.write_bytes(path.read_bytes() if part == "train" and name == path.name else idx(shape))
            files.append(file)
    refused(lambda: read_idx(tuple(files)))


def check_folder(path: Path, folder: Path) -> None:
    """A folder of images, one of which is damaged."""
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        (folder / label / "whole.png").write_bytes(picture(2))
    (folder / "cat" / "damaged.png").write_bytes(path.read_bytes())
    refused(lambda: check_data(folder, "classification"))


TARGETS = (
    Target("data files", damaged_files(), check_file, 180),
    Target("tables", odd_tables(), check_file, 100),
    Target("arrays", odd_arrays(), check_file, 100),
)
