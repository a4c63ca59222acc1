"""In a notebook: public names, one-line reprs, cards of HTML, and figures without pyplot or a display."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.compare.table import Comparison
from coterie.display import Figure
from coterie.report.cards import BLUE, bars, curves
from coterie.report.learning import learning_matrix
from coterie.runs.recorder import RememberedMixes
from coterie.runs.run import Run
from coterie.runs.store import pack
from listening import power_cut
from support import tiny

pytest.importorskip("quickjs")
HOSTILE = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def result() -> Run:
    return tiny(ct.FedReMa(delta=0), rounds=3).run()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    tiny(ct.FedReMa(delta=0), rounds=3).run(folder)
    return folder


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    few = {"rounds": 2, "partition": ct.Iid(clients=3), "epochs": 1, "threads": 1}
    both = {name: ct.Experiment(method, **few) for name, method in (("local", "local"), (HOSTILE, "fedavg"))}
    return ct.compare(both, seeds=[0, 1], jobs=1, out=tmp_path_factory.mktemp("both"))


class Tags(HTMLParser):
    """The tags of a page; every one must be closed, and none may run or load anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        assert not self.open
        assert not self.seen & {"script", "link", "img", "iframe", "style"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.open.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def card(thing: Any) -> str:
    text: str = thing._repr_html_()
    assert len(text) < 20_000
    Tags(text)
    return text


def test_the_public_names_are_listed_before_they_are_loaded() -> None:
    code = (
        "import coterie as ct, sys; "
        "print('torch' in sys.modules, set(ct.__all__) <= set(dir(ct)), 'TYPE_CHECKING' in dir(ct))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "True", "False"]


def test_reprs_are_one_line(result: Run, comparison: Comparison) -> None:
    prepared = result.prepared
    assert repr(prepared.data) == "Dataset('toy', 150 samples of shape (6,), 3 classes)"
    assert repr(prepared.partition).startswith("Partition(given, 4 clients, ")
    assert repr(result).startswith("Run(fedrema on toy, 4 clients, finished, round 3 of 3: accuracy 0.")
    assert repr(comparison) == f"Comparison(local, {HOSTILE}; seeds 0, 1)"
    small = ct.Experiment(ct.FedProx(mu=1), partition=ct.Iid(clients=3), rounds=5, seed=2)
    told = "Experiment(FedProx(mu=1.0), data='digits', partition=Iid(clients=3), model='mlp', rounds=5, seed=2)"
    assert repr(small) == told
    assert eval(told, {**vars(ct), **{name: getattr(ct, name) for name in ct.__all__}}) == small
    for thing in (prepared.experiment, result, prepared.data, prepared.partition):
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 400


def test_cards_say_what_there_is(result: Run, kept: Path, comparison: Comparison) -> None:
    assert "fedrema on toy" in card(result)
    assert card(ct.open_run(kept)).count("<polyline") == 2
    assert "150" in card(result.prepared.data)
    assert "4" in card(result.prepared.partition)
    assert "FedReMa(delta=0.0" in card(result.prepared.experiment)
    text = card(comparison)
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text


def test_cards_escape_every_name() -> None:
    data = ct.Dataset(HOSTILE, torch.zeros(6, 2), torch.arange(6) % 2, 2, class_names=(HOSTILE, "b"))
    parts = {"train": ([0, 1], [2]), "test": ([3], [4])}
    partition = ct.Partition(**parts, rule=HOSTILE, notes=(HOSTILE,), names=(HOSTILE, "b"))
    for thing in (data, partition, ct.Experiment(data=data, partition=partition)):
        assert HOSTILE not in card(thing)
        assert "alert" in card(thing)


def test_cards_of_very_many_clients_stay_small() -> None:
    clients = 2_000
    rows = tuple(np.array([k]) for k in range(clients))
    text = card(ct.Partition(rows, rows))
    assert text.count("<rect") < 100


def test_a_run_that_was_killed_before_any_test_has_a_card(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with power_cut(run, round=1) as listeners:
        tiny(evaluate_every=3).run(run, listeners)
    assert "no round was tested so far" in card(ct.open_run(run))
    with pytest.raises(ct.CoterieError, match=r"curves: there is nothing to draw \(no round was tested\)"):
        ct.open_run(run).plot()
    (run / "rounds.jsonl").unlink()
    assert "rounds.jsonl is missing" in card(ct.open_run(run))


def test_pictures_of_numbers_that_are_none() -> None:
    assert bars([float("nan")], BLUE) == curves([(BLUE, ([1], [float("nan")]))]) == ""
    assert bars([float("nan"), -1.0, 2.0], BLUE).count("<rect") == 2
    assert curves([(BLUE, ([1], [0.5]))]).count("<circle") == 1


def parts(figure: Figure, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(figure.svg).iter(f"{{http://www.w3.org/2000/svg}}{name}"))


@pytest.mark.thorough
def test_figures_of_a_run_are_those_of_its_report(result: Run, kept: Path, tmp_path: Path) -> None:
    pack([kept], tmp_path / "one.zip")
    for run in (result, ct.open_run(kept), ct.open_run(tmp_path / "one.zip")):
        for what in ("curves", "clients", "learning", "graph", "bytes"):
            assert parts(run.plot(what), "text")
        cells = [
            float(one.get("data-value") or "nan") for one in parts(run.plot_mixing(2), "rect") if one.get("data-cell")
        ]
        assert sorted(cells) == pytest.approx(sorted(np.ravel(learning_matrix(run.mixes(2), clients=4))), abs=1e-4)
    figure = result.plot()
    assert figure._repr_svg_().startswith("<svg")
    assert figure.save(tmp_path / "deep" / "it.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ct.CoterieError, match=r"it\.txt: must end in \.png, \.pdf, \.svg"):
        figure.save(tmp_path / "it.txt")


def test_figures_that_there_are_not(result: Run) -> None:
    with pytest.raises(ct.CoterieError, match="unknown figure 'curve'; did you mean 'curves'"):
        result.plot("curve")
    with pytest.raises(ct.CoterieError, match="round = 9: is not among the rounds"):
        result.plot_mixing(9)
    with pytest.raises(ct.CoterieError, match=r"round = 9: is not among the rounds .* \(1 to 3, 3 of them\)"):
        result.mixes(9)
    with pytest.raises(ct.CoterieError, match="there is nothing to draw"):
        tiny("local", rounds=1).run().plot_mixing()


def test_the_figures_of_a_comparison(comparison: Comparison) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = comparison.plot()
        heard = replace(comparison, folder=None).plot()
    titles = [
        ["".join(one.itertext()) for one in parts(figure, "text") if one.get("font-weight")] for figure in (kept, heard)
    ]
    assert titles == [
        ["Accuracy as received, before local training", "Accuracy right after local training"],
        titles[0][:1],
    ]
    ours, theirs = (
        [one.get("d") for one in parts(figure, "path") if one.get("stroke-width") == "2.4"] for figure in (kept, heard)
    )
    assert ours[:2] == theirs
    assert parts(Comparison.load(comparison.folder or Path()).plot("gains"), "circle")
    with pytest.raises(ct.CoterieError, match="against-bytes: needs the runs themselves; keep them"):
        replace(comparison, folder=None).plot("against-bytes")


def test_weights_are_remembered_up_to_a_bound(result: Run) -> None:
    mixes = result.mixes(1)
    size = sum(mix.weights.nbytes for mix in mixes)
    memory = RememberedMixes(most=2 * size)
    for round in (1, 2, 3):
        memory.add(round, mixes)
    assert memory.recorded_rounds() == [2, 3]
    tight = RememberedMixes(most=size - 1)
    tight.add(1, mixes)
    assert tight.recorded_rounds() == []
