"""A contest from end to end, and that nothing is tuned on what must not be read."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.compare.test_one_run import Watch

import coterie as ct
from coterie.benchmark import contest as contests
from coterie.benchmark import protocol
from coterie.benchmark.contest import SetContest, SetResults, as_text
from coterie.benchmark.deployed import EPOCHS
from coterie.benchmark.page import page_beside, write_page
from coterie.benchmark.protocol import contestants_named, sets_named
from coterie.benchmark.standings import BETTER, Standings
from coterie.benchmark.tuned import read_tuned, write_tuned
from coterie.cli import main
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.setup.config import complete

CONTESTANTS = ["local", "fedavg", "fedavg-ft"]
OWN = '''
"""Clients of one's own: {words}."""
import torch
import coterie as ct
from coterie.data.dataset import Dataset

POISONED = {poisoned}

def data():
    """Eight clients, each with a line of its own."""
    stream = torch.Generator().manual_seed(0)
    inputs = torch.randn(240, 4, generator=stream)
    owners = torch.arange(240) // 30
    own = torch.randn(8, 4, generator=stream) + 1
    labels = ((inputs * own[owners]).sum(1) > 0).long()
    labels[POISONED] = 1 - labels[POISONED]
    return Dataset("own", inputs, labels, 2, -1, owners, tuple("abcdefgh"))
'''


@contextmanager
def quiet(runs: Any) -> Any:
    yield Watch()


def contest(folder: Path, poisoned: list[int]) -> tuple[Path, SetContest]:
    folder.mkdir()
    file = folder / "own.py"
    file.write_text(OWN.format(words=folder.name, poisoned=poisoned))
    (chosen,) = sets_named([f"{file}:data"])
    return file, SetContest(chosen, contestants_named(CONTESTANTS, [], []), folder / "out", budget=2, seeds=[0, 1])


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(protocol.SAME, "rounds", 2)
        _, one = contest(tmp_path_factory.mktemp("benchmark") / "clean", [])
        yield one, one.run(quiet)


def test_every_method_takes_part_and_what_is_tuned_of_it_is_there() -> None:
    assert {one.method for one in protocol.CONTESTANTS.values()} == METHODS.keys() - {"fedbn"}
    for one in protocol.CONTESTANTS.values():
        one.experiment(protocol.SETS["vowel"], one.settings(budget=1)[0], 0, tuning=True)


def test_everybody_is_tuned_and_scored_with_each_seed(clean: tuple[SetContest, SetResults]) -> None:
    _, results = clean
    for name in CONTESTANTS:
        record = results.records[name]
        assert len(record["tried"]) == 2
        best = max(float(score) for scores in record["tried"].values() for score in scores.split())
        scores = record["tried"][as_text(record["chosen"])].split()
        assert float(scores[EPOCHS.index(record["epochs"])]) == best
        assert list(record["runs"]) == ["0", "1"]
        for run in record["runs"].values():
            assert len(run["scores"].split()) == 7  # the eighth is a newcomer
            assert run["newcomers"].keys() == {"received", "trained"}
            assert run["steps"] == {"model": 10.0}
    assert results.records["local"]["runs"]["0"]["bytes"] == {"up": 0.0, "down": 0.0}


def test_what_has_run_is_not_run_again_and_an_edit_is_noticed(clean: tuple[SetContest, SetResults]) -> None:
    one, results = clean
    before = results.path.read_bytes()

    @contextmanager
    def nothing(runs: Any) -> Any:
        pytest.fail(f"would run {runs}")
        yield

    assert one.run(nothing).records == results.records
    elsewhere = replace(one, chosen=replace(one.chosen, data="natural/vowle"))
    with pytest.raises(CoterieError, match="unknown data set"):
        elsewhere.run(nothing)
    assert results.path.read_bytes() == before
    results.path.write_bytes(before.replace(b'"epochs": ', b'"epochs": 1', 1))
    try:
        with pytest.raises(CoterieError, match="is not as it was written"):
            Standings(one.folder)
    finally:
        results.path.write_bytes(before)


def test_results_outlive_options_that_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = ct.Experiment("fedavg", clip=0.0)
    now, other = (contests.digest_of(one, {}) for one in (experiment, replace(experiment, clip=1.0)))
    monkeypatch.setattr(contests, "complete", lambda one: {k: v for k, v in complete(one).items() if k != "clip"})
    assert contests.digest_of(experiment, {}) == now != other


def test_the_page_says_who_leads_and_what_has_not_run(clean: tuple[SetContest, SetResults]) -> None:
    one, results = clean
    standings = write_page(one.folder)
    own = standings.sets["data"]
    assert own.entries["local"].gain == (0.0, (0.0, 0.0))
    assert own.entries["local"].harmed == (0.0, (0.0, 0.0))
    ahead = own.entries["fedavg-ft"]
    scores = {
        name: [[float(score) for score in run["scores"].split()] for run in results.records[name]["runs"].values()]
        for name in CONTESTANTS
    }
    plain = [
        sum(ours[k] - alone[k] for ours, alone in zip(scores["fedavg-ft"], scores["local"], strict=True)) / 2
        for k in range(7)
    ]
    assert ahead.gain is not None
    assert ahead.gain[0] == pytest.approx(sum(plain) / 7)
    assert ahead.median_gain == pytest.approx(sorted(plain)[3])
    assert ahead.harmed is not None
    assert ahead.harmed[0] == pytest.approx(sum(gain < -0.005 for gain in plain) / 7)
    assert {row.name for row in standings.overall} == {*CONTESTANTS, BETTER}
    page = page_beside(one.folder).read_text()
    assert "**Not whole.**" in page
    assert "7 clients with 18 to 18 rows for training" in page


def test_tuned_settings_run(clean: tuple[SetContest, SetResults], tmp_path: Path) -> None:
    _, results = clean
    write_tuned(results)
    file = results.path.with_suffix(".toml")
    assert read_tuned(str(file))["fedavg"]["lr"] == float(results.records["fedavg"]["chosen"]["lr"])
    words = ["run", "fedavg-ft", "--tuned", str(file), "--rounds", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    config = ct.open_run(tmp_path / "run").summary["config"]
    assert config["set"]["tune_epochs"] == int(results.records["fedavg-ft"]["chosen"]["tune_epochs"])
    assert (config["steps"], config["partition"], config["held_out"]) == (10, "by_client", 0.1)


def test_nothing_is_tuned_on_test_rows_or_on_newcomers(
    clean: tuple[SetContest, SetResults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, honest = clean
    monkeypatch.setitem(protocol.SAME, "rounds", 2)
    experiment = one.contestants[0].experiment(one.chosen, {"lr": "0.1"}, 0, tuning=True)
    part = experiment.prepare().partition
    forbidden = {int(row) for rows in part.test for row in rows}
    for client in part.held_out:
        forbidden |= {int(row) for rows in (part.train, part.validation) for row in rows[client]}
    _, other = contest(tmp_path / "poisoned", sorted(forbidden))
    poisoned = replace(other, seeds=[0], contestants=other.contestants[1:]).run(quiet)
    for name in CONTESTANTS[1:]:
        ours, theirs = honest.records[name], poisoned.records[name]
        for key in ("tried", "chosen", "epochs"):
            assert ours[key] == theirs[key]
        scores = [float(score) for score in ours["runs"]["0"]["scores"].split()]
        turned = [1 - float(score) for score in theirs["runs"]["0"]["scores"].split()]
        assert scores == pytest.approx(turned, abs=2e-4)  # each test row's answer is the other one now


def test_own_training_is_what_a_method_that_tunes_does(
    clean: tuple[SetContest, SetResults], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = clean
    monkeypatch.setitem(protocol.SAME, "rounds", 2)
    fedavg, tuning = (
        found.experiment(one.chosen, {"lr": "0.5", **more}, 0, tuning=False)
        for found, more in zip(one.contestants[1:], ({}, {"tune_epochs": "5"}), strict=True)
    )
    deployed = fedavg.run(listeners=["benchmark"]).summary["benchmark"]["deployed"]["5"]["scores"]
    tuned = [client["received"] for client in tuning.run().summary["clients"]]
    assert deployed == pytest.approx(tuned, abs=1e-4)  # 18 rows are one batch, so their order does not matter


def test_who_cannot_run_has_a_reason_in_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(protocol.SAME, "rounds", 1)
    file, _ = contest(tmp_path / "own", [])
    regression, text = file.with_name("lengths.py"), file.read_text().replace(".long()", ".float()")
    text = text.replace("2, -1, owners", "0, -1, owners")
    regression.write_text(text.replace('"abcdefgh"))', '"abcdefgh"), task=ct.Regression())'))
    (chosen,) = sets_named([f"{regression}:data"])
    both = SetContest(chosen, contestants_named(["local", "fedproto"], [], []), tmp_path / "out", budget=1, seeds=[0])
    results = both.run(quiet)
    assert "fedproto works with classes" in results.records["fedproto"]["failed"]
    assert -1 < results.records["local"]["runs"]["0"]["received"] < 1
    write_page(both.folder)
    assert "| fedproto | task = 'regression'" in page_beside(both.folder).read_text()
    assert json.loads(results.path.read_text())["protocol"] == "natural-1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sets vowle", "unknown set of natural-1 'vowle'; did you mean 'vowel'?"),
        ("--methods fedpre", "unknown contestant of natural-1 'fedpre'; did you mean 'fedrep'?"),
        ("--budget 0", "budget = 0: must be at least 1"),
        ("--grid mu=0.1..1", "grid: is for a method of your own"),
        ("--method fedper", "method = fedper: takes part already"),
        ("--settings vowle", "unknown tuned settings 'vowle'"),
        ("--write", "holds no results"),
    ],
)
def test_mistakes_are_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["benchmark", *words.split()]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.strip().splitlines()) == 1
    assert message in shown.err
