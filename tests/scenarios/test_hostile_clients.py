"""What hostile clients do, against numbers worked out by hand; every attack works with every method and engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.core.task import Classification
from coterie.engines import ENGINES
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.options import made
from coterie.partition import Dirichlet, Iid
from coterie.rng import numpy_stream, torch_stream
from coterie.rounds.listeners import StopAfter
from coterie.rounds.round import Rounds
from coterie.runs.experiment import Experiment
from coterie.runs.resume import resume
from coterie.runs.run import Run, open_run
from coterie.scenarios.attacks import (
    ATTACKS,
    Attack,
    Copycat,
    FreeRider,
    LabelFlip,
    Noise,
    NotANumber,
    Scaling,
    Sending,
    SignFlip,
)
from coterie.scenarios.hostile import TRUE, Hostile, hostile_clients
from support import Recording, final_rows, permuted_partition, rows_of, tiny

CLIENTS = 5


def sending(before: list[list[float]], trained: list[list[float]], hostile: list[int]) -> Sending:
    """Hostile clients that are about to send the first columns of the model."""
    federation = tiny("fedavg", clients=CLIENTS).prepare().federation()
    federation.round = 2
    columns = next(federation.layout.everything.blocks(len(before[0])))
    honest = [client for client in range(CLIENTS) if client not in hostile]
    return Sending(
        federation,
        "model",
        columns,
        torch.tensor(hostile),
        torch.tensor(before),
        torch.tensor(trained),
        torch.tensor(honest),
        {},
    )


BEFORE, TRAINED = [[1.0, 2.0]], [[1.5, 1.0]]
BY_HAND: list[tuple[Attack, list[float]]] = [
    (Attack(), [1.5, 1.0]),
    (SignFlip(), [0.5, 3.0]),
    (SignFlip(factor=4.0), [-1.0, 6.0]),
    (Scaling(), [6.0, -8.0]),
    (Scaling(factor=0.5), [1.25, 1.5]),
    (FreeRider(), [1.0, 2.0]),
]


@pytest.mark.parametrize(("attack", "expected"), BY_HAND)
def test_rows_worked_out_by_hand(attack: Attack, expected: list[float]) -> None:
    assert attack.rows(sending(BEFORE, TRAINED, [1]))[0].tolist() == pytest.approx(expected)


def test_noise_is_as_long_as_it_says_and_each_clients_own() -> None:
    before, trained = torch.zeros(2, 100).tolist(), torch.full((2, 100), 0.5).tolist()
    found = Noise(times=3.0).rows(sending(before, trained, [1, 3]))
    for row, key in zip(found, (1, 3), strict=True):
        drawn = torch.randn(100, generator=torch_stream(0, "attack:model", 2, key))
        torch.testing.assert_close(row, 3.0 * 5.0 / 10.0 * drawn)  # a change of length 5 over √100 columns


def test_nan_is_all_nan_and_measurements_follow() -> None:
    stream, values = torch_stream(0, "x"), torch.tensor([3.0, -4.0])
    assert bool(NotANumber().rows(sending(BEFORE, TRAINED, [1])).isnan().all())
    assert bool(NotANumber().measured(values, stream).isnan().all())
    assert SignFlip(factor=2.0).measured(values, stream).tolist() == [-6.0, 8.0]
    assert Scaling(factor=3.0).measured(values, stream).tolist() == [9.0, -12.0]
    assert FreeRider().measured(values, stream) is values
    drawn = torch.randn(2, generator=torch_stream(0, "x"))
    torch.testing.assert_close(Noise(times=2.0).measured(values, torch_stream(0, "x")), 2 * 5 / 2**0.5 * drawn)
    absent = Noise().measured(torch.tensor([[3.0, 4.0], [torch.nan, torch.nan]]), stream)
    assert absent.isnan().tolist() == [[False, False], [True, True]]


def test_the_hostile_alone_measure_otherwise() -> None:
    """What counts and masks say stays."""
    federation = tiny("fedavg", clients=CLIENTS).prepare().federation()
    hostile = Hostile.drawn("sign-flip:0.4:2", federation.keys, 0)
    cohort = torch.tensor([4, 2, 0, 3])
    measured = {"means": torch.arange(8.0).reshape(4, 2), "known": torch.tensor([1, 2, 3, 4])}
    bad = torch.isin(cohort, hostile.clients)
    assert 0 < int(bad.sum()) < 4
    found = hostile.told(federation, cohort, measured)
    assert torch.equal(found["means"], torch.where(bad[:, None], -2 * measured["means"], measured["means"]))
    assert torch.equal(found["known"], measured["known"])
    assert torch.equal(measured["means"], torch.arange(8.0).reshape(4, 2))
    honest = cohort[~bad]
    assert hostile.told(federation, honest, measured) is measured


def test_labels_worked_out_by_hand() -> None:
    assert LabelFlip().labels(torch.tensor([0, 1, 2, 9]), Classification(10)).tolist() == [9, 8, 7, 0]


def test_the_hostile_are_drawn_by_key_and_are_so_many() -> None:
    keys = torch.tensor([4, 2, 0, 3, 1])
    drawn = numpy_stream(7, "hostile").choice(5, 2, replace=False).tolist()
    found = hostile_clients(0.4, keys, seed=7)
    assert sorted(keys[found].tolist()) == sorted(drawn)
    assert len(hostile_clients(0.01, keys, seed=0)) == 1
    with pytest.raises(CoterieError, match=r"5 of 5 clients would be hostile; leave at least one honest"):
        Hostile.drawn("nan:0.95", keys, 0)


class Watched(Recording):
    """Keeps what clients held before they trained, round by round."""

    def train(self, federation: Any, work: Any, cohort: Tensor) -> Any:
        self.before = rows_of(federation)
        return super().train(federation, work, cohort)


def rounds_of(experiment: Experiment) -> Iterator[tuple[Rounds, Watched, Hostile]]:
    prepared = experiment.prepare()
    engine = Watched(prepared.problem(), prepared.method, experiment.seed)
    (hostile,) = prepared.stages
    assert isinstance(hostile, Hostile)
    rounds = prepared.rounds(engine)
    for _ in range(experiment.rounds):
        rounds.run_round()
        yield rounds, engine, hostile


def test_fedavg_mixes_what_was_sent() -> None:
    """Oracle: θ = Σ n_k / n · (before ± change)."""
    for rounds, engine, hostile in rounds_of(tiny("fedavg", clients=CLIENTS, attack="sign-flip:0.4:2")):
        sizes = rounds.federation.sizes.double()
        trained = engine.trained.rows["model"].double()
        before = engine.before.double()
        sent = trained.clone()
        for client in hostile.clients.tolist():
            sent[client] = before[client] - 2 * (trained[client] - before[client])
        expected = (sizes / sizes.sum()) @ sent
        torch.testing.assert_close(rounds.federation["model"].shared[0].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["pfedcs", "fedtc", "fedcac", "pfedsim"])
def test_the_hostile_go_on_from_their_own_rows_and_not_from_what_they_sent(method: str) -> None:
    """Scaled by ten in each of six rounds, and not by a power of it."""
    last: Tensor | None = None
    for rounds, engine, hostile in rounds_of(tiny(method, clients=CLIENTS, attack="scaling:0.4", rounds=6)):
        federation, client = rounds.federation, int(hostile.clients[0])
        classifier = federation.layout.columns("classifier")
        if last is not None and method in ("pfedcs", "fedtc"):  # whose classifiers no server overwrites
            torch.testing.assert_close(classifier.take(engine.before[client]), last)
        trained = engine.trained.rows["model"][client]
        last = classifier.take(trained)
        sent = engine.before[client] + 10 * (trained - engine.before[client])
        uploads = rounds.method.uploads(federation)
        if method in ("pfedcs", "fedtc") and uploads["model"] == "all":  # not in the last round of pfedcs
            torch.testing.assert_close(
                classifier.take(rows_of(federation)[client]), classifier.take(sent), rtol=1e-4, atol=1e-4
            )
    assert last is not None
    assert float(last.abs().max()) < 1e3


@pytest.mark.parametrize(("method", "slots"), [("fedavg", set()), ("fedtc", {"model"}), ("fedrema", {"model"})])
def test_only_rows_that_clients_hold_are_remembered(method: str, slots: set[str]) -> None:
    """FedAvg has none; FedReMa's last uploads lie at the server, which remembers what was sent."""
    federation = tiny(method, clients=CLIENTS, attack="scaling:0.4").prepare().federation()
    assert {name for name in federation.values if name.startswith(TRUE)} == {TRUE + name for name in slots}


def test_who_does_not_train_keeps_what_it_sent() -> None:
    for rounds, _, hostile in rounds_of(tiny("fedtc", clients=CLIENTS, attack="scaling:0.4", rounds=2)):
        federation, client = rounds.federation, int(hostile.clients[0])
        sent = rows_of(federation)
        hostile.before_training(federation, federation.everyone[federation.everyone != client])
        assert torch.equal(rows_of(federation)[client], sent[client])
        hostile.before_training(federation, torch.tensor([client]))
        assert not torch.equal(rows_of(federation)[client], sent[client])


def test_a_copycat_sends_its_victims_classifier_and_poison() -> None:
    for rounds, engine, hostile in rounds_of(tiny("fedtc", clients=CLIENTS, attack="copycat:0.4", join=0.8)):
        federation, cohort = rounds.federation, engine.cohort.tolist()
        classifier, held = federation.layout.columns("classifier"), rows_of(federation)
        honest = torch.tensor([k for k in range(CLIENTS) if k not in hostile.clients.tolist()])
        for client in set(hostile.clients.tolist()) & set(cohort):
            stream = numpy_stream(0, "copycat", client=client)
            victim = int(honest[int(stream.integers(len(honest)))])
            torch.testing.assert_close(classifier.take(held[client]), classifier.take(held[victim]))
    assert isinstance(hostile.attack, Copycat)


def test_labels_are_flipped_at_the_hostile_alone() -> None:
    prepared = tiny("fedper", clients=CLIENTS, attack="label-flip:0.4").prepare()
    (stage,) = prepared.stages
    assert isinstance(stage, Hostile)
    honest, problem = tiny("fedper", clients=CLIENTS).prepare().problem(), prepared.problem()
    counts = tiny("fedper", clients=CLIENTS).prepare().federation().class_counts
    for client in range(CLIENTS):
        own, index = problem.labels[problem.train[client]], problem.train[client]
        hostile = client in stage.clients.tolist()
        assert own.tolist() == (2 - honest.labels[index] if hostile else honest.labels[index]).tolist()
        assert torch.equal(problem.labels[problem.test[client]], honest.labels[problem.test[client]])
        told = prepared.federation().class_counts[client].tolist()
        assert told == (counts[client].tolist()[::-1] if hostile else counts[client].tolist())


@pytest.mark.parametrize("attack", ["label-flip:0.4", "sign-flip:0.4"])
def test_an_attacked_run_is_opened_again_without_its_data(tmp_path: Path, attack: str) -> None:
    settings: dict[str, Any] = {"rounds": 2, "epochs": 1, "threads": 1, "share": 0.2, "attack": attack}
    result = Experiment("fedrod", "digits", Iid(clients=CLIENTS), "mlp", **settings).run(tmp_path / "run")
    opened = open_run(tmp_path / "run")
    assert torch.equal(opened.federation.class_counts, result.federation.class_counts)
    for client in range(CLIENTS):
        for name, tensor in result.model(client).state_dict().items():
            assert torch.equal(opened.model(client).state_dict()[name], tensor)


def test_nan_is_left_out_as_whoever_diverges() -> None:
    found = tiny("fedavg", clients=CLIENTS, attack="nan:0.4").run()
    assert sorted(found.summary["diverged"]) == sorted(found.summary["hostile"])
    assert bool(final_rows(found).isfinite().all())


def without(result: Run) -> dict[str, Any]:
    names = ("seconds", "config")
    return {name: value for name, value in result.summary.items() if name not in names}


def test_without_attack_and_defence_nothing_is_different() -> None:
    """An attack that does nothing, and a limit that nobody reaches, leave all rows to the bit."""
    plain = tiny("pfedcs", clients=CLIENTS).run()
    ATTACKS["idle"] = Attack
    try:
        idle = tiny("pfedcs", clients=CLIENTS, attack="idle:0.4", defence="influence:1").run()
    finally:
        del ATTACKS["idle"]
    assert torch.equal(final_rows(plain), final_rows(idle))
    told = {"hostile", "honest"}
    assert {name: value for name, value in without(idle).items() if name not in told} == without(plain)
    assert told <= idle.summary.keys()
    assert not told & plain.summary.keys()


def test_the_honest_have_numbers_of_their_own() -> None:
    found = tiny("fedper", clients=CLIENTS, attack="noise:0.4").run()
    honest = [one for one in found.summary["clients"] if one["client"] not in found.summary["hostile"]]
    mean = sum(one["received"] for one in honest) / len(honest)
    assert found.summary["honest"]["received"]["mean"]["last"] == pytest.approx(mean)
    assert found.summary["honest"]["received"]["worst_decile"] == min(one["received"] for one in honest)
    assert found.summary["config"]["attack"] == "noise:0.4"


def test_relabelled_clients_are_as_hostile_as_before() -> None:
    first = tiny("pfedsim", clients=CLIENTS, attack="copycat:0.4")
    assert first.partition is not None
    partition, order = permuted_partition(first.partition)
    one, other = first.run(), tiny("pfedsim", clients=CLIENTS, attack="copycat:0.4", partition=partition).run()
    torch.testing.assert_close(final_rows(other), final_rows(one)[list(order)])


@pytest.mark.parametrize("attack", ["scaling:0.4", "noise:0.4"])
def test_a_resumed_run_is_attacked_on_to_the_bit(tmp_path: Path, attack: str) -> None:
    whole = tiny("fedtc", clients=CLIENTS, attack=attack, rounds=4)
    expected = whole.run()
    whole.run(out=tmp_path / "run", listeners=[StopAfter(2)])
    found = resume(tmp_path / "run", experiment=whole)
    assert torch.equal(final_rows(found), final_rows(expected))


@pytest.mark.parametrize("engine", ["stacked"])
def test_engines_agree_under_attack(engine: str) -> None:
    assert engine in ENGINES
    one = tiny("fedrema", clients=CLIENTS, attack="sign-flip:0.4", defence="median").run()
    other = tiny("fedrema", clients=CLIENTS, attack="sign-flip:0.4", defence="median", engine=engine).run()
    torch.testing.assert_close(final_rows(one), final_rows(other), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_worker_processes_are_attacked_to_the_bit() -> None:
    options: dict[str, Any] = {
        "partition": Dirichlet(clients=4, alpha=5.0),
        "rounds": 2,
        "epochs": 1,
        "share": 0.2,
        "threads": 1,
        "attack": "label-flip:0.25",
    }
    one = Experiment("fedper", **options).run()
    other = Experiment("fedper", engine="processes", workers=2, **options).run()
    assert torch.equal(final_rows(one), final_rows(other))


def test_outsiders_add_attacks_and_defences_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from coterie.robust.reducing import Reducer\n"
        "from coterie.scenarios.attacks import Attack\n\n"
        "@dataclass(frozen=True)\nclass Zero(Attack):\n"
        '    """Sends zeros."""\n    value: float = 0.0\n'
        "    def rows(self, sending):\n        return sending.trained * 0 + self.value\n\n"
        '@dataclass(frozen=True)\nclass Usual(Reducer):\n    """The mean."""\n'
    )
    options = {"attack": f"{file}:Zero:0.4:value=0.5", "defence": f"{file}:Usual+clip:9"}
    experiment = Experiment(
        "fedavg", partition=Dirichlet(clients=4, alpha=5.0), rounds=2, share=0.1, threads=1, **options
    )
    expected = experiment.run()
    experiment.run(out=tmp_path / "run", listeners=[StopAfter(1)])
    file.unlink()  # the run has a copy
    assert torch.equal(final_rows(resume(tmp_path / "run")), final_rows(expected))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sign-flip:1", "share = 1.0: of hostile clients, must lie between 0 and 1"),
        ("sign-flop:0.2", "unknown attack 'sign-flop'; did you mean 'sign-flip'"),
        ("noise:0.2:0", "times = 0.0: must be greater than 0"),
        ("noise:0.2:1:2", r"'noise' has 2 options \(share, times\), but more are given"),
    ],
)
def test_mistakes_are_told_in_a_line(text: str, problem: str) -> None:
    with pytest.raises(CoterieError, match=problem):
        made(ATTACKS, text)
    with pytest.raises(CoterieError, match=problem):
        tiny("fedavg", attack=text)


def attacked(method: str, attack: str) -> None:
    options: dict[str, Any] = {"partition": Dirichlet(clients=4, alpha=5.0), "validation": 0.2, "share": 0.1}
    found = Experiment(method, rounds=2, epochs=1, attack=f"{attack}:0.25", threads=1, **options).run()
    honest = [row for row in range(4) if str(row) not in found.summary["hostile"]]
    assert bool(final_rows(found)[honest].isfinite().all())


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
def test_every_method_lives_through_an_attack(method: str) -> None:
    attacked(method, list(ATTACKS)[list(METHODS).index(method) % len(ATTACKS)])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_method_lives_through_every_attack(method: str, attack: str) -> None:
    attacked(method, attack)
