"""The engine by measurement: chosen before the first round, said, written down; measurements are kept and age."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from coterie.client.recipe import phases
from coterie.methods import METHODS, FedRep
from coterie.partition import Iid
from coterie.rounds.listeners import Outcome, RoundReport
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.setup import engine_choice as auto
from coterie.setup import trials
from coterie.setup.engine_choice import (
    ENOUGH,
    LIFE,
    Measurements,
    Reconsider,
    choose,
    plain_way,
    with_choice,
    workload_of,
)
from coterie.setup.prepared import Prepared
from coterie.setup.trials import Offer, Rates, _foreseen, measure, typical
from coterie.setup.workload import MOST_EPOCHS, Piece, Round, Way, ways_beside_others, ways_of
from coterie.testing.toys import toy_data, toy_partition, with_validation
from support import final_rows, tiny

ADAPTIVE = Way("adaptive", 1, "contiguous")
THREADS = Way("serial", 2, "contiguous")
STACKED = Way("stacked", 1, "contiguous")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.setup.workload.cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def long(**options: Any) -> Experiment:
    """A run that is worth a trial, whatever its rounds take."""
    return tiny(**{"rounds": 10**6, **options})


def offer(monkeypatch: pytest.MonkeyPatch, seconds: dict[Way, float]) -> list[Sequence[Way]]:
    """Have trials measure these seconds a round; the ways that were to be measured each time."""
    asked: list[Sequence[Way]] = []

    def measured(prepared: Prepared, ways: Sequence[Way]) -> dict[Way, float]:
        asked.append(ways)
        return seconds

    monkeypatch.setattr(trials, "measure", measured)
    return asked


def never(*_: object) -> NoReturn:
    raise AssertionError("something was measured")


# What is open.


def test_the_default_is_auto() -> None:
    assert (Experiment().engine, Experiment().memory) == ("auto", "auto")
    assert Experiment().changed() == {}


@pytest.mark.usefixtures("two_cores")
def test_everything_is_open_unless_it_is_said() -> None:
    assert ways_of(tiny().prepare()) == [ADAPTIVE, STACKED]  # too small for several threads
    conv = Experiment(model="cnn", partition=Iid(clients=3)).prepare()
    assert ways_of(conv)[:2] == [ADAPTIVE, THREADS]
    assert len(ways_of(conv)) == 5
    assert ways_of(tiny(threads=1).prepare()) == [ADAPTIVE, STACKED]
    assert ways_of(tiny(threads=3).prepare()) == [Way("serial", 3, "contiguous"), Way("stacked", 3, "contiguous")]
    assert ways_of(tiny(memory="channels_last").prepare()) == [Way("adaptive", 1, "channels_last")]
    assert ways_beside_others(tiny().prepare()) == [Way("serial", 1, "contiguous"), STACKED]


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(("engine", "threads"), [("serial", 2), ("processes", 1), ("adaptive", 1)])
def test_the_memory_format_is_open_where_the_engine_is_named(engine: str, threads: int) -> None:
    conv = Experiment(model="cnn", engine=engine, partition=Iid(clients=3)).prepare()
    assert ways_of(conv) == [Way(engine, threads, memory) for memory in ("contiguous", "channels_last")]
    assert len(ways_of(Experiment(model="cnn", engine=engine, memory="channels_last").prepare())) == 1
    assert len(ways_of(tiny(engine=engine).prepare())) == 1  # no convolutions


# Short runs, and others about which there is nothing to choose.


def test_a_short_run_is_serial_and_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trials, "measure", never)
    monkeypatch.setattr(auto, "Measurements", never)
    found = tiny().run(tmp_path / "run")
    config = RunDirectory.open(tmp_path / "run").config()
    assert (config["engine"], config["threads"], config["memory"]) == ("serial", 0, "contiguous")
    assert "the run is short" in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    plain = tiny(engine="serial", memory="contiguous").run()
    assert torch.equal(final_rows(found), final_rows(plain))


def test_whether_a_run_is_short_depends_on_its_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, {STACKED: 1.0})
    assert choose(tiny().prepare()).way == plain_way(tiny())
    assert choose(long().prepare()).way == STACKED


def test_what_is_named_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "choose", never)
    prepared = long(engine="stacked", memory="contiguous").prepare()
    assert with_choice(prepared) is prepared


# The choice.


def test_the_fastest_is_chosen_said_and_written_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offer(monkeypatch, {ADAPTIVE: 2.0, STACKED: 1.0})
    monkeypatch.setattr(auto, "SHORT", 0.0)
    with caplog.at_level(logging.INFO, logger="coterie"):
        result = tiny("fedper").run(tmp_path / "run")
    told = "engine auto: stacked, 1 thread, contiguous (measured once: stacked, 1 thread, contiguous: 1 s a round; "
    assert any(told in record.getMessage() for record in caplog.records)
    assert told in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    config = RunDirectory.open(tmp_path / "run").config()
    assert (config["engine"], config["threads"], config["memory"]) == ("stacked", 1, "contiguous")
    assert result.summary["engine"] == "stacked"
    again = tiny("fedper", engine="stacked", threads=1, memory="contiguous").run()
    assert torch.equal(final_rows(result), final_rows(again))


def test_a_named_engine_keeps_its_threads_and_gets_a_memory_format(monkeypatch: pytest.MonkeyPatch) -> None:
    last = Way("serial", 3, "channels_last")
    offer(monkeypatch, {Way("serial", 3, "contiguous"): 2.0, last: 1.0})
    conv = Experiment(model="cnn", engine="serial", threads=3, rounds=10**6, partition=Iid(clients=3))
    chosen = with_choice(conv.prepare())
    assert (chosen.experiment.engine, chosen.experiment.threads) == ("serial", 3)
    assert chosen.experiment.memory == chosen.problem_base.layout.memory == "channels_last"


def test_a_trial_that_fails_is_no_reason_not_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("two clients are too few")

    monkeypatch.setattr(trials, "measure", fail)
    choice = choose(long().prepare())
    assert choice.way.engine in ("adaptive", "serial")
    assert choice.why == "nothing could be measured (RuntimeError: two clients are too few)"


# What is kept.


def test_measurements_are_kept_not_verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepared = long().prepare()
    # A moment at which the machine was busy has led to a mistake, which the next two measurements outvote.
    for seconds, best in (
        ({ADAPTIVE: 1.0, STACKED: 2.0}, ADAPTIVE),
        ({ADAPTIVE: 4.0, STACKED: 1.0}, STACKED),
        ({ADAPTIVE: 3.0, STACKED: 1.0}, STACKED),
    ):
        offer(monkeypatch, seconds)
        assert choose(prepared).way == best
    kept = json.loads((tmp_path / "cache" / "coterie" / "engines.json").read_text(encoding="utf-8"))
    (own,) = kept["workloads"].values()
    assert [one["seconds"][str(STACKED)] for one in own] == [2.0, 1.0, 1.0]
    assert "serial" not in json.dumps([list(one) for one in own])
    # With three of them nothing is measured any more …
    monkeypatch.setattr(trials, "measure", never)
    assert choose(prepared).way == STACKED
    assert "measured 3 times" in choose(prepared).why
    # … until they are a day old.
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + LIFE + 1)
    asked = offer(monkeypatch, {ADAPTIVE: 1.0, STACKED: 2.0})
    assert choose(prepared).way == ADAPTIVE
    assert len(asked) == 1


def test_measurements_belong_to_a_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = offer(monkeypatch, {ADAPTIVE: 1.0})
    for experiment in (long(), long(batch=3), long(method="fedper"), long(model="norm")):
        choose(experiment.prepare())
    assert len(asked) == 4
    assert len({workload_of(one.prepare()) for one in (long(), long(seed=1), long(lr=0.3), long(rounds=10**7))}) == 1


def test_rounds_that_disprove_measurements_have_them_forgotten() -> None:
    kept = Measurements("w")
    for seconds, left in ((1.1, 1), (9.0, 0)):
        kept.add({STACKED: 1.0})
        watching = Reconsider("w", foreseen=1.0)
        for number in range(3):
            watching.round(RoundReport(number + 1, [0], seconds={"train": seconds / 2, "evaluate": seconds / 2}))
        watching.end(Outcome(3))
        assert bool(kept.recent()) == bool(left)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": 9}', '{"format": 1, "workloads": 3}', '{"format": 1, "workloads": {"w": [1, {}]}}'],
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cache" / "coterie" / "engines.json"
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    assert Measurements("w").recent() == []
    for _ in range(ENOUGH + 1):
        Measurements("w").add({STACKED: 1.0})
    assert [one.seconds for one in Measurements("w").recent()] == [{STACKED: 1.0}] * ENOUGH


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    offer(monkeypatch, {STACKED: 1.0})
    assert choose(long().prepare()).way == STACKED


# The trials themselves.


def test_trials_measure_every_way_and_leave_no_trace() -> None:
    prepared = tiny("fedcac").prepare()
    ways = [ADAPTIVE, Way("serial", 1, "contiguous"), STACKED]
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    found = measure(prepared, ways)
    assert set(found) == set(ways)
    assert all(seconds > 0 for seconds in found.values())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_trials_leave_out_what_the_stacked_engine_declines() -> None:
    own_rule = tiny("per-fedavg").prepare()
    assert set(measure(own_rule, [ADAPTIVE, STACKED])) == {ADAPTIVE}


def test_rounds_are_foreseen_from_a_thread_s_work_and_what_the_cores_offer() -> None:
    """Clients of 5, 4 and 3 batches of 0.1 s and 20 tests of 0.01 s: 1.4 s of work."""
    round, rates, offer = Round((0, 1, 2), (5, 4, 3), 20.0), Rates(0.1, 0.01), Offer(alone=1.2, together=1.5)

    def seconds(engine: str, threads: int, given: Offer = offer) -> float:
        return _foreseen(round, Way(engine, threads, "contiguous"), rates, 2, given)

    assert seconds("serial", 1) == pytest.approx(1.2 * 1.4)
    assert seconds("serial", 2) == pytest.approx(1.4)  # several threads are timed by the clock
    # The longer of two shares has 7 batches; each worker tests half of the samples.
    assert seconds("processes", 1) == seconds("adaptive", 1) == pytest.approx(1.5 * (0.7 + 0.1))
    assert seconds("adaptive", 1, Offer(1.0, 2.0)) == pytest.approx(1.4)
    assert seconds("processes", 1, Offer(1.0, 2.0)) == pytest.approx(1.6)


def test_long_steps_are_not_tried_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacking saves the price of calls, of which long steps have none to speak of."""
    monkeypatch.setattr(trials, "LONG_STEP", 1e-9)
    assert set(measure(tiny().prepare(), [ADAPTIVE, STACKED])) == {ADAPTIVE}


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_can_be_tried(name: str) -> None:
    partition = with_validation(toy_partition(toy_data(), 4))
    assert set(measure(tiny(METHODS[name](), partition=partition, join=0.5).prepare(), [ADAPTIVE])) == {ADAPTIVE}


def test_a_whole_round_is_foreseen_from_pieces() -> None:
    prepared = tiny(epochs=5, evaluate_every=2).prepare()
    whole = Round.of(prepared)
    sizes = [len(index) for index in prepared.partition.train]
    assert whole.batches == tuple(-(-size // 10) for size in sizes)
    assert whole.tests == sum(len(index) for index in prepared.partition.test)  # twice, every second round
    sampled = Round.of(tiny(evaluate_clients=2).prepare())
    assert 2 * whole.tests > sampled.tests > whole.tests
    piece = Piece.of(prepared, "contiguous", [2, 0], batches=1)
    assert piece.batches == (1, 1)
    assert piece.epochs == 5
    assert piece.federation.clients == 2
    # The samples are those clients' own.
    own = prepared.data.inputs[torch.from_numpy(prepared.partition.train[2][:10])]
    assert torch.equal(piece.problem.inputs[piece.problem.train[0]], own)


def test_long_phases_of_a_method_are_not_tried_in_full() -> None:
    prepared = tiny(FedRep(head_epochs=1_000_000, body_epochs=1)).prepare()
    piece = Piece.of(prepared, "contiguous", [0], batches=1)
    tried = [phase.epochs for phase in phases(piece.work.recipe)]
    assert tried == [MOST_EPOCHS, 1]
    assert piece.epochs * sum(tried) == pytest.approx(1_000_001)


def test_single_disturbances_do_not_count() -> None:
    steady = {ADAPTIVE: 1.0, STACKED: 1.2}
    found = typical([steady, {ADAPTIVE: 9.0, STACKED: 1.2}, steady, {ADAPTIVE: 1.0, STACKED: 9.0}, steady])
    assert found[STACKED] / found[ADAPTIVE] == pytest.approx(1.2)
    # A machine that gets slower for everybody between passes changes nothing either.
    slower = [{way: seconds * level for way, seconds in steady.items()} for level in (1.0, 1.0, 3.0, 3.0, 3.0)]
    assert typical(slower)[STACKED] / typical(slower)[ADAPTIVE] == pytest.approx(1.2)
