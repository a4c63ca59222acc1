"""The server loop: against a plain loop, at both moments, under relabelling, and to the byte."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.core.exchange import Mix
from coterie.core.federation import Federation
from coterie.core.mixing import identity
from coterie.core.numbers import ACCURACY
from coterie.core.tracks import exchange_mark
from coterie.data import Dataset, load
from coterie.methods import FedAvg, FedBN, FedProx, Method
from coterie.partition import Dirichlet, Partition
from coterie.rounds.delivery import bytes_down, bytes_up
from coterie.rounds.evaluate import Evaluation
from coterie.rounds.sampler import draw_cohort
from coterie.runs.experiment import Experiment
from coterie.runs.run import Run
from coterie.setup.prepared import Prepared
from coterie.testing.toys import seeded, toy_data, toy_partition
from support import MODELS as TOY_MODELS
from support import final_rows, permuted_partition, rows_of, stepwise, tiny


@cache
def plain() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "fedavg_plain.py"
    spec = importlib.util.spec_from_file_location("fedavg_plain", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def some_digits() -> Dataset:
    digits = load("digits")
    return Dataset("some digits", digits.inputs[:300], digits.labels[:300], classes=10)


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["mlp", "lenet5"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_fedavg_equals_the_plain_loop(model: str, join: float) -> None:
    data = some_digits()
    partition = Dirichlet(clients=5, alpha=0.5)(data, seed=3)
    settings: dict[str, Any] = {"rounds": 3, "epochs": 2, "batch": 16, "lr": 0.1, "seed": 3, "join": join}
    result = Experiment(data=data, partition=partition, model=model, **settings).run()
    server = plain().fedavg(data, partition, model, **settings)
    layout = result.prepared.problem_base.layout
    rows = final_rows(result)
    assert torch.allclose(rows[0], layout.row(server), atol=1e-5)
    assert not torch.allclose(rows[0], result.federation.initial, atol=1e-2)
    assert torch.equal(rows, rows[:1].expand_as(rows)), "everybody holds the same model"
    found = result.lines[-1].received.values["accuracy"]
    assert found == pytest.approx(plain().accuracies(server, data, partition), abs=1e-6)


def run(method: Method | str = "fedavg", model: str = "plain", **options: Any) -> Run:
    return tiny(method, model, **options).run()


# Degenerate cases collapse ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize("model", list(TOY_MODELS))
def test_fedprox_without_a_pull_is_fedavg(model: str, join: float) -> None:
    one, other = (run(method, model, join=join) for method in (FedProx(mu=0), FedAvg()))
    assert torch.equal(final_rows(one), final_rows(other))
    assert one.lines[-1].trained.values["loss"] == other.lines[-1].trained.values["loss"]


def test_fedbn_without_batch_norm_is_fedavg() -> None:
    one, other = (run(method, "plain", join=0.5) for method in (FedBN(), FedAvg()))
    assert torch.equal(final_rows(one), final_rows(other))


@pytest.mark.thorough
@pytest.mark.parametrize("model", list(TOY_MODELS))
@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedbn"])
def test_a_federation_of_one_trains_locally(method: str, model: str) -> None:
    one, other = (run(name, model, clients=1) for name in (method, "local"))
    assert torch.allclose(final_rows(one), final_rows(other), atol=1e-7)


def test_a_strong_pull_keeps_fedprox_near_its_start() -> None:
    """At μ = 1 / lr a step lands at the received model minus one gradient step."""
    moved = {mu: run(FedProx(mu=mu), rounds=1, epochs=3) for mu in (0.0, 0.1, 10.0)}
    distance = {mu: float((final_rows(one)[0] - one.federation.initial).norm()) for mu, one in moved.items()}
    assert distance[10.0] < 0.5 * distance[0.1] < distance[0.1] < distance[0.0]
    assert distance[10.0] > 0


# Who holds what -----------------------------------------------------------------------------------------------------


def test_fedavg_shares_everything() -> None:
    rows = final_rows(run("fedavg", "norm", join=0.5))
    assert torch.equal(rows, rows[:1].expand_as(rows))


@pytest.mark.parametrize(
    ("method", "personal"), [("fedbn", "norm"), ("fedper", "classifier + stats"), ("local", "all + stats")]
)
def test_personal_columns_differ_and_shared_columns_do_not(method: str, personal: str) -> None:
    result = run(method, "norm")
    layout, rows = result.federation.layout, final_rows(result)
    own = layout.columns(personal)
    shared = layout.everything - own
    common = shared.take(rows)
    assert torch.equal(common, common[:1].expand_as(common))
    for entry in layout.entries:
        if entry.columns <= own:
            values = entry.columns.take(rows)
            assert not torch.allclose(values[0], values[1], atol=1e-6), f"{entry.name} is personal"


@pytest.mark.parametrize("method", ["fedbn", "fedper", "local"])
def test_clients_that_sit_out_keep_their_personal_columns(method: str) -> None:
    rounds, _ = stepwise(tiny(method, "norm", join=0.5, rounds=4))
    own = rounds.federation["model"].own
    for _ in range(4):
        before = own.clone()
        report = rounds.run_round()
        moved = {client for client in range(4) if not torch.equal(before[client], own[client])}
        assert moved == set(report.cohort)


# Randomness is a function of seed, purpose, round and client --------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedbn", "local"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling_clients_permutes_the_result(method: str, join: float) -> None:
    data = toy_data()
    partition = toy_partition(data, 5)
    relabelled, order = permuted_partition(partition)
    one = run(method, "norm", data=data, partition=partition, join=join)
    other = run(method, "norm", data=data, partition=relabelled, join=join)
    assert torch.allclose(final_rows(other), final_rows(one)[order], atol=1e-4)
    for line, again in zip(one.lines, other.lines, strict=True):
        assert sorted(order[client] for client in again.cohort) == line.cohort
        for moment in ("received", "trained"):
            assert again.values(moment, "accuracy") == np.array(line.values(moment, "accuracy"))[order].tolist()
            assert again.told(moment).mean == pytest.approx(line.told(moment).mean)


@pytest.mark.parametrize("model", list(TOY_MODELS))
def test_a_local_client_does_not_depend_on_who_else_is_there(model: str) -> None:
    data = toy_data()
    whole = toy_partition(data, 4)
    alone = Partition(train=(whole.train[2],), test=(whole.test[2],), keys=np.array([2]))
    rows = final_rows(run("local", model, data=data, partition=whole))
    assert torch.equal(final_rows(run("local", model, data=data, partition=alone))[0], rows[2])


@pytest.mark.thorough
def test_the_same_experiment_gives_the_same_bits_and_another_seed_does_not() -> None:
    one, again, other = (run("fedper", "dropout", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(final_rows(one), final_rows(again))
    assert not torch.allclose(final_rows(one), final_rows(other), atol=1e-4)


@pytest.mark.thorough
def test_a_run_leaves_the_global_state_as_it_was() -> None:
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    run("fedavg", "dropout", threads=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_the_users_module_is_not_touched() -> None:
    module = seeded(TOY_MODELS["norm"])
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    tiny("fedavg", module).run()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_all_methods_see_the_same_cohorts() -> None:
    cohorts = [[line.cohort for line in run(name, join=0.5).lines] for name in ("fedavg", "fedper")]
    assert cohorts[0] == cohorts[1]
    assert len({tuple(cohort) for cohort in cohorts[0]}) > 1
    assert all(cohort == sorted(set(cohort)) and len(cohort) == 2 for cohort in cohorts[0])


@pytest.mark.parametrize(
    ("clients", "join", "count"), [(10, 0.1, 1), (10, 0.01, 1), (10, 0.3, 3), (10, 0.29, 2), (7, 1.0, 7)]
)
def test_the_size_of_a_cohort(clients: int, join: float, count: int) -> None:
    assert len(draw_cohort(torch.arange(clients), join, 0, 1)) == count


# Moments ------------------------------------------------------------------------------------------------------------


def evaluated_by_hand(prepared: Prepared, rows: Tensor) -> Evaluation:
    """Load each row into an ordinary module and test it on the client's own samples."""
    layout, problem = prepared.problem_base.layout, prepared.problem()
    accuracy, loss, sizes = [], [], []
    module = seeded(type(problem.module))
    for row, index in zip(rows, problem.test, strict=True):
        layout.load(module, row).eval()
        with torch.no_grad():
            logits = module(problem.inputs[index])
        accuracy.append(float((logits.argmax(1) == problem.labels[index]).double().mean()))
        loss.append(float(torch.nn.functional.cross_entropy(logits, problem.labels[index])))
        sizes.append(len(index))
    return Evaluation(ACCURACY, {"accuracy": np.array(accuracy), "loss": np.array(loss)}, np.array(sizes))


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedbn", "local"])
@pytest.mark.parametrize("every", [1, 2])
def test_both_moments_recomputed_by_hand(method: str, every: int) -> None:
    """`trained`: the cohort after training, all others with what they held; `received`: after the exchange."""
    experiment = tiny(method, "norm", join=0.5, rounds=4, evaluate_every=every)
    prepared = experiment.prepare()
    rounds, engine = stepwise(experiment)
    for _ in range(4):
        trained = rows_of(rounds.federation)
        report = rounds.run_round()
        trained[engine.cohort] = engine.trained.rows["model"]
        if report.round % every:
            assert report.received is None
            assert report.trained is None
            continue
        for found, rows in ((report.received, rows_of(rounds.federation)), (report.trained, trained)):
            expected = evaluated_by_hand(prepared, rows)
            assert found is not None
            assert found.judged == pytest.approx(expected.judged, abs=1e-6)
            assert found.loss == pytest.approx(expected.loss, abs=1e-5)
            assert found.sizes.tolist() == expected.sizes.tolist()


def test_rounds_that_are_not_evaluated_still_train() -> None:
    one, other = (run("fedper", "norm", evaluate_every=every, join=0.5) for every in (1, 3))
    assert torch.equal(final_rows(one), final_rows(other))
    assert [(line.received is not None) for line in other.lines] == [False, False, True]
    for moment in ("received", "trained"):
        assert one.lines[-1].told(moment) == other.lines[-1].told(moment)


# Bytes --------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "group"),
    [("fedavg", "all"), ("fedprox", "all"), ("fedper", "extractor"), ("fedbn", "all - norm"), ("local", "")],
)
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_bytes_are_four_times_the_columns_that_travel(method: str, group: str, join: float) -> None:
    """Up in every round; down in every round but the first, in which everybody holds the common initial row."""
    result = run(method, "norm", join=join)
    columns = result.federation.layout.columns(group).size
    clients = 4 if join == 1 else 2
    assert (columns == 0) == (method == "local")
    assert result.summary["bytes"] == {
        "up": 3 * clients * 4 * columns,
        "down": 2 * clients * 4 * columns,
        "total": 5 * clients * 4 * columns,
        "per_client_round": {"up": 4 * columns, "down": pytest.approx(4 * columns * 2 / 3)},
    }
    assert [line.bytes.down for line in result.lines] == [0, *[clients * 4 * columns] * 2]


def test_statistics_count_as_bytes_only_if_they_travel() -> None:
    per_round = {
        stats: run("fedavg", "norm", stats=stats).summary["bytes"]["per_client_round"]["up"]
        for stats in ("mean", "local")
    }
    assert per_round["mean"] - per_round["local"] == 4 * 4 * 8


def test_values_count_once_per_client() -> None:
    federation = tiny("fedavg").prepare().federation()
    federation.add_value("prototypes", torch.zeros(3, 5))
    federation.add_value("mask", torch.zeros(4, 17, dtype=torch.bool), per_client=True)
    federation.add_value("memory", torch.zeros(4, 17), per_client=True, held_by="server")
    everyone = federation.everyone
    assert bytes_down(federation, everyone, {}, {}) == 0, "what they start as is known to all"
    for name, value in list(federation.values.items()):
        federation.write_value(name, value, exchange_mark(1))
    assert bytes_down(federation, everyone[:3], {}, {}) == 3 * (3 * 5 * 4 + 3)


def test_models_of_peers_are_billed_as_they_are_uploaded() -> None:
    federation = tiny("fedavg").prepare().federation()
    extractor = federation.layout.columns("extractor").size
    peers = {0: [1, 2], 3: [0]}
    assert bytes_down(federation, federation.everyone, peers, {"model": "extractor"}) == 3 * 4 * extractor
    assert bytes_down(federation, federation.everyone, peers, {}) == 0


def test_what_is_measured_is_billed_for_one_client() -> None:
    federation = tiny("fedavg").prepare().federation()
    measured = {"class_means": torch.zeros(4, 3, 5), "critical": torch.zeros(4, 17, dtype=torch.bool)}
    head = federation.layout.columns("classifier").size
    assert bytes_up(federation, {"model": "classifier"}, measured) == 4 * head + 3 * 5 * 4 + 3


# Downloads that are made for one client -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SwapAtDownload(Method):
    """Each client downloads its neighbour's model."""

    shared: ClassVar[str] = ""

    def uploads(self, federation: Federation) -> dict[str, str]:
        return {"model": "all"}

    def deliver(self, federation: Federation, clients: Tensor) -> Iterable[Mix]:
        yield Mix(identity(federation.clients).roll(1, 1)[clients], "all", source="model")


def test_what_is_delivered_is_tested_and_then_put_back() -> None:
    result = run(SwapAtDownload(), join=0.5)
    rows = final_rows(result)
    expected = evaluated_by_hand(result.prepared, rows.roll(-1, 0))
    assert result.accuracy().received.by_client == pytest.approx(expected.judged)
    assert not torch.equal(rows[0], rows[1])


def test_a_clients_model_is_the_one_that_was_tested() -> None:
    result = run(SwapAtDownload())
    held = final_rows(result)
    given = result.federation.layout.row(result.model(0))
    assert torch.equal(given, held[1])
    assert torch.equal(final_rows(result), held), "asking for a model changes nothing"


# Results ------------------------------------------------------------------------------------------------------------


def test_a_clients_model_predicts_as_recorded() -> None:
    result = run("fedper", "norm")
    problem = result.prepared.problem()
    for client, index in enumerate(problem.test):
        right = result.predict(client, problem.inputs[index]) == problem.labels[index]
        assert float(right.double().mean()) == pytest.approx(result.accuracy().received.by_client[client])
        assert not result.model(client).training


def test_the_server_computes_with_classifiers_as_in_evaluation() -> None:
    """Dropout inside the classifier must not make what the server computes random."""
    data = toy_data()
    with torch.random.fork_rng(devices=[]):
        module = torch.nn.Sequential()
        module.add_module("body", torch.nn.Linear(6, 8))
        module.add_module(
            "classifier",
            torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)),
        )
    federation = tiny("fedavg", module.train(), data=data, stats="local").prepare().federation()
    features = torch.randn(5, 8)
    rows = federation.layout.columns("classifier").take(federation.initial)[None]
    expected = module.eval().classifier(features)
    for _ in range(2):
        assert torch.allclose(federation.head_logits(rows, features)[0], expected, atol=1e-6)
