"""Clients that drop out, are slow, come late or leave: to every method a round is one with those who answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.partition import Dirichlet
from coterie.report.onerun import run_content
from coterie.report.reading import read_run
from coterie.rng import numpy_stream
from coterie.rounds import sampler
from coterie.rounds.listeners import StopAfter
from coterie.rounds.round import Rounds
from coterie.rounds.sampler import Share, draw_cohort
from coterie.runs.experiment import Experiment
from coterie.runs.resume import resume
from coterie.scenarios.presence import (
    PRESENCES,
    Attendance,
    Available,
    Dropout,
    Late,
    Leave,
    Presence,
    Stragglers,
    Trace,
)
from support import Recording, final_rows, permuted_partition, rows_of, tiny, without_times

CLIENTS = 6


@pytest.fixture(scope="module")
def federation() -> Federation:
    return tiny("fedavg", clients=CLIENTS, rounds=10).prepare().federation()


def drawn(purpose: str, round: int, key: int) -> float:
    return float(numpy_stream(0, f"presence:{purpose}", round, key).random())


def test_who_drops_out_and_who_is_there_is_each_clients_own_draw(federation: Federation) -> None:
    cohort = torch.tensor([1, 2, 5])
    for round in (1, 2):
        answers = Dropout(probability=0.4).answers(federation, cohort, round).tolist()
        assert answers == [drawn("dropout", round, key) >= 0.4 for key in (1, 2, 5)]
        there = Available(probability=0.4).there(federation, (), round).tolist()
        assert there == [drawn("available", round, key) < 0.4 for key in range(CLIENTS)]
    assert bool(Dropout(probability=0.0).answers(federation, cohort, 1).all())
    assert not bool(Dropout(probability=1.0).answers(federation, cohort, 1).any())


def test_stragglers_worked_out_by_hand(federation: Federation) -> None:
    """Steps × 4 if slow × exp(0.25 · z), against twice the median number of steps."""
    chosen = Stragglers(share=0.5)
    steps = federation.steps(federation.everyone).tolist()
    slow = set(numpy_stream(0, "presence:stragglers").choice(CLIENTS, 3, replace=False).tolist())
    middle = sum(sorted(steps)[2:4]) / 2
    expected = []
    for client in range(CLIENTS):
        z = float(numpy_stream(0, "jitter", 3, client).standard_normal())
        factor = (4.0 if client in slow else 1.0) * torch.tensor(0.25 * z).exp().item()
        expected.append(steps[client] * factor)
    assert chosen.seconds(federation, federation.everyone, 3).tolist() == pytest.approx(expected, rel=1e-6)
    answers = chosen.answers(federation, federation.everyone, 3).tolist()
    assert answers == [one <= 2 * middle for one in expected]
    assert not any(answers[client] for client in slow)


def test_some_come_late_and_some_leave(federation: Federation) -> None:
    late = torch.stack([Late(share=0.5).there(federation, (), round) for round in range(1, 11)])
    assert late[0].sum() == 3
    assert bool(late[4:].all())  # all are there by the middle of ten rounds
    assert bool((late[1:] >= late[:-1]).all())
    assert bool(Late(share=0.5, by=2).there(federation, (), 2).all())
    left = torch.stack([Leave(share=0.5, after=3).there(federation, (), round) for round in range(1, 11)])
    assert bool(left[:3].all())
    assert left[-1].sum() == 3
    assert bool((left[1:] <= left[:-1]).all())


def test_a_trace_says_who_is_there(tmp_path: Path, federation: Federation) -> None:
    names = tuple("abcdef")
    path = tmp_path / "seen.csv"
    path.write_text("client,round,probability\nb,3,0\nb,5,1\na,1,0\n")
    found = [Trace(file=str(path)).there(federation, names, round).tolist() for round in (1, 2, 3, 4, 5)]
    assert [row[0] for row in found] == [False] * 5
    assert [row[1] for row in found] == [True, True, False, False, True]
    assert all(all(row[2:]) for row in found)
    half = tmp_path / "half.csv"
    half.write_text("client,probability\nc,0.5\n")
    seen = [bool(Trace(file=str(half)).there(federation, names, round)[2]) for round in range(1, 30)]
    assert seen == [drawn("trace", round, 2) < 0.5 for round in range(1, 30)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read as CSV"),
        ("client,share\na,1\n", "line 2 of .* must have the columns client, probability and perhaps round"),
        ("client,probability\na,1.5\n", "line 2 of .*: a round counts from 1, a probability lies from 0 to 1"),
        ("client,probability\nzoe,1\n", "names 'zoe', who is no client of this run"),
    ],
)
def test_traces_that_cannot_be_used_are_told_in_a_line(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "seen.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CoterieError, match=problem):
        tiny("fedavg", presence=f"trace:{path}").prepare()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("dropout:2", "probability = 2.0: must lie from 0 to 1"),
        ("dropout:-0.5", "probability = -0.5: must lie from 0 to 1"),
        ("stragglers:0.1:0.5", "slower = 0.5: must be at least 1"),
        ("late:0.2:1", "by = 1: must be at least 2"),
        ("away:0.1", "unknown presence 'away'"),
        ("trace", "presence 'trace' needs the option 'file'"),
    ],
)
def test_mistakes_are_told_in_a_line(text: str, problem: str) -> None:
    with pytest.raises(CoterieError, match=problem):
        tiny("fedavg", presence=text)


class Scripted(Presence):
    """Clients 1 and 4 never answer, and in round 2 nobody does."""

    def answers(self, federation: Federation, cohort: Tensor, round: int) -> Tensor:
        return ~torch.isin(cohort, torch.tensor([1, 4])) & (round != 2)


def played(experiment: Experiment, *parts: Presence) -> Iterator[tuple[Rounds, Recording, Any]]:
    prepared = experiment.prepare()
    engine = Recording(prepared.problem(), prepared.method, experiment.seed)
    attendance = Attendance(Share(experiment.join), parts, tuple(prepared.partition.names))
    rounds = Rounds(prepared.method, prepared.federation(), engine, attendance)
    for _ in range(experiment.rounds):
        yield rounds, engine, rounds.run_round()


def test_fedavg_is_the_mean_of_those_who_answered() -> None:
    before = torch.zeros(0)
    for rounds, engine, report in played(tiny("fedavg", clients=CLIENTS, rounds=3), Scripted()):
        held = rounds.federation["model"].shared[0].clone()
        if report.round == 2:
            assert report.cohort == []
            assert report.missing == list(range(CLIENTS))
            assert torch.equal(held, before)
            assert report.bytes["up"] == 0
            assert report.mixes == []
        else:
            assert report.cohort == [0, 2, 3, 5]
            assert report.missing == [1, 4]
            sizes = rounds.federation.sizes[engine.cohort].double()
            expected = (sizes / sizes.sum()) @ engine.trained.rows["model"].double()
            torch.testing.assert_close(held.double(), expected, rtol=1e-5, atol=1e-6)
        before = held
        assert report.received is not None
        assert report.trained is not None
        assert len(report.trained.judged) == CLIENTS
    assert rounds.federation.rounds_taken.tolist() == [2, 0, 2, 2, 0, 2]


class Elsewhere(Presence):
    """Clients 0 and 3 are never there, and in round 2 nobody is."""

    def there(self, federation: Federation, names: Sequence[str], round: int) -> Tensor:
        return ~torch.isin(federation.everyone, torch.tensor([0, 3])) & (round != 2)


def test_the_share_that_joins_is_drawn_from_those_who_are_there() -> None:
    experiment = tiny("fedavg", clients=CLIENTS, rounds=6, join=0.5)
    cohorts = [report.cohort for _, _, report in played(experiment, Elsewhere())]
    there = torch.tensor([1, 2, 4, 5])  # half of them are two, half of everybody were three
    expected = [there[draw_cohort(there, 0.5, experiment.seed, round)].tolist() for round in range(1, 7)]
    assert cohorts == [*expected[:1], [], *expected[2:]]
    assert {len(cohort) for cohort in cohorts} == {0, 2}
    assert len({tuple(cohort) for cohort in cohorts}) > 2  # not the same two each time


def test_whoever_is_missing_downloads_and_keeps_what_it_had() -> None:
    """The server pays for downloads of all who were asked, and owes the missing ones as much again."""
    asked, down, kept = 0, [], torch.zeros(0)
    for rounds, _, report in played(tiny("pfedsim", clients=CLIENTS, rounds=4), Scripted()):
        rows = rows_of(rounds.federation)
        if report.round > 2:
            torch.testing.assert_close(rows[[1, 4]], kept)
        kept = rows[[1, 4]].clone()
        asked += len(report.cohort) + len(report.missing)
        down.append(report.bytes["down"])
    assert asked == 4 * CLIENTS
    assert down[2] > 0


def same_state(one: Federation, other: Federation) -> None:
    first, second = dict(one.state()), dict(other.state())
    assert first.keys() == second.keys()
    for name, value in first.items():
        # Downloads are made for all who are asked at once: sums of another shape may be rounded otherwise.
        torch.testing.assert_close(second[name], value, rtol=1e-5, atol=1e-6, equal_nan=True, msg=name)


def missing_is_not_drawn(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those who answered as cohorts, and nobody missing, all rows, values and debts are the same."""
    options: dict[str, Any] = {"partition": Dirichlet(clients=5, alpha=5.0), "validation": 0.2, "share": 0.15}
    experiment = Experiment(method, rounds=4, epochs=1, threads=1, presence="dropout:0.4", **options)
    found = experiment.run()
    cohorts = {line.round: line.cohort for line in found.lines}
    assert any(line.missing for line in found.lines)
    monkeypatch.setattr(sampler, "draw_cohort", lambda keys, join, seed, round: torch.tensor(cohorts[round]))
    plain = Experiment(method, rounds=4, epochs=1, threads=1, **options).run()
    same_state(found.federation, plain.federation)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "fedper", "pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc"])
def test_a_missing_client_is_like_one_that_was_not_drawn(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing_is_not_drawn(method, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_so_it_is_for_every_method(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing_is_not_drawn(method, monkeypatch)


def test_without_behaviours_nothing_is_different() -> None:
    plain, idle = tiny("fedrema", clients=CLIENTS).run(), tiny("fedrema", clients=CLIENTS, presence="dropout:0").run()
    assert torch.equal(final_rows(plain), final_rows(idle))
    assert idle.summary["missing"] == {}
    assert "missing" not in plain.summary


def test_relabelled_clients_come_and_go_as_before() -> None:
    text = "dropout:0.2+available:0.8+stragglers:0.3+late:0.3+leave:0.3"
    first = tiny("fedper", clients=CLIENTS, presence=text, rounds=5, join=0.8)
    partition, order = permuted_partition(first.partition)
    other = tiny("fedper", clients=CLIENTS, presence=text, rounds=5, join=0.8, partition=partition).run()
    torch.testing.assert_close(final_rows(other), final_rows(first.run())[list(order)])


def test_a_resumed_run_ends_the_same_and_the_report_tells_of_it(tmp_path: Path) -> None:
    text = "dropout:0.5+late:0.3"
    whole = tiny("fedtc", clients=CLIENTS, presence=text, rounds=5)
    expected = whole.run()
    whole.run(out=tmp_path / "run", listeners=[StopAfter(2)])
    found = resume(tmp_path / "run", experiment=whole)
    same_state(found.federation, expected.federation)
    assert without_times(found.summary["accuracy"]) == without_times(expected.summary["accuracy"])
    assert found.summary["missing"] == expected.summary["missing"] != {}
    told = run_content(read_run(tmp_path / "run"))["wrong"]
    assert any(line.startswith("clients that were asked did not answer") for line in told)


def test_outsiders_may_add_behaviours() -> None:
    PRESENCES["scripted"] = Scripted
    try:
        found = tiny("fedavg", clients=CLIENTS, presence="scripted+dropout:0").run()
    finally:
        del PRESENCES["scripted"]
    assert found.summary["missing"]["1"] == [1, 2, 3]
