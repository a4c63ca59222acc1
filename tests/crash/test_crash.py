"""Killed at a file operation and carried on, everything ends as if nothing had happened; `make crash` has 500 kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.crash.forks import KILLED, in_a_fork
from tests.crash.kills import Killer

from support import PATIENCE

ROOT = Path(__file__).parents[2]


def killed(kills: int, *only: str) -> None:
    words = [sys.executable, "-m", "tests.crash", "--kills", str(kills), *(f"--only={name}" for name in only)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=4 * PATIENCE, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert f"{kills} kills, 0 went wrong" in ended.stdout


@pytest.mark.processes
@pytest.mark.thorough
def test_what_is_killed_at_a_file_operation_ends_as_if_it_had_not_been() -> None:
    killed(6, "run", "resume", "more rounds")


@pytest.mark.slow
@pytest.mark.processes
def test_fifty_kills() -> None:
    killed(50)


def writes_twice(folder: Path, at: int, power: bool) -> None:
    Killer(folder, at, power).install()
    with (folder / "flushed").open("wb") as file:
        file.write(b"1234")
        file.flush()
        os.fsync(file.fileno())
    with (folder / "loose").open("wb") as file:
        file.write(b"5678")
        file.flush()
    (folder / "loose").replace(folder / "renamed")
    (folder / "never").write_text("")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("at", "power", "left"),
    [
        (1, False, {}),  # open
        (2, False, {"flushed": b"12"}),  # a write by half
        (3, False, {"flushed": b"1234"}),  # fsync
        (3, True, {"flushed": b""}),
        (5, False, {"flushed": b"1234", "loose": b"56"}),
        (6, False, {"flushed": b"1234", "loose": b"5678"}),  # rename
        (7, False, {"flushed": b"1234", "renamed": b"5678"}),
        (7, True, {"flushed": b"1234", "renamed": b""}),
    ],
)
def test_a_kill_leaves_what_was_done_until_then(tmp_path: Path, at: int, power: bool, left: dict[str, bytes]) -> None:
    assert in_a_fork(lambda: writes_twice(tmp_path, at, power)) == KILLED
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == left


@pytest.mark.processes
def test_a_fork_tells_how_it_ended() -> None:
    assert in_a_fork(lambda: None) == ""
    assert "ZeroDivisionError" in in_a_fork(lambda: 1 // 0)
    assert in_a_fork(lambda: os.kill(os.getpid(), signal.SIGTERM)) == f"signal {signal.SIGTERM.value}"
