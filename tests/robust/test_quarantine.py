"""Uploads that jump are set aside and named, their clients let back in; honest clients are left alone."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.data import Dataset
from coterie.deployment.messages import Packed
from coterie.deployment.wire import Parcel, pack, unpack
from coterie.engines import Serial, Trained, Work
from coterie.errors import CoterieError
from coterie.partition import Dirichlet
from coterie.robust.quarantine import Quarantine, SetAside, distances, jump
from coterie.rounds.listeners import RoundReport, StopAfter
from coterie.rounds.round import Rounds
from coterie.rounds.stages import Incoming
from coterie.runs.experiment import Experiment
from coterie.runs.resume import resume
from coterie.testing.together import CLASSES, WIDTH, Together, TrialAgreement, simulated, site_data
from support import tiny

CLIENTS, BAD = 6, 2


def plain_verdict(values: list[float], past: list[list[float]], quarantine: float) -> list[bool]:
    """The rule as it is written down, with Python's numbers."""

    def spread(numbers: list[float]) -> float:
        return max(1.4826 * median(abs(one - median(numbers)) for one in numbers), 0.25)

    logs = [math.log(1 + value / median(values)) for value in values]
    verdict = []
    for log, own in zip(logs, past, strict=True):
        standing = log - median(logs)
        away = standing / spread(logs)
        jumped = (standing - median(own)) / spread(own) if len(own) >= 3 else 0.0
        verdict.append(away > 2 * quarantine or (away > quarantine and jumped > quarantine))
    return verdict


def watched(rounds: int = 3) -> tuple[Federation, Quarantine]:
    federation, quarantine = tiny("fedavg", clients=CLIENTS).prepare().federation(), Quarantine(6.0, rounds)
    quarantine.begin(federation)
    return federation, quarantine


def moved(
    watch: tuple[Federation, Quarantine], lengths: list[float], losses: list[float | None] | None = None
) -> dict[int, str]:
    """A round in which clients move the model so far, each in a direction of its own."""
    federation, quarantine = watch
    everything, ids = federation.layout.everything, torch.arange(len(lengths))
    steps = torch.zeros(len(lengths), everything.size)
    for client, length in enumerate(lengths):
        steps[client, client] = length
    held = {"model": federation["model"].rows(ids) + steps}
    told: list[float | None] = [1.0] * len(lengths) if losses is None else losses
    return quarantine.set_aside(federation, Incoming(ids, held, {"model": everything}, {}, told))


def test_distances_worked_out_by_hand() -> None:
    """log(1 + 40) − log(1 + 1) = 3.0204, in units of 0.25: all others are alike."""
    standing, away = distances(torch.tensor([1.0, 1.0, 40.0, 1.0, 1.0], dtype=torch.float64))
    assert float(standing[2]) == pytest.approx(math.log(41 / 2))
    assert float(away[2]) == pytest.approx(4 * math.log(41 / 2))
    # Others that differ are a wider unit: the logs are those of 2, 3, 5, 9 and 17, their median is log 5, and that of
    # the deviations log(9/5).
    standing, away = distances(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64))
    assert float(away[4]) == pytest.approx(math.log(17 / 5) / (1.4826 * math.log(9 / 5)))


def test_a_jump_worked_out_by_hand() -> None:
    past = torch.tensor([[0.0, 1.0, 3.0], [0.5, 0.5, torch.nan]], dtype=torch.float64)
    found = jump(torch.tensor([7.0, 7.0], dtype=torch.float64), past)
    assert found.tolist() == pytest.approx([(7 - 1) / (1.4826 * 1), 0.0])  # two rounds say nothing
    assert jump(torch.tensor([math.nan, 7.0]).double(), past).tolist() == [0.0, 0.0]  # and neither does this one


@pytest.mark.parametrize(("length", "out"), [(1.0, False), (8.0, False), (38.0, False), (41.0, True), (1e6, True)])
def test_a_newcomer_must_be_forty_times_off(length: float, out: bool) -> None:
    federation = watched()
    found = moved(federation, [0.5, 0.5, 0.5 * length, 0.5, 0.5, 0.5])
    assert list(found) == ([BAD] if out else [])


@pytest.mark.parametrize(("length", "out"), [(1.0, False), (7.5, False), (8.5, True)])
def test_whoever_has_a_past_must_not_jump_eightfold(length: float, out: bool) -> None:
    federation = watched()
    for _ in range(3):
        assert moved(federation, [0.5] * CLIENTS) == {}
    found = moved(federation, [0.5, 0.5, 0.5 * length, 0.5, 0.5, 0.5])
    assert list(found) == ([BAD] if out else [])
    if out:
        assert found[BAD] == "its change of 'model' is 8.5 times what is usual in the round"


def test_clients_that_always_differ_and_rounds_in_which_all_change_are_no_jump() -> None:
    federation = watched()
    for scale in (1.0, 1.0, 1.0, 100.0, 1e-4):
        assert moved(federation, [scale, scale, 30 * scale, scale, scale, 0.1 * scale]) == {}


def test_a_loss_that_jumps_is_seen_and_none_says_nothing() -> None:
    federation = watched()
    quiet: list[float | None] = [0.5, 0.5, 0.5, 0.5, 0.5, None]
    for _ in range(3):
        assert moved(federation, [1.0] * CLIENTS, quiet) == {}
    assert moved(federation, [1.0] * CLIENTS, [0.5, 20.0, 0.5, 0.5, 0.5, None]) == {}
    # A tenth of the first median is added to all: 32.95 + 0.05 is 60 times 0.5 + 0.05.
    assert moved(federation, [1.0] * CLIENTS, [0.5, 32.95, 0.5, 0.5, 0.5, None]) == {
        1: "its loss is 60 times what is usual in the round"
    }
    assert list(moved(federation, [1.0] * CLIENTS, [0.5, 0.5, math.inf, 0.5, 0.5, None])) == [1, 2]


def test_of_two_jumps_the_upload_is_the_one_that_is_named() -> None:
    losses: list[float | None] = [1.0, 1.0, 1e6, 1.0, 1.0, 1.0]
    found = moved(watched(), [0.5, 0.5, 50.0, 0.5, 0.5, 0.5], losses)
    assert found == {BAD: "its change of 'model' is 100 times what is usual in the round"}


def test_measurements_count_and_columns_without_a_former_value_do_not() -> None:
    federation, quarantine = watched()
    ids, everything = torch.arange(CLIENTS), federation.layout.everything
    rows = federation["model"].rows(ids)
    told = torch.ones(CLIENTS, 3)
    told[4] = torch.tensor([1e9, torch.nan, 0.0])
    found = quarantine.set_aside(federation, Incoming(ids, {}, {}, {"means": told}, [None] * CLIENTS))
    assert list(found) == [4]
    assert "'means'" in found[4]
    local = tiny("local", clients=CLIENTS).prepare().federation()
    quarantine.begin(local)
    local["model"].tracks.trained(ids, Columns())  # nobody sent anything
    rows[3] += 1e6
    incoming = Incoming(ids, {"model": rows}, {"model": everything}, {}, [None] * CLIENTS)
    assert quarantine.set_aside(local, incoming) == {}


def test_it_counts_again_after_so_many_rounds_without_a_jump() -> None:
    federation = watched(rounds=2)
    calm, wild = [1.0] * CLIENTS, [1.0, 1.0, 50.0, 1.0, 1.0, 1.0]
    rounds = [wild, calm, wild, calm, calm, calm]
    found = [moved(federation, lengths) for lengths in rounds]
    assert [list(one) for one in found] == [[BAD]] * 5 + [[]]
    assert found[3][BAD] == "it is still in quarantine (rounds without a jump that are left: 1)"


def test_few_uploads_are_not_judged_and_let_nobody_back() -> None:
    federation = watched()
    moved(federation, [1.0, 50.0, 1.0, 1.0, 1.0, 1.0])
    for _ in range(5):
        assert list(moved(federation, [99.0, 1.0])) == [1]


def test_three_uploads_are_enough_to_be_judged() -> None:
    assert list(moved(watched(), [1.0, 1.0, 50.0])) == [BAD]


def test_verdicts_are_those_of_the_plain_rule() -> None:
    stream, watch = np.random.default_rng(0), watched()
    federation, _ = watch
    past: list[list[float]] = [[] for _ in range(CLIENTS)]
    verdicts = 0
    for _ in range(40):
        lengths = np.exp(stream.normal(size=CLIENTS)) * np.where(stream.random(CLIENTS) < 0.05, 300, 1)
        expected = plain_verdict(lengths.tolist(), [own[-20:] for own in past], 6.0)
        left = federation.values["quarantine.left"].tolist()
        found = moved(watch, lengths.tolist(), [None] * CLIENTS)
        assert [client in found and "times" in found[client] for client in range(CLIENTS)] == expected
        assert {client for client in range(CLIENTS) if expected[client] or left[client]} == set(found)
        logs = np.log1p(lengths / median(lengths))
        for client in set(range(CLIENTS)) - set(found):
            past[client].append(float(logs[client] - median(logs)))
        verdicts += sum(expected)
    assert verdicts > 3


def boosted(before: Tensor, row: Tensor) -> Tensor:
    """A model replacement: the change is sent a hundred times as large."""
    return before + 100 * (row - before)


class Attacked(Serial):
    """One client's upload is boosted in a round."""

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        return boosted_in_round_4(federation, super().train(federation, work, cohort))


def boosted_in_round_4(federation: Federation, trained: Trained) -> Trained:
    if federation.round == 4:
        row = trained.rows["model"][BAD]
        row.copy_(boosted(federation["model"].rows(torch.tensor([BAD]))[0], row))
    return trained


def six(method: str, **options: Any) -> TrialAgreement:
    names = tuple(f"site-{number}" for number in range(CLIENTS))
    training = {"rounds": 9, "epochs": 1, "batch": 8, "lr": 0.05, "quarantine": 6.0, "quarantine_rounds": 2}
    settings = {"shape": (WIDTH,), "model": "mlp", "least_sites": 1, **training, **options}
    return TrialAgreement(name="six", sites=names, classes=CLASSES, method=method, **settings)


def datas() -> list[Dataset]:
    return [site_data(number, 20 + 4 * number) for number in range(CLIENTS)]


def set_aside(report: RoundReport) -> dict[int, str]:
    """Whose uploads were set aside in a round, and why."""
    note = report.parts.get("quarantine")
    assert note is None or isinstance(note, SetAside)
    return {} if note is None else dict(zip(note.clients, note.reasons, strict=True))


def attacked(experiment: Experiment) -> tuple[Rounds, list[dict[int, str]]]:
    prepared = experiment.prepare()
    engine = Attacked(prepared.problem(), prepared.method, experiment.seed)
    rounds = prepared.rounds(engine)
    return rounds, [set_aside(rounds.run_round()) for _ in range(experiment.rounds)]


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "pfedsim", "fedrema"])
def test_simulation_and_network_set_the_same_uploads_aside(method: str, tmp_path: Path) -> None:
    agreement = six(method)
    rounds, found = attacked(simulated(agreement, datas()))
    assert [list(one) for one in found] == [[]] * 3 + [[BAD]] * 3 + [[]] * 3
    together = Together(agreement, tmp_path, dict(zip(agreement.sites, datas(), strict=True)))
    together.admit()
    while not together.server.finished:
        federation = together.server.federation
        for name, task in together.server.open_round(list(agreement.sites)).items():
            answer = together.answer(name, task)
            if name == agreement.sites[BAD] and federation.round == 4:
                answer = tampered(answer, together.server.expected_answer(), federation)
            together.server.receive(name, answer)
        together.reports.append(together.server.close_round())
    named = [list(report.quarantined) for report in together.reports]
    assert named == [[agreement.sites[client] for client in one] for one in found]
    assert [agreement.sites[BAD] in report.trained for report in together.reports] == [not one for one in found]
    for slot, ours in together.server.federation.slots.items():
        theirs = rounds.federation[slot]
        torch.testing.assert_close(ours.shared, theirs.shared, atol=1e-6, rtol=0)
        torch.testing.assert_close(ours.own, theirs.own, atol=1e-6, rtol=0)
    assert together.server.federation.rounds_taken.tolist() == [9, 9, 6, 9, 9, 9]
    for name in ("quarantine.past", "quarantine.left"):
        torch.testing.assert_close(
            together.server.federation.values[name], rounds.federation.values[name], equal_nan=True, atol=1e-5, rtol=0
        )


def tampered(answer: Packed, expected: Any, federation: Federation) -> Packed:
    parcel = unpack(answer, expected)
    before = federation["model"].rows(torch.tensor([BAD]))[0]
    return pack(Parcel({**parcel.tensors, "slot.model": boosted(before, parcel.tensors["slot.model"])}, parcel.note))


@pytest.mark.thorough
def test_a_replaced_model_reaches_nobody() -> None:
    """Without a quarantine, everybody would be far from where they are without an attack."""
    calm = simulated(six("fedavg", rounds=4), datas()).run().federation["model"].shared
    rows = [
        attacked(simulated(six("fedavg", rounds=4, quarantine=limit), datas()))[0].federation["model"].shared
        for limit in (6.0, 0.0)
    ]
    guarded, exposed = ((row - calm).norm() for row in rows)
    assert guarded < exposed / 10


@pytest.mark.thorough
def test_it_is_named_in_log_files_and_summary_and_survives_a_resumption(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Serial.train

    def train(self: Serial, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        return boosted_in_round_4(federation, original(self, federation, work, cohort))

    monkeypatch.setattr(Serial, "train", train)
    experiment = simulated(six("fedavg", rounds=8), datas())
    with caplog.at_level(logging.WARNING, "coterie"):
        whole = experiment.run(tmp_path / "whole")
    assert whole.summary["quarantined"] == {"site-2": [4, 5, 6]}
    assert "round 4: the upload of client site-2 is set aside: its change of 'model' is" in caplog.text
    assert [line.quarantined for line in whole.lines] == [[]] * 3 + [[2]] * 3 + [[]] * 2
    experiment.run(tmp_path / "parts", listeners=[StopAfter(5)])
    again = resume(tmp_path / "parts", experiment=experiment)
    assert again.summary["quarantined"] == whole.summary["quarantined"]
    assert torch.equal(again.federation["model"].shared, whole.federation["model"].shared)


METHODS = (
    *("fedavg", "fedper", "fedprox", "fedcac", "pfedsim", "fedrema", "pfedcs", "fedtc", "fedamp", "ditto"),
    *("scaffold", "fedrep", "fedproto", "lg-fedavg", "fedbabu", "moon", "fedpac", "cfl", "fedrod", "fedala"),
)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(len(METHODS)))
def test_honest_clients_of_a_skewed_partition_are_left_alone(seed: int) -> None:
    """Twenty runs: methods, rates, epochs, cohorts and partitions vary."""
    result = Experiment(
        METHODS[seed],
        partition=Dirichlet(clients=8, alpha=0.1),
        rounds=6,
        epochs=1 + seed % 2,
        lr=(0.01, 0.05, 0.1)[seed % 3],
        join=(1.0, 0.75)[seed % 2],
        share=0.5,
        seed=seed,
        threads=1,
        evaluate_every=6,
        quarantine=6.0,
    ).run()
    assert result.summary["quarantined"] == {}


def test_without_a_quarantine_nothing_is_remembered() -> None:
    federation = tiny("fedavg").prepare().federation()
    assert not any("quarantine" in name for name, _ in federation.state())


@pytest.mark.parametrize("value", [0.5, -1.0])
def test_a_quarantine_of_less_than_one_deviation_is_refused(value: float) -> None:
    with pytest.raises(CoterieError, match="must be at least 1 "):
        tiny("fedavg", quarantine=value)
