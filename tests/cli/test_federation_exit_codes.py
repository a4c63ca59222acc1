"""Exit codes of a federation's commands: whoever restarts services learns from them whether that can help."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from cli_tools import call

from coterie.cli.errors import FAILED, MISTAKE, UNWELCOME
from coterie.deployment.flower import commands
from coterie.deployment.flower.server_processes import ServerProcesses
from coterie.deployment.flower.site_processes import SiteProcesses
from coterie.deployment.inspection import look_here
from coterie.devices import named
from coterie.errors import PassingError, UnwelcomeError
from coterie.testing.toys import toy_data

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

CLIENT = ("federation", "client", "fed", "--name", "site-a", "--data", "own.csv", "--insecure")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coterie.deployment.inspection.look", look_here)
    monkeypatch.setattr("coterie.deployment.flower.relay.packed_app", lambda folder: b"packed")
    monkeypatch.setattr(SiteProcesses, "start", lambda self: None)
    data = toy_data()
    rows = [f"{','.join(map(str, x.flatten().tolist()))},{y}" for x, y in zip(data.inputs, data.labels, strict=True)]
    names = ",".join(f"x{column}" for column in range(data.inputs[0].numel()))
    (tmp_path / "own.csv").write_text("\n".join([f"{names},label", *rows]))
    made = call(capsys, "federation", "init", "fed", "--sites", "site-a,site-b", "--like", "own.csv")
    assert made.code == 0, made.err
    return tmp_path


def test_a_taken_port_may_be_free_at_the_next_attempt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = call(capsys, "federation", "server", "fed", "--insecure", "--port", port)
    assert answer.code == FAILED
    assert f"port = {port}: cannot be used" in answer.err


def test_a_site_that_the_server_refuses_has_a_code_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(self: SiteProcesses, tell: object) -> None:
        raise UnwelcomeError("server = there:8000: it refuses this site for good")

    monkeypatch.setattr(SiteProcesses, "keep_alive", refused)
    assert call(capsys, *CLIENT).code == UNWELCOME


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_site_that_was_told_to_end_says_by_which_signal(
    number: signal.Signals, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SiteProcesses, "keep_alive", lambda self, tell: os.kill(os.getpid(), number))
    answer = call(capsys, *CLIENT)
    assert (answer.code, "the same command connects it again" in answer.err) == (code, True)


def test_what_must_be_changed_first_is_a_mistake(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.csv").write_text("x0,label\n1,0\n2,1\n")
    assert call(capsys, *CLIENT).code == MISTAKE


def test_a_device_that_is_not_there_is_a_mistake(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *CLIENT, "--device", "gpu")
    assert answer.code == MISTAKE
    assert answer.err.splitlines()[-1].endswith(
        "device = gpu: PyTorch knows no such device; use cpu, cuda, mps or auto"
    )


def test_the_device_of_a_site_is_what_its_resident_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[dict[str, str]] = []
    make = SiteProcesses.__init__

    def made(self: SiteProcesses, home: Path, server: str, settings: dict[str, str], *rest: Any) -> None:
        told.append(settings)
        make(self, home, server, settings, *rest)

    monkeypatch.setattr(SiteProcesses, "__init__", made)
    monkeypatch.setattr(SiteProcesses, "keep_alive", lambda self, tell: None)
    assert call(capsys, *CLIENT, "--device", "auto").code == 0
    assert call(capsys, *CLIENT).code == 0
    assert [settings["device"] for settings in told] == [named("auto"), "cpu"]


def test_flower_that_does_not_answer_is_one_line_and_worth_another_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Flower's command line takes longer than that to be imported.
    monkeypatch.setattr(commands, "PATIENCE", 0.01)
    with pytest.raises(PassingError, match=r"'flwr ls' .* had none within 0.01 s; start the server again"):
        ServerProcesses(tmp_path, None).live_runs()
