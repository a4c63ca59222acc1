"""What every method must do, whatever it is: a method that is added to the registry is tested here at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie import resume
from coterie.core.columns import Columns
from coterie.core.exchange import Action, Uploads
from coterie.core.federation import Federation
from coterie.engines import Trained, Work
from coterie.errors import CoterieError
from coterie.experiment.config import complete
from coterie.experiment.directory import RunDirectory, load_tensors
from coterie.experiment.experiment import Experiment, experiment_from
from coterie.experiment.result import Result
from coterie.methods import METHODS, Method
from coterie.models import build
from coterie.partition import Partition
from coterie.rng import stream_seed
from coterie.rounds.report import RoundReport
from coterie.rounds.round import Rounds
from listening import EachRound, power_cut
from support import MODELS as TOY_MODELS
from support import (
    Recording,
    final_rows,
    permuted_partition,
    rows_of,
    seeded,
    tiny,
    toy_data,
    toy_partition,
    without_times,
)

pytestmark = pytest.mark.thorough

NAMES = sorted(METHODS)
ROUNDS, CLIENTS = 3, 4


@cache
def mlp() -> torch.nn.Module:
    torch.manual_seed(stream_seed(0, "model"))
    return build("mlp", (6,), 3, hidden=[8])


def experiment(name: str, model: str = "mlp", **options: Any) -> Experiment:
    """Three rounds on toy data with validation samples for the methods that want some."""
    module = mlp() if model == "mlp" else seeded(TOY_MODELS[model])
    data = options.pop("data", None) or toy_data(180)
    partition = options.pop("partition", None) or with_validation(toy_partition(data, options.pop("clients", CLIENTS)))
    return tiny(METHODS[name](), module, data=data, partition=partition, **{"rounds": ROUNDS, "batch": 16, **options})


def with_validation(partition: Partition) -> Partition:
    """The last samples of each client's training part become its validation part."""
    cuts = [max(1, len(train) // 5) for train in partition.train]
    return Partition(
        train=tuple(train[:-cut] for train, cut in zip(partition.train, cuts, strict=True)),
        validation=tuple(train[-cut:] for train, cut in zip(partition.train, cuts, strict=True)),
        test=partition.test,
    )


class Watched:
    """A run with what happened in each round."""

    def __init__(self, one: Experiment, out: Path | None = None) -> None:
        self.reports: list[RoundReport] = []
        self.result: Result = one.run(out, [EachRound(self.reports.append)])


@cache
def standard(name: str, model: str, join: float, clients: int) -> Watched:
    return Watched(experiment(name, model, join=join, clients=clients))


CASES = [
    (model, join, clients)
    for model in ("mlp", "norm")
    for join, clients in ((1.0, CLIENTS), (0.5, CLIENTS), (1.0, 2), (1.0, 1))
]


@pytest.mark.parametrize(("model", "join", "clients"), CASES)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_stays_finite_and_its_weights_are_means(name: str, model: str, join: float, clients: int) -> None:
    watched = standard(name, model, join, clients)
    federation = watched.result.federation
    for slot in federation.slots:
        assert bool(torch.isfinite(rows_of(federation, slot)).all()), slot
    assert watched.result.summary["diverged"] == {}
    assert not torch.equal(final_rows(watched.result), rows_of(watched.result.prepared.federation()))
    cohort_size = max(1, int(join * clients))
    for report in watched.reports:
        assert len(report.cohort) == cohort_size
        for mix in report.mixes:
            assert mix.weights.shape[1] == len(mix.columns)
            assert mix.weights.shape[0] in (1, len(mix.rows))
            assert bool(torch.isfinite(mix.weights).all())
            assert bool((mix.weights >= 0).all())
            assert torch.allclose(mix.weights.sum(1), torch.ones(len(mix.weights)), atol=1e-5)
            assert set(mix.columns.tolist()) <= set(range(clients))
        for evaluation in (report.received, report.trained):
            assert evaluation is not None
            assert evaluation.judged.shape == (clients,)
            assert bool(np.isfinite(evaluation.loss).all())
            assert bool(((evaluation.judged >= 0) & (evaluation.judged <= 1)).all())
        assert all(math.isfinite(count) and count >= 0 for count in report.bytes.values())


@pytest.mark.parametrize("name", NAMES)
def test_training_improves_the_loss(name: str) -> None:
    """After more rounds the clients' own models are better than the one they started from."""
    one = experiment(name, "norm", rounds=4, epochs=2)
    ready = one.prepare()
    result = one.run()
    start = Watched(experiment("local", "norm", rounds=1, lr=1e-9)).reports[0].received
    assert start is not None
    assert ready.partition == result.prepared.partition
    losses = np.array(result.history.lines[-1]["trained"]["loss"], float)
    assert np.mean(losses) < np.mean(start.loss)


@pytest.mark.parametrize(("model", "join"), [("mlp", 1.0), ("norm", 1.0), ("norm", 0.5)])
@pytest.mark.parametrize("name", NAMES)
def test_relabelling_clients_changes_nothing_else(name: str, join: float, model: str) -> None:
    data = toy_data(180)
    partition = with_validation(toy_partition(data, CLIENTS))
    relabelled, order = permuted_partition(partition)
    one = standard(name, model, join, CLIENTS).result
    other = experiment(name, model, join=join, data=data, partition=relabelled).run()
    assert torch.allclose(final_rows(other), final_rows(one)[order], atol=1e-4)
    for line, again in zip(one.history.lines, other.history.lines, strict=True):
        assert sorted(order[client] for client in again["cohort"]) == line["cohort"]
        for moment in ("received", "trained"):
            assert again[moment]["accuracy"] == np.array(line[moment]["accuracy"])[order].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_ends_bit_identical(name: str, tmp_path: Path) -> None:
    one = experiment(name, "norm", join=0.5, rounds=4, checkpoint_every=1)

    with power_cut(tmp_path / "killed", 2) as listeners:
        one.run(tmp_path / "killed", listeners)
    again = resume(tmp_path / "killed", experiment=one)
    whole = one.run(tmp_path / "whole")
    assert torch.equal(final_rows(again), final_rows(whole))
    state = dict(whole.federation.state())
    for key, tensor in again.federation.state():
        assert torch.equal(tensor.nan_to_num(), state[key].nan_to_num()), key
    assert without_times(again.summary) == without_times(whole.summary)
    assert without_times(again.history.lines) == without_times(whole.history.lines)
    directory = RunDirectory.open(tmp_path / "killed")
    for round in directory.recorded_rounds():
        recorded = RunDirectory.open(tmp_path / "whole").mixes(round)
        for mix, other in zip(directory.mixes(round), recorded, strict=True):
            assert torch.equal(mix.weights, other.weights)


@pytest.mark.parametrize("name", NAMES)
def test_saved_rows_load(name: str, tmp_path: Path) -> None:
    result = experiment(name, "norm", join=0.5).run(tmp_path / "run")
    saved, metadata = load_tensors(tmp_path / "run" / "rows.safetensors")
    assert metadata["round"] == str(ROUNDS)
    federation = result.prepared.federation()
    federation.restore(saved)
    for slot in result.federation.slots:
        found, expected = rows_of(federation, slot), rows_of(result.federation, slot)
        assert torch.equal(found, expected)
    assert federation.values.keys() == result.federation.values.keys()


@pytest.mark.parametrize("model", ["mlp", "norm"])
@pytest.mark.parametrize("name", NAMES)
def test_a_clients_model_reproduces_its_recorded_accuracy(name: str, model: str) -> None:
    result = standard(name, model, 0.5, CLIENTS).result
    method = result.prepared.method
    if type(method).predict is not Method.predict or method.tune(result.federation):
        pytest.skip("predicts in a way of its own")
    problem = result.prepared.problem()
    for client, index in enumerate(problem.test):
        module = result.model(client)
        with torch.no_grad():
            right = module(problem.inputs[index]).argmax(1) == problem.labels[index]
        assert float(right.double().mean()) == pytest.approx(result.accuracy().received.by_client[client])


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_declared_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies outside the declared uploads may be anything: the server step must not depend on it."""
    kind = METHODS[name]
    original = kind.exchange

    def spoiling(self: Method, uploads: Uploads) -> Iterable[Action]:
        spoiled = {}
        for slot, rows in uploads.trained.items():
            held = uploads.federation[slot].columns
            hidden = held - uploads.declared.get(slot, Columns())
            copy = rows.clone()
            hidden.within(held).put(copy, torch.full((len(copy), hidden.size), torch.nan))
            spoiled[slot] = copy
        unseen = Uploads(uploads.federation, uploads.cohort, spoiled, uploads.declared, uploads.probes)
        return list(original(self, unseen))

    expected = standard(name, "norm", 0.5, CLIENTS).result
    monkeypatch.setattr(kind, "exchange", spoiling)
    found = experiment(name, "norm", join=0.5).run()
    assert torch.equal(final_rows(found), final_rows(expected))


class Declaring(Recording):
    """Keeps what the clients were to send and receive, too."""

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        method = self.worker.method
        self.uploads = dict(method.uploads(federation))
        self.received = [
            (dict(method.downloads(federation)), dict(method.catches_up(federation, client)))
            for client in cohort.tolist()
        ]
        self.peers = sum(len(method.peers(federation, client)) for client in cohort.tolist())
        return super().train(federation, work, cohort)


def declaring(name: str) -> tuple[Rounds, Declaring]:
    one = experiment(name, "norm", join=0.5)
    ready = one.prepare()
    engine = Declaring(ready.problem(), ready.method, one.seed)
    return Rounds(ready.method, ready.federation(), engine, one.join), engine


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_what_travels(name: str) -> None:
    rounds, engine = declaring(name)
    federation, method = rounds.federation, rounds.method

    def size(declared: dict[str, str]) -> int:
        total = 0
        for key, group in declared.items():
            if key in federation.slots:
                columns = federation.layout.columns(group)
                assert columns <= federation[key].columns, f"'{key}' declares more than the slot holds"
                total += 4 * columns.size
            else:
                total += bytes_of(federation.values[key][0])
        return total

    for _ in range(ROUNDS):
        report = rounds.run_round()
        up = engine.uploads
        assert set(up) <= set(federation.slots)
        sent = sum(bytes_of(value[0]) for key, value in engine.trained.probes.items() if key not in method.remembers)
        assert report.bytes["up"] == len(report.cohort) * (size(up) + sent)
        models = engine.peers * 4 * federation.layout.columns(up.get("model", "")).size
        assert report.bytes["down"] == models + sum(size(down) + size(besides) for down, besides in engine.received)
        if report.mixes:
            assert report.bytes["up"] > 0
            assert report.bytes["down"] > 0


def bytes_of(value: Tensor) -> int:
    return math.ceil(value.numel() / 8) if value.dtype == torch.bool else value.numel() * value.element_size()


@pytest.mark.parametrize("name", NAMES)
def test_clients_that_sit_out_keep_what_never_leaves_them(name: str) -> None:
    """Columns that do not travel change only in rounds in which their client takes part."""
    rounds, engine = declaring(name)
    federation = rounds.federation
    slot = federation["model"]
    for _ in range(ROUNDS):
        before = slot.own.clone()
        report = rounds.run_round()
        private = slot.own_columns
        for declared in (engine.uploads, *(part for parts in engine.received for part in parts)):
            private = private - federation.layout.columns(declared.get("model", ""))
        where = private.within(slot.own_columns)
        resting = [client for client in range(CLIENTS) if client not in report.cohort]
        assert torch.equal(where.take(slot.own)[resting], where.take(before)[resting])


@pytest.mark.parametrize("name", NAMES)
def test_evaluating_changes_nothing(name: str) -> None:
    often = standard(name, "norm", 0.5, CLIENTS).result
    seldom = experiment(name, "norm", join=0.5, evaluate_every=ROUNDS).run()
    assert torch.equal(final_rows(often), final_rows(seldom))
    for moment in ("received", "trained"):
        assert often.history.lines[-1][moment]["accuracy"] == seldom.history.lines[-1][moment]["accuracy"]


@pytest.mark.parametrize("name", NAMES)
def test_newcomers_are_welcome(name: str) -> None:
    data = toy_data(180)
    whole = with_validation(toy_partition(data, 5))
    partition = Partition(train=whole.train, validation=whole.validation, test=whole.test, held_out=(1, 4))
    result = experiment(name, "norm", data=data, partition=partition, join=0.67).run()
    for moment in ("received", "trained"):
        found = result.summary["newcomers"][moment]
        assert len(found["accuracy"]) == 2
        assert found["mean"] == pytest.approx(np.mean(found["accuracy"]))


@pytest.mark.parametrize("name", NAMES)
def test_a_diverged_client_harms_nobody(name: str) -> None:
    data = toy_data(180)
    partition = with_validation(toy_partition(data, CLIENTS))
    inputs = data.inputs.clone()
    inputs[partition.train[1]] *= 1e30
    spoiled = type(data)("spoiled", inputs, data.labels, classes=data.classes)
    result = experiment(name, "relu", data=spoiled, partition=partition).run()
    assert "1" in result.summary["diverged"]
    others = {client for client in result.summary["diverged"] if client != "1"}
    assert not others
    for slot in result.federation.slots:
        assert bool(torch.isfinite(rows_of(result.federation, slot)).all()), slot


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_a_value(name: str) -> None:
    """Its options are all there is to it: equal options, equal method, and a configuration that repeats it."""
    method = METHODS[name]()
    assert method == METHODS[name]()
    assert hash(method) == hash(METHODS[name]())
    assert experiment_from(complete(Experiment(method=method))).method == method
    assert (METHODS[name].__doc__ or "").strip()
    with pytest.raises(CoterieError, match="unknown option"):
        experiment_from({"method": name, "set": {"no_such_option": 1}})
