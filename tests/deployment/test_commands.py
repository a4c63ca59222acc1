"""Flower's commands in one process, and its process for a message without its start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.deployment.channel import connected
from coterie.deployment.flower.commands import Commands
from coterie.deployment.flower.forkserver import CLIENT_APP, READY, SERVER_APP, forkserver_words, stand_in
from coterie.deployment.flower.processes import Process, environment
from coterie.errors import PassingError
from support import PATIENCE, eventually

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = pytest.mark.processes


def test_one_process_runs_one_command_after_the_other(tmp_path: Path) -> None:
    with Commands(environment(tmp_path / "home"), tmp_path) as flower:
        for _ in range(2):
            assert flower.printed(["--version"]).startswith("Flower version: ")
            assert "No such command" in flower.printed(["dance"])
        flower._process.kill()
        with pytest.raises(PassingError, match="'flwr run' ended without an answer"):
            flower.printed(["run"])


@pytest.fixture(params=[CLIENT_APP, SERVER_APP])
def command(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def forkserver(command: str, tmp_path: Path) -> Iterator[Process]:
    path = tmp_path / "forkserver.socket"
    words = [sys.executable, "-m", *forkserver_words(path, command)]
    process = Process(words, tmp_path / "log", environment(tmp_path / "home"), tmp_path)
    try:
        assert eventually(lambda: READY in process.said())  # its socket is there before it listens
        yield process
    finally:
        process.terminate()


def started(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script, "--help"], capture_output=True, text=True, timeout=PATIENCE)


def test_a_forkserver_runs_the_command_in_processes_of_its_own(
    forkserver: Process, command: str, tmp_path: Path
) -> None:
    script = stand_in(tmp_path / "scripts", tmp_path / "forkserver.socket", command) / command
    for number in (1, 2):
        done = started(script)
        assert (done.returncode, done.stdout) == (0, "")
        assert eventually(lambda: forkserver.said().count(f"usage: {command}") == number)  # noqa: B023
    with connected(tmp_path / "forkserver.socket") as stranger:
        stranger.sendall(b"nonsense")
    assert started(script).returncode == 0
    assert forkserver.code is None


def test_without_a_forkserver_the_command_is_started_itself(command: str, tmp_path: Path) -> None:
    done = started(stand_in(tmp_path / "scripts", tmp_path / "nobody.socket", command) / command)
    assert done.returncode == 0
    assert f"usage: {command}" in done.stdout
