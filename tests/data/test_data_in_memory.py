"""Data that are in memory already, as tables, as PyTorch's or Hugging Face's data sets, or as odd arrays."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import coterie as ct
from coterie.errors import CoterieError


class Endless(TorchDataset[Any]):
    """Four samples that are given again and again, as by data sets whose `__getitem__` never raises IndexError."""

    classes = ("cat", "dog")

    def __init__(self, width: int = 3) -> None:
        self.width = width

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((self.width,), float(index)), index % 2


class ClassLabel:
    names = ("cat", "dog")


class Hub(list[Any]):
    """Rows as Hugging Face's data sets give them, with their description."""

    features: ClassVar = {"label": ClassLabel()}


FRAME = pd.DataFrame(
    {"site": ["A", "B", "A"], "age": [1.0, 2.0, 3.0], "pressure": [4, 5, 6], "outcome": ["well", "sick", "well"]}
)


def test_a_frame_is_read_as_its_file_would_be(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "own.csv", index=False)
    read = ct.load_own(tmp_path / "own.csv", "outcome", "site")
    data = ct.from_frame(FRAME, "outcome", "site")
    assert data.feature_names == read.feature_names == ("age", "pressure")
    assert torch.equal(data.inputs, read.inputs)
    assert torch.equal(data.labels, read.labels)
    assert (data.class_names, data.owner_names) == (("sick", "well"), ("A", "B"))


def test_a_frames_index_and_the_kinds_of_its_columns_play_no_part() -> None:
    odd = FRAME.set_index(pd.Index([7, 3, 9])).astype({"outcome": "category", "pressure": "Int64"})
    assert torch.equal(ct.from_frame(odd, "outcome", "site").inputs, ct.from_frame(FRAME, "outcome", "site").inputs)
    numbered = pd.DataFrame([[1.0, 0], [2.0, 1]])  # columns that are numbers
    assert ct.from_frame(numbered, label="1").feature_names == ("0",)


def test_a_frames_test_split() -> None:
    data = ct.from_frame(FRAME, "outcome", "site", test=FRAME[:1])
    assert (len(data), data.train_size) == (4, 3)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns="age").assign(pressure=[1.0, None, 2.0]), "column 'pressure' of the frame is empty, NaN"),
        (FRAME.assign(age=["young", "old", "old"]), "column 'age' of the frame is text, not numeric"),
        (FRAME[:0], "the frame has no rows"),
        (FRAME.rename(columns={"age": "pressure"}), "several columns 'pressure'"),
        (FRAME.drop(columns="outcome"), "unknown column of the frame 'outcome'"),
        (FRAME.assign(age=[1, "a", {}]), "the frame cannot be read"),
        (np.zeros((3, 2)), "the frame: a ndarray is no pandas table"),
    ],
)
def test_frames_that_cannot_be_read_are_named(frame: Any, message: str) -> None:
    with pytest.raises(CoterieError, match=message) as caught:
        ct.from_frame(frame, "outcome", "site")
    assert "\n" not in str(caught.value)


def test_a_data_set_that_has_no_end_is_read_once() -> None:
    data = ct.from_dataset(Endless())
    assert data.inputs[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (data.labels.tolist(), data.class_names, data.owners) == ([0, 1, 0, 1], ("cat", "dog"), None)


@pytest.mark.parametrize("given", [[Endless(), Endless()], Endless(), [Endless()]])
def test_arrays_are_not_made_of_data_sets(given: Any) -> None:
    for x, y in ((given, [0, 1]), (np.zeros((2, 2)), given)):
        with pytest.raises(CoterieError, match=r"makes no array: ct\.from_dataset takes data sets, or a list of them"):
            ct.from_arrays(x, y)


def test_loaders_are_refused_with_the_way_out() -> None:
    loader = DataLoader(Endless())
    for attempt in (
        lambda: ct.from_arrays(loader, [0, 1]),
        lambda: ct.from_arrays(np.zeros((2, 2)), loader),  # type: ignore[arg-type]
        lambda: ct.from_dataset(loader),
        lambda: ct.Experiment("fedavg", (loader, [0, 1])),
    ):
        with pytest.raises(CoterieError, match=r"DataLoader.*\.dataset"):
            attempt()
    for given in (loader, Endless(), FRAME):
        with pytest.raises(CoterieError, match=r"ct\.from_frame\(frame\) or ct\.from_dataset\(dataset\)"):
            ct.Experiment("fedavg", given)  # type: ignore[arg-type]


def test_lists_and_tables_of_data_sets_are_clients() -> None:
    data = ct.from_dataset([Endless()] * 11)
    assert data.owners is not None
    assert data.owners.tolist() == [client for client in range(11) for _ in range(4)]
    named = ct.from_dataset({"south": Endless(), "north": Endless()}, test={"south": Endless(), "north": Endless()})
    assert named.owner_names == ("north", "south")
    assert named.owners is not None
    assert named.owners.tolist() == [1] * 4 + [0] * 4 + [1] * 4 + [0] * 4
    assert named.train_size == 8
    result = ct.Experiment("fedavg", named, ct.ByClient(), rounds=1, epochs=1, threads=1).run()
    assert result.federation.clients == 2


def test_rows_of_a_hub() -> None:
    pictures = Hub({"image": Image.new("RGB", (5, 4), (shade, 0, 0)), "label": shade % 2} for shade in range(6))
    data = ct.from_dataset(pictures)
    assert (data.shape, data.class_names, data.labels.tolist()) == ((3, 4, 5), ("cat", "dog"), [0, 1, 0, 1, 0, 1])
    rows = [{"age": 1.0, "pressure": 2.0, "outcome": "well", "site": "A"}] * 2
    rows += [{"age": 2.0, "pressure": 3.0, "outcome": "sick", "site": "B"}]
    data = ct.from_dataset(rows, "outcome", "site")
    assert (data.feature_names, data.owner_names) == (("age", "pressure"), ("A", "B"))


def test_one_number_a_sample_and_one_hot_labels() -> None:
    rows = TensorDataset(torch.arange(3.0), torch.eye(3))
    data = ct.from_dataset(rows)
    assert (data.shape, data.labels.tolist()) == ((1,), [0, 1, 2])


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (iter([1]), {}, "does not give samples by number"),
        (torch.zeros(3, 2), {}, r"ct\.from_arrays"),
        (FRAME, {}, r"for tables ct\.from_frame"),
        ([], {}, "there are no samples"),
        ({}, {}, "the table is empty"),
        ({"train": Endless(), "test": Endless()}, {}, r"from_dataset\(it\['train'\], test=it\['test'\]\)"),
        ([Endless(), Endless(2)], {}, r"of client 1: inputs have shape \(2,\), those of 0 \(3,\)"),
        ([Endless(), Endless()], {"client": "site"}, "each of the data sets is a client already"),
        (Endless(), {"client": "site"}, "have no keys; give a list of data sets"),
        ([(np.zeros(2), 0), (np.zeros(3), 1)], {}, r"sample 1 has shape \(3,\), those before it \(2,\)"),
        ([(np.zeros(2), 0, 5)], {}, r"sample 0 is .*, not \(input, label\)"),
        ([{"age": 1.0, "lable": 0}], {}, "unknown key of sample 0 of dataset 'label'; did you mean 'lable'"),
        (TensorDataset(torch.zeros(3, 2)), {}, "not \\(input, label\\)"),
    ],
)
def test_what_is_no_data_set_is_named(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message) as caught:
        ct.from_dataset(given, **options)
    assert "\n" not in str(caught.value)


def test_one_hot_labels_are_the_classes_that_they_mean() -> None:
    assert ct.from_arrays(np.zeros((4, 2)), np.eye(3)[[2, 0, 1, 2]]).labels.tolist() == [2, 0, 1, 2]
    split = ct.from_arrays(np.zeros((4, 2)), np.eye(3)[[2, 0, 1, 2]], test=(np.zeros((2, 2)), np.eye(3)[[1, 1]]))
    assert split.labels.tolist() == [2, 0, 1, 2, 1, 1]


@pytest.mark.parametrize(("x", "y"), [((240, 2), (80, 3)), ((6, 2), (6, 3)), ((3, 2), (1, 3, 1, 2))])
def test_labels_of_another_shape_are_refused(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    with pytest.raises(CoterieError, match=r"labels have the shape .*; there must be one for each sample"):
        ct.from_arrays(np.zeros(x), np.zeros(y, dtype=int))


def test_names_of_features_are_one_for_each() -> None:
    assert ct.from_arrays(np.zeros((2, 2)), [0, 1], feature_names=("a", "b")).feature_names == ("a", "b")
    with pytest.raises(CoterieError, match=r"1 feature_names for inputs of shape \(2,\); give one per column"):
        ct.from_arrays(np.zeros((2, 2)), [0, 1], feature_names=("a",))


def test_the_numbers_of_rows_that_pandas_writes_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "own.csv"
    FRAME.to_csv(file)
    with caplog.at_level(logging.WARNING, "coterie"):
        assert ct.load_own(file, "outcome", "site").feature_names == ("age", "pressure")
    assert f"{file}: column '' is left out" in caplog.text
    pd.read_csv(file).to_parquet(tmp_path / "own.parquet")
    assert ct.load_own(tmp_path / "own.parquet", "outcome", "site").feature_names == ("age", "pressure")
    FRAME.set_index(pd.Index([7, 3, 9])).to_parquet(tmp_path / "own.parquet")
    assert ct.load_own(tmp_path / "own.parquet", "outcome", "site").feature_names == ("age", "pressure")


@pytest.mark.parametrize(
    ("separator", "name"), [(";", "own.csv"), ("\t", "own.csv"), ("\t", "own.tsv"), (",", "own.csv")]
)
def test_separators_are_found(separator: str, name: str, tmp_path: Path) -> None:
    # A quoted name may hold the other separators.
    FRAME.rename(columns={"age": "age, years; at; visit"}).to_csv(tmp_path / name, sep=separator, index=False)
    data = ct.load_own(tmp_path / name, "outcome", "site")
    assert data.feature_names == ("age, years; at; visit", "pressure")
    assert torch.equal(data.inputs, ct.from_frame(FRAME, "outcome", "site").inputs)


@pytest.mark.parametrize(("widest", "warned"), [(2500.0, True), (2.5, False)])
def test_inputs_of_very_different_ranges_are_named(
    widest: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    part = np.linspace(0, 1, 60)
    frame = pd.DataFrame({"area": part * widest, "smoothness": part / 10, "always": 1.0, "label": [0, 1] * 30})
    with caplog.at_level(logging.WARNING, "coterie"):
        ct.Experiment("local", ct.from_frame(frame), ct.Iid(clients=2), threads=1).prepare()
    said = "its inputs are not of one scale: area spans 2.5e+03, smoothness spans 0.1, so that models learn little"
    assert (said in caplog.text) == warned
