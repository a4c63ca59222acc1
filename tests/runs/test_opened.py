"""Runs that are opened again: finished, stopped, killed, still going; with and without what made them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie.setup.prepared
from coterie import from_arrays, open_run, resume
from coterie.errors import CoterieError
from coterie.methods import METHODS, FedPer
from coterie.partition import ByClient, Iid
from coterie.rounds.listeners import StopAfter
from coterie.runs.experiment import Experiment
from coterie.runs.run import Run
from listening import EachRound, power_cut
from support import DropNet, tiny


def named(method: str = "fedper", **options: Any) -> Experiment:
    """An experiment that its configuration file describes in full."""
    settings: dict[str, Any] = {"rounds": 3, "epochs": 1, "batch": 64, "seed": 2, "checkpoint_every": 2, **options}
    return Experiment(method, "digits", Iid(clients=4), "mlp", **settings)


def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the data set was asked for")

    monkeypatch.setattr(coterie.setup.prepared, "load", refused)


def assert_same_models(opened: Run, result: Run) -> None:
    inputs = result.prepared.data.inputs[:20]
    for client in range(result.federation.clients):
        mine, theirs = opened.model(client), result.model(client)
        assert not mine.training
        for name, tensor in theirs.state_dict().items():
            assert torch.equal(mine.state_dict()[name], tensor), name
        assert torch.equal(opened.predict(client, inputs), result.predict(client, inputs))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(METHODS))
def test_models_of_every_method_are_those_of_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"validation": 0.2} if name == "fedfomo" else {}
    result = named(name, join=0.5, **options).run(tmp_path / "run")
    opened = open_run(tmp_path / "run")
    method = result.prepared.method
    if not (method.tune(result.federation) or method.predicts_with_samples):
        no_data(monkeypatch)
    assert_same_models(opened, result)


@pytest.mark.thorough
def test_a_method_that_tunes_is_opened_with_its_data(tmp_path: Path) -> None:
    result = named("fedbabu").run(tmp_path / "run")
    assert result.prepared.method.tune(result.federation)
    assert_same_models(open_run(tmp_path / "run"), result)


def test_numbers_are_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = named(join=0.5, evaluate_every=2, rounds=4).run(tmp_path / "run")
    no_data(monkeypatch)
    opened = open_run(str(tmp_path / "run"))
    assert (opened.status, opened.done, opened.rounds) == ("finished", 4, [1, 2, 3, 4])
    assert opened.path == tmp_path / "run"
    assert opened.summary["accuracy"] == result.summary["accuracy"]
    assert opened.config == result.summary["config"]
    assert opened.partition == result.prepared.partition
    assert str(opened.accuracy()) == str(result.accuracy())
    np.testing.assert_array_equal(opened.accuracy().stored.by_client, result.accuracy().stored.by_client)
    history = opened.history
    assert list(zip(history["round"], history["moment"], strict=True)) == [
        (round, moment) for round in (2, 4) for moment in ("received", "trained", "stored")
    ]
    last = history[(history["round"] == 4) & (history["moment"] == "received")].iloc[0]
    line = result.lines[-1]
    assert last["mean"] == line.received.mean == result.accuracy().received.mean["last"]
    assert (last["std"], last["worst_decile"]) == (line.received.std, line.received.worst_decile)
    assert last["seconds"] == line.seconds.total
    assert last["bytes"] == line.bytes.up + line.bytes.down


def test_clients_stand_in_a_table(tmp_path: Path) -> None:
    result = named(held_out=1).run(tmp_path / "run")
    partition, clients = result.prepared.partition, open_run(tmp_path / "run").clients
    takes_part = result.prepared.participants
    assert len(takes_part) == 3
    assert clients["name"].tolist() == [partition.names[client] for client in takes_part]
    assert clients["train"].tolist() == partition.sizes[takes_part].tolist()
    counts = clients[[f"class {number}" for number in range(10)]].to_numpy()
    np.testing.assert_array_equal(counts, partition.class_counts(result.prepared.data)[takes_part])
    for moment in ("received", "trained", "stored"):
        by_client = getattr(result.accuracy(), moment).by_client
        np.testing.assert_array_equal(clients[moment].to_numpy(), by_client)


def test_who_learned_from_whom(tmp_path: Path) -> None:
    named(record_every=2, rounds=4).run(tmp_path / "run")
    opened = open_run(tmp_path / "run")
    assert opened.rounds == [2, 4]
    assert [mix.group for mix in opened.mixes(4)] == ["extractor"]
    with pytest.raises(CoterieError, match=r"round = 3: is not among the rounds that were recorded \(2 to 4, 2 of"):
        opened.mixes(3)


@pytest.mark.thorough
def test_a_killed_run_gives_the_models_of_its_checkpoint(tmp_path: Path) -> None:
    with power_cut(tmp_path / "run", 3) as listeners:
        named(rounds=4).run(tmp_path / "run", listeners)
    opened = open_run(tmp_path / "run")
    assert (opened.status, opened.done, opened.summary["rounds"]) == ("unfinished", 3, 3)
    assert_same_models(opened, named(rounds=2, checkpoint_every=None).run())
    assert opened.history["round"].max() == 3
    resume(tmp_path / "run")
    assert opened.status == "finished"
    assert opened.done == 4


def test_a_stopped_run(tmp_path: Path) -> None:
    result = named().run(tmp_path / "run", [StopAfter(2)])
    opened = open_run(tmp_path / "run")
    assert opened.status == "stopped"
    assert opened.summary["stopped"] == "after round 2, as wished"
    assert_same_models(opened, result)


def test_a_run_that_is_still_going(tmp_path: Path) -> None:
    seen: list[tuple[str, int, float]] = []

    def look(report: object) -> None:
        opened = open_run(tmp_path / "run")
        seen.append((opened.status, opened.done, opened.clients["received"].mean()))

    result = named().run(tmp_path / "run", [EachRound(look)])
    assert [(status, done) for status, done, _ in seen] == [("unfinished", round) for round in (1, 2, 3)]
    assert seen[-1][2] == pytest.approx(result.accuracy().received.mean["last"])


def test_a_run_without_a_checkpoint_has_numbers_and_says_that_it_has_no_models(tmp_path: Path) -> None:
    with power_cut(tmp_path / "run", 1) as listeners:
        named().run(tmp_path / "run", listeners)
    opened = open_run(tmp_path / "run")
    assert opened.accuracy().received.mean["last"] > 0
    with pytest.raises(CoterieError, match=r"holds no models .* they come with the first checkpoint"):
        opened.model(0)


def test_before_the_first_round_there_are_clients_without_scores(tmp_path: Path) -> None:
    named(evaluate_every=9, rounds=9).run(tmp_path / "run", [StopAfter(1)])
    opened = open_run(tmp_path / "run")
    assert len(opened.history) == 0
    assert all(math.isnan(score) for score in opened.clients["received"])
    with pytest.raises(CoterieError, match="the run was stopped after round 1, before its first evaluation"):
        opened.accuracy()


@pytest.mark.parametrize("client", [99, 4, -1])
def test_clients_that_there_are_not(client: int, tmp_path: Path) -> None:
    result = named().run(tmp_path / "run")
    for model in (open_run(tmp_path / "run").model, result.model):
        with pytest.raises(CoterieError) as caught:
            model(client)
        assert str(caught.value) == f"client = {client}: must lie in 0..3"


def test_inputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    named(rounds=1).run(tmp_path / "run")
    with pytest.raises(CoterieError, match=r"inputs: samples have the shape \(3,\); the model takes \(1, 8, 8\)"):
        open_run(tmp_path / "run").predict(0, torch.zeros(2, 3))


@dataclass(frozen=True)
class Mine(FedPer):
    """A method that is nowhere registered."""


def test_python_objects_are_asked_for_only_where_they_are_needed(tmp_path: Path) -> None:
    experiment = tiny(Mine(), DropNet())
    result = experiment.run(tmp_path / "run")
    opened = open_run(tmp_path / "run")
    assert len(opened.history) == 9
    assert len(opened.clients) == 4
    with pytest.raises(CoterieError) as caught:
        opened.model(0)
    path = str(tmp_path / "run")
    assert str(caught.value) == (
        f"run = {path}: what was made in Python is not kept: its method (Mine), its model (DropNet); "
        "pass what it was run with: "
        f"coterie.open_run({path!r}, experiment=…)"
    )
    assert_same_models(open_run(path, experiment=experiment), result)


def test_data_made_in_python_are_not_needed(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    y = stream.integers(3, size=120)
    data = from_arrays(stream.normal(size=(120, 5)) + y[:, None], y, owners=stream.integers(4, size=120), name="own")
    result = Experiment("fedper", data, ByClient(), rounds=2, epochs=1).run(tmp_path / "run")
    assert_same_models(open_run(tmp_path / "run"), result)
    result = Experiment("fedbabu", data, ByClient(), rounds=2, epochs=1).run(tmp_path / "tuned")
    with pytest.raises(CoterieError, match=r"what was made in Python is not kept: its data \(own\); pass"):
        open_run(tmp_path / "tuned").model(0)
    again = replace(result.prepared.experiment)
    assert isinstance(again, Experiment)
    assert_same_models(open_run(tmp_path / "tuned", experiment=again), result)


def test_memory_formats_and_batch_norm(tmp_path: Path) -> None:
    experiment = Experiment(
        "fedbn", "digits", Iid(clients=3), "lenet5", rounds=1, epochs=1, batch=100, memory="channels_last"
    )
    result = experiment.run(tmp_path / "run")
    assert_same_models(open_run(tmp_path / "run"), result)


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"holds no run \(config.toml is missing\)"):
        open_run(tmp_path)
