from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_tools import SMALL, call

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_report_of_a_run_and_of_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "compare", "local", "fedavg", *SMALL, "--seeds", "0", "1", "--out", "cmp").code == 0
    answer = call(capsys, "report", "cmp/fedavg-s0")
    assert (answer.code, answer.out, answer.err) == (0, "The report is kept in report.html\n", "")
    answer = call(capsys, "report", "cmp", "-o", "new/all.html")
    assert (answer.code, answer.out, answer.err) == (0, "The report is kept in new/all.html\n", "")
    assert "<title>4 runs on digits – Coterie</title>" in Path("new/all.html").read_text(encoding="utf-8")
    # The same words again, the same page.
    first = Path("new/all.html").read_bytes()
    assert call(capsys, "report", "cmp", "--out", "new/all.html").code == 0
    assert Path("new/all.html").read_bytes() == first
    answer = call(capsys, "report", "cmp/local-s1", "--figures", "drawn")
    # Of Local there is nothing that travelled to draw, and nobody learned from others.
    assert answer.out == "The report is kept in report.html\n24 figures are kept in drawn\n"
    assert Path("drawn/curves.svg").is_file()


def test_what_was_skipped_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", "fedavg", *SMALL, "--out", "it").code == 0
    with Path("it/rounds.jsonl").open("a") as rounds:
        rounds.write("}\n")
    answer = call(capsys, "report", "it", "nowhere")
    assert answer.code == 0
    assert answer.err == (
        "coterie: warning: run = nowhere: there is no such file or folder\n"
        "coterie: warning: it: line 3 of rounds.jsonl was skipped (it is no JSON: JSON is malformed: invalid character "
        "(byte 0))\n"
    )
    assert "line 3 of rounds.jsonl was skipped" in Path("report.html").read_text(encoding="utf-8")


def test_mistakes_end_in_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(capsys, "run", "fedavg", *SMALL, "--out", "it").code == 0
    Path("empty").mkdir()
    mistakes = {
        ("report",): "report needs RUN",
        (
            "report",
            "empty",
            "nowhere",
        ): "empty: holds no run (config.toml is missing); run = nowhere: there is no such file or folder",
        ("report", "it", "-o", "it.txt"): "out = it.txt: must end in .html or .htm",
        ("report", "it", "-o", "it/config.toml/report.html"): "it/config.toml: ",
    }
    for arguments, message in mistakes.items():
        answer = call(capsys, *arguments)
        assert (answer.code, answer.out) == (2, "")
        assert message in answer.err
        assert answer.err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    answer = call(capsys, "report", "it", "--figures", "drawn")
    assert answer.code == 2
    assert 'pip install "coterie[plots]"' in answer.err
    assert sorted(path.name for path in Path().iterdir()) == ["empty", "it"]
