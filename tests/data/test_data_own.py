from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data_files import encode, hub_table, pixels, scaled
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.data import arrays as arrays_module
from coterie.data import from_arrays, load, load_own
from coterie.data.arrays import Classes
from coterie.errors import CoterieError


@pytest.mark.thorough
@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, min_side=2, max_side=5)))
def test_grey_pixels_become_one_channel_in_minus_one_to_one(images: np.ndarray) -> None:
    data = from_arrays(images, np.arange(len(images)) % 2)
    np.testing.assert_allclose(data.inputs.numpy(), scaled(images)[:, None], atol=1e-7)


@pytest.mark.thorough
@given(st.sampled_from([1, 3, 4]), st.integers(5, 9), st.integers(5, 9))
def test_channels_last_is_recognised(channels: int, height: int, width: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, height, width, channels), dtype=np.uint8)
    data = from_arrays(images, [0, 1])
    assert data.shape == (channels, height, width)
    np.testing.assert_allclose(data.inputs.numpy(), scaled(images.transpose(0, 3, 1, 2)), atol=1e-7)


@pytest.mark.parametrize("shape", [(1, 5, 6), (3, 5, 6), (3, 32, 3), (7, 5, 6)])
def test_channels_first_stays(shape: tuple[int, ...]) -> None:
    assert from_arrays(np.zeros((2, *shape), dtype=np.uint8), [0, 1]).shape == shape


def test_floats_and_tensors_stay_as_they_are_and_are_copied() -> None:
    x = np.array([[300.0, -2.5], [0.0, 1.0]])
    data = from_arrays(x, torch.tensor([1, 0]))
    x[0, 0] = 0
    assert data.inputs.tolist() == [[300.0, -2.5], [0.0, 1.0]]
    assert data.labels.tolist() == [1, 0]
    tensor = torch.rand(2, 3, 4, 4)
    own = from_arrays(tensor, [0, 1])
    assert torch.equal(own.inputs, tensor)
    tensor.zero_()
    assert bool(own.inputs.any())


def test_text_labels_and_owners_are_numbered_in_sorted_order_over_both_splits() -> None:
    data = from_arrays(np.zeros((3, 2)), ["b", "c", "b"], owners=["y", "x", "y"], test=(np.ones((1, 2)), ["a"], ["w"]))
    assert (data.class_names, data.labels.tolist()) == (("a", "b", "c"), [1, 2, 1, 0])
    assert data.owners is not None
    assert (data.owner_names, data.owners.tolist()) == (("w", "x", "y"), [2, 1, 2, 0])
    assert (data.train_size, data.inputs[3].tolist()) == (3, [1.0, 1.0])


def test_classes_may_be_more_than_are_seen() -> None:
    assert from_arrays(np.zeros((2, 2)), [0, 1], classes=5).classes == 5
    assert from_arrays(np.zeros((2, 2)), [0.0, 2.0]).classes == 3
    assert from_arrays(np.zeros((2, 2)), [0, 1], class_names=("no", "yes", "maybe")).classes == 3


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (np.zeros((2, 2)), [0, 0], {}, "1 class; at least 2"),
        (np.zeros((2, 2)), [0, -1], {}, "label -1 of sample 1: labels count from 0"),
        (np.zeros((2, 2)), [0, 5], {"classes": 3}, r"labels lie in 0\.\.5; with 3 classes"),
        (np.zeros((2, 2)), [0, 5_000_000], {}, "number the classes from 0"),
        (np.zeros((2, 2)), [0.0, 0.5], {}, r"label 0\.5 of sample 1 is no integer"),
        (np.zeros((2, 2)), [0.0, np.nan], {}, "label nan of sample 1 is no integer"),
        (np.zeros((2, 2)), [None, {}], {}, "labels are of type object"),
        (np.zeros((3, 2)), [0, 1], {}, "3 inputs but 2 labels"),
        (np.zeros(2), [0, 1], {}, r"inputs have shape \(2,\)"),
        (np.array([["a"], ["b"]]), [0, 1], {}, "they must be numbers"),
        (np.array([[0.0], [np.nan]]), [0, 1], {}, "sample 1 holds NaN"),
        (np.ma.masked_equal(np.array([[0.0], [9.0]]), 9.0), [0, 1], {}, "1 values of an array are masked"),
        ([np.ma.masked_equal([0.0, 9.0], 9.0), [1.0, 2.0]], [0, 1], {}, "1 values of an array are masked"),
        (np.zeros((2, 2)), np.ma.masked_equal([0, 1], 1), {}, "1 values of an array are masked"),
        (np.zeros((2, 2)), [0, 1], {"owners": [1]}, "1 owners but 2 samples"),
        (np.zeros((2, 2)), [0, 1], {"owners": [0.5, 1]}, "owners are of type float64"),
        (
            np.zeros((2, 2)),
            [0, 1],
            {"owners": [0, 1], "test": (np.zeros((1, 2)), [0])},
            "one of the splits only",
        ),
        (
            np.zeros((2, 2)),
            [0, 1],
            {"test": (np.zeros((1, 3)), [0])},
            r"training inputs are \(2,\), test inputs",
        ),
        (np.zeros((2, 2)), ["0", "1"], {"test": (np.zeros((1, 2)), [0])}, "text in one split"),
        (np.zeros((0, 2)), [], {}, "no samples"),
    ],
)
def test_bad_arrays_are_named(x: np.ndarray, y: list[object], options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message) as caught:
        from_arrays(x, y, **options)
    assert "\n" not in str(caught.value)


def test_npz_with_and_without_a_test_split(tmp_path: Path) -> None:
    images = pixels(3, 3, 8)
    np.savez(tmp_path / "one.npz", x=images, y=[0, 1, 0], client=["b", "a", "b"])
    data = load(str(tmp_path / "one.npz"))
    np.testing.assert_allclose(data.inputs.numpy(), scaled(images), atol=1e-7)
    assert data.owners is not None
    assert (data.name, data.train_size, data.owners.tolist(), data.owner_names) == (
        "one",
        3,
        [1, 0, 1],
        ("a", "b"),
    )
    parts = {"x_train": images[:2], "y_train": [0, 1], "x_test": images[2:], "y_test": [1]}
    np.savez(tmp_path / "two.npz", **parts, client=[5, 6, 5])
    np.savez(tmp_path / "three.npz", **parts, site_train=[5, 6], site_test=[5])
    for split in (load_own(tmp_path / "two.npz"), load_own(tmp_path / "three.npz", client="site")):
        assert (split.train_size, split.labels.tolist()) == (2, [0, 1, 1])
        assert split.owners is not None
        assert (split.owners.tolist(), split.owner_names) == ([0, 1, 0], ("5", "6"))


def test_bad_npz_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((2, 2)))
    with pytest.raises(CoterieError, match=r"a\.npz has no array 'y'"):
        load_own(path)
    np.savez(path, x=np.zeros((2, 2)), y=np.array([0, "a"], dtype=object))
    with pytest.raises(CoterieError, match=r"cannot read .*a\.npz"):
        load_own(path)
    np.savez(path, x=np.zeros((2, 2)), y=[0, 1])
    with pytest.raises(CoterieError, match=r"client = site: .*a\.npz holds only x, y"):
        load_own(path, client="site")
    with pytest.raises(CoterieError, match="label = z: names a column of a table"):
        load_own(path, label="z")
    monkeypatch.setattr(arrays_module, "MOST_NPZ_BYTES", 10)
    with pytest.raises(CoterieError, match="bytes of arrays; at most 10"):
        load_own(path)
    path.write_bytes(b"nothing")
    with pytest.raises(CoterieError, match=r"cannot read .*a\.npz"):
        load_own(path)


def test_damaged_compressed_npz_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(60, 2)), y=np.arange(60) % 2)
    whole = path.read_bytes()
    for place in (60, 80, 200, 400, len(whole) // 2):  # in headers, in what is compressed, in checksums
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(CoterieError, match=r"cannot read .*a\.npz") as caught:
            load_own(path)
        assert "\n" not in str(caught.value)


def write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_folder_of_images_per_class(tmp_path: Path) -> None:
    images = pixels(3, 1, 6)
    for place, image in zip(("b/1.png", "a/2.png", "b/0.PNG"), images, strict=True):
        write(tmp_path / "pets" / place, encode(image))
    write(tmp_path / "pets" / "a" / "notes.txt", "not an image")
    data = load(str(tmp_path / "pets"))
    assert (data.class_names, data.labels.tolist(), data.shape) == (("a", "b"), [0, 1, 1], (1, 6, 6))
    np.testing.assert_allclose(data.inputs.numpy(), scaled(images[[1, 2, 0]]), atol=1e-7)


def test_folder_with_splits_mixed_colours_and_sizes(tmp_path: Path) -> None:
    colour = np.zeros((3, 4, 8), dtype=np.uint8) + np.array([255, 0, 51], dtype=np.uint8)[:, None, None]
    write(tmp_path / "train" / "x" / "1.png", encode(colour))
    write(tmp_path / "train" / "y" / "1.png", encode(np.full((1, 10, 10), 255, dtype=np.uint8)))
    write(tmp_path / "test" / "x" / "1.png", encode(np.full((1, 3, 3), 0, dtype=np.uint8)))
    data = load_own(tmp_path)
    assert (data.train_size, data.shape, data.labels.tolist()) == (2, (3, 4, 8), [0, 1, 0])
    np.testing.assert_allclose(data.inputs[0].numpy(), scaled(colour), atol=1e-7)
    assert bool((data.inputs[1] == 1).all())
    assert bool((data.inputs[2] == -1).all())
    assert load_own(tmp_path, size=(5, 7)).shape == (3, 5, 7)


def test_bad_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    with pytest.raises(CoterieError, match="e is empty"):
        load_own(tmp_path / "e")
    (tmp_path / "e" / "cat").mkdir()
    with pytest.raises(CoterieError, match="cat holds no images"):
        load_own(tmp_path / "e")
    whole = encode(pixels(1, 3, 16)[0])
    write(tmp_path / "e" / "cat" / "a.png", whole)
    with pytest.raises(CoterieError, match="1 class; at least 2"):
        load_own(tmp_path / "e")
    write(tmp_path / "e" / "dog" / "half.png", whole[: len(whole) // 2])
    with pytest.raises(CoterieError, match=r"cannot read image .*half\.png"):
        load_own(tmp_path / "e")
    write(tmp_path / "e" / "dog" / "half.png", b"%!PS-Adobe-3.0 EPSF-3.0\n")
    with pytest.raises(CoterieError, match=r"cannot read image .*half\.png: it is damaged or none of PNG"):
        load_own(tmp_path / "e")
    write(tmp_path / "s" / "train" / "a" / "1.png", whole)
    write(tmp_path / "s" / "test" / "b" / "1.png", whole)
    with pytest.raises(CoterieError, match="class 'b' has test images but no folder"):
        load_own(tmp_path / "s")
    with pytest.raises(CoterieError, match="there is no such file or folder"):
        load(str(tmp_path / "absent.csv"))
    write(tmp_path / "a.docx", "x")
    with pytest.raises(CoterieError, match=r"unknown kind of file '\.docx'"):
        load_own(tmp_path / "a.docx")


def test_sixteen_bit_images_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((4, 4), 60_000, dtype=np.uint16)).save(tmp_path / "a" / "deep.png")
    with pytest.raises(CoterieError, match=r"deep\.png has more than 8 bits a channel"):
        load_own(tmp_path)


CSV = "height,label,client,flag\n1.5,dog,south,true\n2,cat,north,false\n-3,dog,south,true\n"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_table_with_text_labels_and_clients(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"farm.{kind}"
    if kind == "csv":
        path.write_text(CSV)
    else:
        columns = {
            "label": pa.array(["dog", "cat", "dog"]).dictionary_encode(),
            "client": ["south", "north", "south"],
        }
        pq.write_table(pa.table({"height": [1.5, 2.0, -3.0], **columns, "flag": [True, False, True]}), path)
    data = load(str(path))
    assert data.inputs.tolist() == [[1.5, 1.0], [2.0, 0.0], [-3.0, 1.0]]
    assert (data.name, data.class_names, data.labels.tolist()) == ("farm", ("cat", "dog"), [1, 0, 1])
    assert data.owners is not None
    assert (data.owner_names, data.owners.tolist(), data.train_size) == (("north", "south"), [1, 0, 1], 3)


def test_table_with_named_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("site,u,kind\n9,0.5,1\n7,1,0\n")
    data = load(str(tmp_path / "a.csv"), label="kind", client="site")
    assert (data.inputs.tolist(), data.labels.tolist(), data.owner_names) == (
        [[0.5], [1.0]],
        [1, 0],
        ("7", "9"),
    )
    assert load_own(tmp_path / "a.csv", label="kind").shape == (2,)


def test_folder_with_train_and_test_tables(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("u,v,label\n1,2,0\n3,4,1\n")
    (tmp_path / "test.csv").write_text("v,u,label\n6,5,1\n")
    data = load_own(tmp_path)
    assert (data.inputs.tolist(), data.train_size) == ([[1, 2], [3, 4], [5, 6]], 2)


def test_parquet_with_an_image_column(tmp_path: Path) -> None:
    images = pixels(3, 3, 9)
    names = {"label": ["no", "yes", "unseen"]}
    columns: dict[str, list[int] | list[str]] = {
        "label": [1, 0, 1],
        "note": ["x", "y", "z"],
        "client": ["b", "a", "b"],
    }
    hub_table(tmp_path / "own.parquet", images, columns, "photo", names)
    data = load_own(tmp_path / "own.parquet")
    np.testing.assert_allclose(data.inputs.numpy(), scaled(images), atol=1e-7)
    assert (data.class_names, data.labels.tolist(), data.owner_names) == (
        ("no", "yes", "unseen"),
        [1, 0, 1],
        ("a", "b"),
    )
    assert load_own(tmp_path / "own.parquet", size=(4, 5)).shape == (3, 4, 5)


def test_folder_with_image_tables_in_shards(tmp_path: Path) -> None:
    images = pixels(3, 1, 9)
    for number in range(2):
        hub_table(tmp_path / "data" / f"train-0000{number}-of-00002.parquet", images[[number]], {"label": [number]})
    hub_table(tmp_path / "data" / "validation-00000-of-00001.parquet", images[2:], {"label": [1]})
    data = load_own(tmp_path)
    np.testing.assert_allclose(data.inputs.numpy(), scaled(images), atol=1e-7)
    assert (data.labels.tolist(), data.train_size) == ([0, 1, 1], 2)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("u,lable\n1,0\n2,1\n", {}, "unknown column of .*'label'; did you mean 'lable'"),
        ("u,label\n1,0\n2,1\n", {"client": "site"}, "unknown column of .*'site'"),
        ("u,label\n1,0\nx,1\n", {}, "column 'u' of .* is text, not numeric"),
        ("u,v,label\n1,1,0\n2,,1\n", {}, "column 'v' of .* is empty, NaN or infinite in row 2"),
        ("u,v,label\n1,1,0\n2,nan,1\n", {}, "column 'v' of .* is empty, NaN or infinite in row 2"),
        ("u,label\n1,0\n2,\n", {}, "column 'label' of .* is empty in row 2"),
        ("u,label\n1,0\n2,0.5\n", {}, r"label 0\.5 of sample 1 is no integer"),
        ("u,label\n1,dog\n2,dog\n", {}, "1 class; at least 2"),
        ("u,label\n1,2020-01-01\n2,2020-01-02\n", {}, "labels are of type datetime64"),
        ("label\n1\n0\n", {}, "no feature columns besides 'label'"),
        ("u,label\n", {}, "has no rows"),
        ("u,label\n1\n", {}, "cannot read"),
        ("u,label\n1,0\n2,1\n", {"size": (2, 2)}, "has no images to resize"),
        ("u,u,label\n1,1,0\n2,2,1\n", {}, "has several columns 'u'; give each a name of its own"),
        ("u,label\n1,M\xe4h\n2,Muh\n", {}, "the column 'label' is not UTF-8; save it as UTF-8"),
        ("\xfc,label\n1,0\n2,1\n", {}, "the names of its columns are not UTF-8; save it as UTF-8"),
        ("\xff\xfeu\0,\0", {}, "is UTF-16; save it as UTF-8"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, content: str, options: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(CoterieError, match=message) as caught:
        load_own(path, **options)
    assert "\n" not in str(caught.value)


def test_an_existing_folder_is_found_by_bare_name_but_a_known_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("pets", "digits"):
        write(tmp_path / folder / "train.csv", "u,label\n1,0\n2,1\n")
    assert len(load("pets")) == 2
    assert len(load("digits")) == 1797
    assert len(load("./digits")) == 2


def test_arrays_that_hold_no_samples_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((4, 2)), y=np.int64(3))
    with pytest.raises(CoterieError, match=r"'y' is a single value; there must be one for each sample"):
        load(path)
    np.savez(path, x=np.zeros((4, 0)), y=np.arange(4) % 2)
    with pytest.raises(CoterieError, match=r"samples of shape \(0,\) hold no numbers"):
        load(path)


@pytest.mark.parametrize("label", ["9223372036854775808", "1e19", "1e300"])
def test_labels_beyond_whole_numbers_are_one_line(tmp_path: Path, label: str) -> None:
    file = tmp_path / "own.csv"
    file.write_text(f"a,label\n0,{label}\n1,0\n2,1\n")
    with pytest.raises(CoterieError, match=r"data 'own': label .* of sample 0: must be below 2\*\*63"):
        load(file)


@pytest.mark.parametrize("labels", [np.array(["0", "1" * 25]), np.array([0.0, 1e19])])
def test_labels_beyond_agreed_classes_are_one_line(labels: np.ndarray) -> None:
    with pytest.raises(CoterieError, match=r"data 'own': label .*: must"):
        Classes(2).number(labels, "own")
