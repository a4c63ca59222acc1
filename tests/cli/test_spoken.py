"""What a federation's commands say as JSON: every line on stderr is an object, with the time and a level."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from test_federation import StandInLink, follower

from coterie.cli import main
from coterie.cli.federation.shared import insecure_warning
from coterie.cli.output import tell


@pytest.fixture(autouse=True)
def machines_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_LOG", "json")


def objects(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Level and message of each line; all must have a time that is not in the future."""
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(datetime.fromisoformat(line["time"]) <= datetime.now(UTC) for line in found)
    return [(line["level"], line["message"]) for line in found]


def test_lines_warnings_and_mistakes_are_objects(capsys: pytest.CaptureFixture[str]) -> None:
    tell("connected to server.example.org:8000")
    tell("warning: the server's certificate expires in 3 days")
    insecure_warning("Everybody can join.")
    assert main(["federation", "server"]) == 2
    said, expires, insecure, mistake = objects(capsys)
    assert said == ("info", "connected to server.example.org:8000")
    assert expires == ("warning", "the server's certificate expires in 3 days")
    assert (insecure[0], "Everybody can join." in insecure[1]) == ("warning", True)
    assert (mistake[0], "needs DIR" in mistake[1]) == ("error", True)


def test_a_run_is_followed_in_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    following = follower(tmp_path)
    following.begin()
    (tmp_path / "log.txt").write_text("12:00 INFO site a is here\n12:01 WARNING round 1 goes on without b\n")
    status = {"state": "finished", "round": 2, "rounds": 2, "present": ["a", "b"], "message": ""}
    (tmp_path / "status.json").write_text(json.dumps(status))
    following.follow(StandInLink("finished:completed"), "1")
    assert objects(capsys) == [
        ("info", "round 2/2: finished, 2 of 2 sites are here"),
        ("warning", "round 1 goes on without b"),
    ]
