from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path

import pytest
from cli_tools import SMALL, call, finish, start

pytestmark = pytest.mark.thorough


@pytest.mark.processes
def test_a_folder_is_watched_until_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", "fedavg", *SMALL, "--out", tmp_path / "runs" / "it").code == 0
    process = start("watch", tmp_path / "runs")
    assert process.stdout is not None
    told = re.fullmatch(r"Watching .*runs at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends\)\n", process.stdout.readline())
    assert told is not None
    with urllib.request.urlopen(f"{told[1]}runs") as answer:
        assert [run["name"] for run in json.loads(answer.read())["runs"]] == ["it"]
    process.send_signal(signal.SIGINT)
    answer = finish(process)
    assert (answer.code, answer.err) == (0, "")


def test_mistakes_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mistakes = {
        ("watch",): "coterie: error: folder = runs: there is no such folder\n",
        ("watch", "nowhere"): "coterie: error: folder = nowhere: there is no such folder\n",
        ("watch", ".", "--port", "many"): "coterie: error: port = 'many': must be a whole number\n",
    }
    for arguments, message in mistakes.items():
        answer = call(capsys, *arguments)
        assert (answer.code, answer.out, answer.err) == (2, "", message)
    answer = call(capsys, "watch", ".", "--port", "99999")
    assert answer.code == 2
    assert answer.err.startswith("coterie: error: port = 99999: cannot be used")
