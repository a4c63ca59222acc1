"""Listeners: what they are told and in which order, how they end a run, and what is left of it then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import to_builtins

from coterie import resume
from coterie.cli import main
from coterie.engines.base import Engine, Trained, Work
from coterie.engines.serial import Serial
from coterie.errors import CoterieError
from coterie.partition import Iid
from coterie.rounds.evaluate import Evaluation
from coterie.rounds.judge import Judge
from coterie.rounds.listeners import Listener, Outcome, RoundReport, Start
from coterie.rounds.round import Rounds
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.setup.prepared import Prepared
from listening import EachRound
from support import final_rows, tiny, without_times

pytestmark = pytest.mark.thorough


class Diary(Listener):
    """Writes down all it is told, as `[prefix]what`."""

    def __init__(self, notes: list[str] | None = None, prefix: str = "") -> None:
        self.notes = [] if notes is None else notes
        self._prefix = prefix

    def _note(self, text: str) -> None:
        self.notes.append(self._prefix + text)

    def begin(self, start: Start) -> None:
        self.start = start
        self._note(f"begin {start.first_round}")

    def delivered(self, report: RoundReport, work: Work) -> None:
        self._note(f"delivered {report.round}")

    def clients_done(self, round: int, done: int, total: int) -> None:
        self._note(f"{done} of {total}")

    def trained(self, report: RoundReport, trained: Trained) -> None:
        self._note(f"trained {report.round}")

    def round(self, report: RoundReport) -> None:
        self._note(f"round {report.round}")

    def end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._note(f"end {outcome.rounds}")


class Stop(Listener):
    """Stops the run after a round."""

    def __init__(self, round: int, reason: str = "enough") -> None:
        self._round, self._reason = round, reason

    def round(self, report: RoundReport) -> None:
        if report.round == self._round:
            report.stop(self._reason)


class BrokenError(Exception):
    """A listener has a bug."""


class Break(Listener):
    """Fails when it is told something (in a round of that number)."""

    def __init__(self, moment: str, round: int = 2) -> None:
        self._at = round
        setattr(self, moment, getattr(self, f"_{moment}"))

    def _begin(self, start: Start) -> None:
        raise BrokenError

    def _delivered(self, report: RoundReport, work: Work) -> None:
        self._fail_in(report.round)

    def _clients_done(self, round: int, done: int, total: int) -> None:
        if done == 1:
            self._fail_in(round)

    def _trained(self, report: RoundReport, trained: Trained) -> None:
        self._fail_in(report.round)

    def _round(self, report: RoundReport) -> None:
        self._fail_in(report.round)

    def _end(self, outcome: Outcome) -> None:
        raise BrokenError

    def _fail_in(self, round: int) -> None:
        if round == self._at:
            raise BrokenError


def named(method: str = "pfedsim", **options: Any) -> Experiment:
    """An experiment that its configuration describes in full; pFedSim mixes at download from its second half on."""
    settings: dict[str, Any] = {"rounds": 6, "epochs": 1, "batch": 64, "join": 0.75, "threads": 1, **options}
    return Experiment(method, "digits", Iid(clients=4), "mlp", **settings)


def same_run(one: Path, other: Path) -> None:
    """Rows, metrics, mixes and summary of two runs are the same, bit for bit."""
    first, second = RunDirectory.open(one), RunDirectory.open(other)
    assert (one / "rows.safetensors").read_bytes() == (other / "rows.safetensors").read_bytes()
    assert without_times(first.lines()) == without_times(second.lines())
    assert without_times(first.summary()) == without_times(second.summary())
    assert first.recorded_rounds() == second.recorded_rounds()
    for round in first.recorded_rounds():
        name = f"mixes/{round:05d}.safetensors"
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_listeners_are_told_in_order() -> None:
    notes: list[str] = []
    first, second = Diary(notes, "a: "), Diary(notes, "b: ")
    tiny(rounds=2, clients=2).run(listeners=[first, second])
    told = ["begin 1"]
    for number in (1, 2):
        told += [f"delivered {number}", "1 of 2", "2 of 2", f"trained {number}", f"round {number}"]
    told.append("end 2")
    assert notes == [f"{prefix}{what}" for what in told for prefix in ("a: ", "b: ")]


def test_the_beginning_says_what_is_to_come_and_the_end_what_became_of_it() -> None:
    diary = Diary()
    result = tiny("fedper", held_out=1).run(listeners=[diary])
    start, outcome = diary.start, diary.outcome
    names = [client["client"] for client in result.summary["clients"]]
    assert (start.method, list(start.clients), start.rounds, start.first_round) == ("fedper", names, 3, 1)
    assert start.federation is result.federation
    assert isinstance(start.prepared, Prepared)
    assert (outcome.rounds, outcome.summary, outcome.stopped, outcome.error) == (3, result.summary, None, None)
    assert "stopped" not in result.summary


def test_reports_are_complete_when_listeners_get_them(tmp_path: Path) -> None:
    """Bytes are counted, and the round is on disk."""
    run = tmp_path / "run"
    seen: list[tuple[dict[str, int], int]] = []
    listener = EachRound(lambda report: seen.append((report.bytes, len(RunDirectory.open(run).lines()))))
    result = tiny("fedper").run(run, [listener])
    assert seen == [(to_builtins(line.bytes), line.round) for line in result.lines]
    assert seen[0][0]["up"] > 0


def test_what_is_no_listener_is_refused_before_anything_happens(tmp_path: Path) -> None:
    wrong: Any = lambda report: None  # noqa: E731 (the mistake itself)
    with pytest.raises(CoterieError, match="must be a list, each of it a Listener, a class that extends Listener"):
        tiny().run(tmp_path / "run", listeners=[wrong])
    with pytest.raises(CoterieError, match="must be a list"):
        tiny().run(tmp_path / "run", listeners=wrong)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["serial", "stacked", "processes"])
def test_engines_say_how_many_clients_are_trained(engine: str) -> None:
    seen: list[tuple[int, int, int]] = []

    class Count(Listener):
        def clients_done(self, round: int, done: int, total: int) -> None:
            seen.append((round, done, total))

    named("fedavg", rounds=2, engine=engine, join=1.0, **({"workers": 2} if engine == "processes" else {})).run(
        listeners=[Count()]
    )
    for number in (1, 2):
        done = [count for round, count, total in seen if round == number and total == 4]
        assert done[-1] == 4
        assert done == sorted(set(done))
        if engine == "serial":
            assert done == [1, 2, 3, 4]


def test_a_stacked_cohort_that_is_trained_one_by_one_says_so_too() -> None:
    diary = Diary()
    tiny("pfedme", clients=2, rounds=1, engine="stacked").run(listeners=[diary])
    assert [note for note in diary.notes if " of " in note] == ["1 of 2", "2 of 2"]


def test_a_runtime_error_of_a_listener_is_not_taken_for_one_of_the_engine() -> None:
    class Fail(Listener):
        def clients_done(self, round: int, done: int, total: int) -> None:
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        tiny(engine="stacked").run(listeners=[Fail()])


def test_engines_without_anybody_to_tell_train_all_the_same() -> None:
    prepared = tiny().prepare()
    engine: Engine = prepared.engine(prepared.problem())
    assert engine.on_client is None
    assert Rounds(prepared.method, prepared.federation(), engine).run_round().round == 1


def test_a_listener_stops_a_run() -> None:
    diary = Diary()
    result = tiny(rounds=5).run(listeners=[Stop(2, "good enough"), Stop(2, "too late"), diary])
    assert (result.summary["stopped"], result.summary["rounds"]) == ("good enough", 2)
    assert [line.round for line in result.lines] == [1, 2]
    assert diary.notes[-2:] == ["round 2", "end 2"]
    assert (diary.outcome.stopped, diary.outcome.summary) == ("good enough", result.summary)
    shorter = tiny(rounds=2).run()
    assert torch.equal(final_rows(result), final_rows(shorter))
    assert result.summary["accuracy"] == shorter.summary["accuracy"]
    assert result.accuracy().received.mean == shorter.accuracy().received.mean


def test_a_stop_in_the_last_round_is_none() -> None:
    assert "stopped" not in tiny(rounds=2).run(listeners=[Stop(2)]).summary


@pytest.mark.parametrize("checkpoint_every", [0, 3])
def test_a_stopped_run_is_recorded_and_carried_on(tmp_path: Path, checkpoint_every: int) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    named(checkpoint_every=checkpoint_every, held_out=1).run(stopped, [Stop(4, "no better for a while")])
    directory = RunDirectory.open(stopped)
    assert directory.stopped
    assert not directory.finished
    recorded = directory.summary()
    assert recorded is not None
    assert (recorded["stopped"], recorded["rounds"]) == ("no better for a while", 4)
    assert directory.checkpointed_round() == 4
    diary = Diary()
    resume(stopped, [diary])
    assert diary.notes[0] == "begin 5"
    assert directory.finished
    assert not directory.stopped
    named(checkpoint_every=checkpoint_every, held_out=1).run(whole)
    same_run(stopped, whole)


def test_a_run_may_be_stopped_before_and_between_evaluations() -> None:
    early = tiny(rounds=9, evaluate_every=3).run(listeners=[Stop(2)])
    assert early.summary["accuracy"] == early.summary["worst_decile"] == early.summary["std"] == {}
    assert early.summary["clients"][0].keys() == {"client", "size"}
    with pytest.raises(CoterieError, match="stopped after round 2, before its first evaluation"):
        early.accuracy()
    later = tiny(rounds=9, evaluate_every=3).run(listeners=[Stop(5)])
    assert later.summary["rounds"] == 5
    assert later.accuracy().received.by_client.tolist() == later.lines[2].received.values["accuracy"]
    assert later.summary["clients"][1]["trained"] == later.lines[2].trained.values["accuracy"][1]


def test_show_and_resume_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    named("fedper").run(run, [Stop(2, "out of coffee")])
    assert main(["show", str(run)]) == 0
    assert "stopped after round 2 of 6: out of coffee" in capsys.readouterr().out
    assert main(["resume", str(run)]) == 0
    assert "stopped" not in capsys.readouterr().out
    unevaluated = tmp_path / "unevaluated"
    named("fedper", evaluate_every=3).run(unevaluated, [Stop(2)])
    assert main(["show", str(unevaluated)]) == 0
    assert "worst tenth" not in capsys.readouterr().out


@pytest.mark.parametrize("method", ["pfedsim", "scaffold"])
@pytest.mark.parametrize(
    ("moment", "kept"), [("begin", 0), ("delivered", 4), ("clients_done", 4), ("trained", 4), ("round", 5)]
)
def test_a_broken_listener_leaves_a_run_that_can_be_resumed(
    tmp_path: Path, moment: str, kept: int, method: str
) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    diary = Diary()
    with pytest.raises(BrokenError) as caught:
        named(method).run(broken, [Break(moment, round=5), diary])
    directory = RunDirectory.open(broken)
    assert directory.checkpointed_round() == kept == len(directory.lines())
    way_on = f"carries on after round {kept}" if kept else "starts again from round 1"
    assert caught.value.__notes__ == [f"coterie.resume('{broken}') or 'coterie resume {broken}' {way_on}"]
    if moment == "begin":
        assert diary.notes == []
    else:
        assert (diary.notes[-1], diary.outcome.error) == (f"end {kept}", caught.value)
    resume(broken)
    named(method).run(whole)
    same_run(broken, whole)


def test_an_error_of_the_engine_is_as_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Serial.train

    def fail(self: Serial, federation: Any, work: Any, cohort: Any) -> Trained:
        if federation.round == 5:
            raise BrokenError
        return train(self, federation, work, cohort)

    with monkeypatch.context() as patched:
        patched.setattr(Serial, "train", fail)
        with pytest.raises(BrokenError):
            named().run(tmp_path / "broken")
    assert RunDirectory.open(tmp_path / "broken").checkpointed_round() == 4
    resume(tmp_path / "broken")
    named().run(tmp_path / "whole")
    same_run(tmp_path / "broken", tmp_path / "whole")


def test_a_round_that_breaks_off_half_done_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slots are written already: the run falls back to the last checkpoint."""

    evaluate = Judge.evaluate_received

    def fail(self: Judge, clients: torch.Tensor | None = None, keep_scores: bool = False) -> Evaluation:
        if self.federation.round == 5:
            raise BrokenError
        return evaluate(self, clients, keep_scores)

    with monkeypatch.context() as patched:
        patched.setattr(Judge, "evaluate_received", fail)
        with pytest.raises(BrokenError):
            named(checkpoint_every=2).run(tmp_path / "broken")
    assert RunDirectory.open(tmp_path / "broken").checkpointed_round() == 4
    resume(tmp_path / "broken")
    named(checkpoint_every=2).run(tmp_path / "whole")
    same_run(tmp_path / "broken", tmp_path / "whole")


def test_an_experiment_of_own_objects_says_that_it_is_needed_again(tmp_path: Path) -> None:
    with pytest.raises(BrokenError) as caught:
        tiny().run(tmp_path / "run", [Break("round")])
    assert caught.value.__notes__ == [
        f"coterie.resume('{tmp_path / 'run'}', experiment=…) with the same experiment carries on after round 2"
    ]
    with pytest.raises(BrokenError) as unkept:
        tiny().run(listeners=[Break("round")])
    assert not hasattr(unkept.value, "__notes__")


def test_a_listener_that_breaks_at_the_end_spoils_nothing(tmp_path: Path) -> None:
    diary = Diary()
    with pytest.raises(BrokenError) as caught:
        named(rounds=2).run(tmp_path / "run", [Break("end"), diary])
    assert RunDirectory.open(tmp_path / "run").finished
    assert not hasattr(caught.value, "__notes__")
    assert diary.outcome.error is caught.value


def test_an_error_at_the_end_does_not_hide_the_one_that_ended_the_run() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        tiny().run(listeners=[Break("end"), EachRound(lambda report: 1 / 0)])
    assert caught.value.__notes__ == ["Break.end failed as well (BrokenError: )"]


def test_a_finished_run_has_no_checkpoint_that_was_not_asked_for(tmp_path: Path) -> None:
    named(rounds=2).run(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
