"""A site's files become data with the agreement's shape and class numbers, or a message that says what is wrong."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from coterie.deployment.agreement import Agreement
from coterie.deployment.site import Site
from coterie.deployment.site_data import load_site_data
from coterie.deployment.store import Store
from coterie.errors import CoterieError

PETS = ("cat", "dog", "owl")


def agreed(shape: tuple[int, ...] = (4,), **options: Any) -> Agreement:
    names = options.pop("class_names", PETS)
    classes = options.pop("classes", 0)
    return Agreement(name="trial", sites=("a",), shape=shape, class_names=names, classes=classes, least_sites=1)


def table(path: Path, labels: list[Any], width: int = 4, column: str = "label") -> Path:
    features = {f"f{place}": np.arange(len(labels)) + place / 10 for place in range(width)}
    filled = pa.table({**features, column: labels})
    if path.suffix == ".csv":
        pa.csv.write_csv(filled, path)
    else:
        pq.write_table(filled, path)
    return path


def picture(path: Path, mode: str = "RGB", size: tuple[int, int] = (8, 8), shade: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 0)).save(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_text_labels_get_the_agreements_numbers(suffix: str, tmp_path: Path) -> None:
    data = load_site_data(agreed(), table(tmp_path / f"own{suffix}", ["owl", "cat", "owl"]))
    assert data.labels.tolist() == [2, 0, 2]
    assert (data.classes, data.class_names, data.shape) == (3, PETS, (4,))
    assert data.inputs[1].tolist() == pytest.approx([1.0, 1.1, 1.2, 1.3])


@pytest.mark.parametrize("labels", [["owl"] * 5, [2] * 5, [2.0] * 5])
def test_a_site_with_one_class_can_train(labels: list[Any], tmp_path: Path) -> None:
    agreement = agreed()
    data = load_site_data(agreement, table(tmp_path / "own.parquet", labels))
    assert data.labels.tolist() == [2] * 5
    site = Site(agreement, "a", data, Store(tmp_path, "trial", "a", agreement.fingerprint))
    assert site.federation.class_counts.tolist() == [[0, 0, len(site.problem.train[0])]]


def test_arrays_with_their_own_test_part(tmp_path: Path) -> None:
    file = tmp_path / "own.npz"
    arrays = {"x_train": np.zeros((3, 4)), "y_train": [0, 0, 1], "x_test": np.ones((2, 4)), "y_test": [4, 0]}
    np.savez(file, **arrays)
    data = load_site_data(agreed(class_names=(), classes=5), file)
    assert (len(data), data.train_size, data.classes) == (5, 3, 5)
    assert data.labels.tolist() == [0, 0, 1, 4, 0]


def test_another_label_column_and_a_column_of_clients(tmp_path: Path) -> None:
    file = table(tmp_path / "own.csv", ["dog", "cat"], column="kind")
    file.write_text("\n".join(line + (",client" if "kind" in line else ",7") for line in file.read_text().split()))
    data = load_site_data(agreed(), file, "kind")
    assert data.labels.tolist() == [1, 0]
    assert (data.shape, data.owners) == ((4,), None)


def test_integers_are_names_where_the_names_are_integers(tmp_path: Path) -> None:
    file = table(tmp_path / "own.csv", [8, 3, 8])
    assert load_site_data(agreed(class_names=("3", "8")), file).labels.tolist() == [1, 0, 1]
    assert load_site_data(agreed(class_names=(), classes=9), file).labels.tolist() == [8, 3, 8]


def test_names_that_a_file_declares_for_its_numbers_count(tmp_path: Path) -> None:
    described = b'{"info": {"features": {"label": {"names": ["owl", "cat"]}}}}'
    filled = pa.table({"f": [0.5, 1.5, 2.5], "label": [0, 1, 0]}).replace_schema_metadata({b"huggingface": described})
    pq.write_table(filled, tmp_path / "own.parquet")
    assert load_site_data(agreed((1,)), tmp_path / "own.parquet").labels.tolist() == [2, 0, 2]


def test_folders_are_classes_and_their_images_are_resized(tmp_path: Path) -> None:
    picture(tmp_path / "owl" / "1.png", size=(20, 10))
    picture(tmp_path / "cat" / "2.png")
    data = load_site_data(agreed((3, 8, 8)), tmp_path)
    assert data.shape == (3, 8, 8)
    assert data.labels.tolist() == [0, 2]
    assert data.inputs[1, 0].unique().tolist() == pytest.approx([90 / 255 * 2 - 1])


def test_grey_images_become_rgb_where_that_is_agreed(tmp_path: Path) -> None:
    picture(tmp_path / "owl" / "1.png", "L")
    data = load_site_data(agreed((3, 8, 8)), tmp_path)
    assert data.shape == (3, 8, 8)
    assert torch.equal(data.inputs[:, 0], data.inputs[:, 2])


def test_a_test_folder_may_hold_a_class_that_training_lacks(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "owl" / "1.png")
    picture(tmp_path / "test" / "cat" / "1.png")
    data = load_site_data(agreed((3, 8, 8)), tmp_path)
    assert (data.train_size, data.labels.tolist()) == (1, [2, 0])


def test_folders_named_by_numbers_need_no_class_names(tmp_path: Path) -> None:
    picture(tmp_path / "10" / "1.png")
    picture(tmp_path / "2" / "1.png")
    assert load_site_data(agreed((3, 8, 8), class_names=(), classes=11), tmp_path).labels.tolist() == [10, 2]


def test_images_in_a_table_are_resized(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.new("RGB", (6, 9), (90, 0, 0)).save(content, "PNG")
    images = pa.array([{"bytes": content.getvalue(), "path": "1"}] * 2)
    pq.write_table(pa.table({"image": images, "label": ["dog", "owl"]}), tmp_path / "own.parquet")
    data = load_site_data(agreed((3, 8, 8)), tmp_path / "own.parquet")
    assert (data.shape, data.labels.tolist()) == ((3, 8, 8), [1, 2])


def refused(agreement: Agreement, path: Path, label: str = "label") -> str:
    with pytest.raises(CoterieError) as caught:
        load_site_data(agreement, path, label)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_unknown_class_names_are_refused(tmp_path: Path) -> None:
    message = refused(agreed(), table(tmp_path / "own.csv", ["dog", "owls"]))
    assert "'owls'; did you mean 'owl'? (allowed: cat, dog, owl)" in message
    picture(tmp_path / "pictures" / "bat" / "1.png")
    assert "'bat'" in refused(agreed((3, 8, 8)), tmp_path / "pictures")


@pytest.mark.parametrize(
    ("labels", "names", "words"),
    [
        (["dog", "cat"], (), "label 'cat' is text, and the classes have no names; list them as class_names"),
        ([0, 3], (), "label 3 of sample 1: with 3 classes they must lie in 0..2"),
        ([0, 3], PETS, "label 3 of sample 1: with 3 classes they must lie in 0..2"),
        ([0, -1], (), "label -1 of sample 1: labels count from 0"),
        ([0, 0.5], (), "label 0.5 of sample 1 is no integer"),
        ([1, 4], ("1", "2", "3"), "'4' (allowed: 1, 2, 3)"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    labels: list[Any], names: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    assert words in refused(agreed(class_names=names, classes=3), table(tmp_path / "own.parquet", labels))


@pytest.mark.parametrize(
    ("made", "shape", "words"),
    [
        ((5, 3), (4,), "one input has shape (3,), not (4,); it must have 4 feature columns"),
        ((5, 1, 9, 9), (1, 8, 8), "shape (1, 9, 9), not (1, 8, 8); resize the images"),
        ((5, 3, 8, 8), (1, 8, 8), "convert the images to grey"),
        ((5, 8, 8), (3, 8, 8), "they must have 3 channels"),
        ((5, 64), (1, 8, 8), "shape (64,), not (1, 8, 8); bring the data into that shape"),
    ],
)
def test_inputs_of_another_shape_are_refused(
    made: tuple[int, ...], shape: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros(made, np.float32), y=np.zeros(5, int))
    assert words in refused(agreed(shape), tmp_path / "own.npz")


def test_a_flat_table_is_refused_by_its_shape_where_images_are_agreed(tmp_path: Path) -> None:
    assert "shape (4,), not (1, 8, 8)" in refused(agreed((1, 8, 8)), table(tmp_path / "own.csv", ["dog"]))


def test_names_of_known_data_sets_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(agreed(), Path("digits")) == "data 'digits': there is no such file or folder"


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_data_that_are_not_scaled_are_refused_with_the_reason(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"own{suffix}"
    if suffix == ".csv":
        filled = {f"f{place}": np.array([0.1, 0.2, 0.3]) * (1e6 if place == 2 else 1) for place in range(4)}
        pa.csv.write_csv(pa.table({**filled, "label": ["owl", "cat", "owl"]}), path)
    else:
        np.savez(path, x=np.array([[0.1, 0.2, -3e5, 0.3]] * 3, np.float32), y=np.array([0, 1, 2]))
    with pytest.raises(
        CoterieError, match=r"it is not scaled, input 2 of a sample is -?3e\+05 \(largest_input is 1000\)"
    ):
        load_site_data(agreed(), path)


def test_larger_inputs_can_be_agreed_on(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.full((3, 4), 5e4, np.float32), y=np.array([0, 1, 2]))
    assert len(load_site_data(replace(agreed(), largest_input=1e5), path)) == 3
