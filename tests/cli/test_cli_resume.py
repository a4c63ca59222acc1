"""Runs that are killed or interrupted, and carried on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cli_tools import SMALL, Answer, assert_same_run, call, finish, start

from coterie.rounds.progress import RoundProgress
from support import PATIENCE

pytestmark = pytest.mark.thorough

RUN = ("run", "fedper", "--clients", "5", "--rounds", "30", "--epochs", "2", "--join", "0.6", "--threads", "1")
# So that the run cannot be over before it is stopped, it goes no further than into this round's training.
NO_FURTHER = """
import time
from coterie.engines import Serial

train = Serial.train

def wait(engine, federation, work, cohort):
    while federation.round == 12:
        time.sleep(60)
    return train(engine, federation, work, cohort)

Serial.train = wait
"""


def stopped(path: Path, by: signal.Signals) -> Answer:
    """Start a run in a process of its own and stop it in the middle."""
    process = start(*RUN, "--checkpoint-every", "3", "--out", path, before=NO_FURTHER)
    deadline = time.monotonic() + PATIENCE
    while not (path / "checkpoint.safetensors").is_file():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(by)
    answer = finish(process)
    assert not (path / "summary.json").exists(), "the run was over before it could be stopped"
    return answer


def test_a_killed_run_is_carried_on_to_the_same_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert stopped(killed, signal.SIGKILL).code == -signal.SIGKILL
    # What a kill in the middle of writing a line would leave.
    with (killed / "rounds.jsonl").open("a") as file:
        file.write('{"round": 99, "coh')
    answer = call(capsys, "resume", killed, "--json")
    assert answer.code == 0
    assert call(capsys, *RUN, "--checkpoint-every", "3", "--out", whole).code == 0
    assert_same_run(killed, whole)
    assert answer.json["accuracy"] == call(capsys, "show", whole, "--json").json["accuracy"]


def test_ctrl_c_says_how_to_carry_on(tmp_path: Path) -> None:
    path = tmp_path / "interrupted"
    answer = stopped(path, signal.SIGINT)
    assert answer.code == 130
    assert answer.out == ""
    last = answer.err.splitlines()[-1]
    assert last.startswith(f"coterie: interrupted; 'coterie resume {path}' carries on after round ")
    assert "Traceback" not in answer.err


def test_sigterm_keeps_the_last_round_and_says_how_to_carry_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, whole = tmp_path / "ended", tmp_path / "whole"
    answer = stopped(path, signal.SIGTERM)
    assert answer.code == 143
    assert answer.out == ""
    last = answer.err.splitlines()[-1]
    done = len((path / "rounds.jsonl").read_text().splitlines())
    assert last == f"coterie: interrupted; 'coterie resume {path}' carries on after round {done}"
    assert "Traceback" not in answer.err
    assert call(capsys, "resume", path).code == 0
    assert call(capsys, *RUN, "--checkpoint-every", "3", "--out", whole).code == 0
    assert_same_run(path, whole)


def test_a_finished_run_gets_more_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = (*SMALL[:2], "--rounds", "4", *SMALL[4:])
    assert call(capsys, "run", "fedper", *SMALL, "--out", tmp_path / "run").code == 0
    answer = call(capsys, "resume", tmp_path / "run", "--rounds", "4", "--json")
    assert (answer.code, answer.json["rounds"]) == (0, 4)
    assert call(capsys, "run", "fedper", *more, "--out", tmp_path / "whole").code == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("moment", "way_on"),
    [
        ("begin", "starts again from round 1 (there is no checkpoint: see --checkpoint-every)"),
        ("round", "carries on after round 1"),
    ],
)
def test_ctrl_c_without_checkpoints(
    moment: str, way_on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is over when Ctrl-C comes is kept all the same."""
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(RoundProgress, moment, interrupt)
        answer = call(capsys, "run", "local", *SMALL)
    assert answer.code == 130
    assert answer.err == f"coterie: interrupted; 'coterie resume runs/local-digits-1' {way_on}\n"
    assert call(capsys, "resume", "runs/local-digits-1").code == 0
    assert call(capsys, "run", "local", *SMALL, "--out", "whole").code == 0
    assert_same_run(Path("runs/local-digits-1"), Path("whole"))
