"""What people see in terminals: tables that fit, plain characters where there are no others, ways out of mistakes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_tools import SMALL, call
from rich.console import Console

from coterie.cli import main
from coterie.compare.grid import Grid
from coterie.report.tables import fitting_tables
from coterie.setup.config import read_toml
from support import PATIENCE


def grid_of(rows: int) -> Grid:
    def summary(value: float) -> dict[str, Any]:
        readings = {"best": value, "last": value, "last5": value}
        return {
            "accuracy": {moment: {"mean": readings} for moment in ("received", "trained")},
            "worst_decile": {"received": value},
            "bytes": {"per_client_round": {"up": 1.0, "down": 2.0}},
            "seconds": {"per_round": {"train": 0.5}},
            "effort": {"steps": {"model": 12.5}, "forward": 250.0},
        }

    named = {f"method-{row}:beta={row}": row / 10 for row in range(rows)}
    return Grid({name: {seed: summary(value + seed / 100) for seed in range(3)} for name, value in named.items()})


def shown(grid: Grid, width: int) -> tuple[list[str], int]:
    console = Console(width=width, highlight=False)
    tables = fitting_tables(grid, console)
    with console.capture() as text:
        for table in tables:
            console.print(table)
    return [line.rstrip() for line in text.get().splitlines()], len(tables)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_tables_fit_and_no_number_is_broken_in_two(width: int) -> None:
    grid = grid_of(3)
    lines, tables = shown(grid, width)
    assert max(map(len, lines)) <= width
    assert (tables == 1) == (width == 200)
    cells = [cell for line in lines if line.startswith("method-1") for cell in line.split()[1:]]
    assert [cell.rstrip("*") for cell in cells] == ["11.0±1.0"] * 5 + ["12.5", "250", "3", "B", "0.50"]
    assert sum(line.startswith("method-1:beta=1 ") for line in lines) == tables


@pytest.mark.slow
@pytest.mark.processes
def test_a_terminal_of_ascii_shows_a_table_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "all"
    words = ("compare", "local", "fedavg", "--seeds", "0", "1", *SMALL, "--jobs", "1", "--out", out)
    assert call(capsys, *words).code == 0
    for command in (["show", str(out)], ["show", str(out / "fedavg-s0")], ["table", str(out), "--format", "md"]):
        done = subprocess.run(
            [sys.executable, "-m", "coterie", *command],
            capture_output=True,
            timeout=PATIENCE,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )
        assert done.returncode == 0, done.stderr.decode()
        text = done.stdout.decode("ascii")
        assert "fedavg" in text
        assert bool(re.search(r"\d\+-\d", text)) == ("fedavg-s0" not in command[1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "fedprox", "--mu", "0.1"], "'mu' is an option of fedprox: use --set mu=0.1"),
        (["run", "FedProx", "--mu=0.1"], "'mu' is an option of fedprox: use --set mu=0.1"),
        (["run", "fedprox", "--mu"], "'mu' is an option of fedprox: use --set mu=VALUE"),
        (["compare", "local", "pfedcs:beta=3", "--tune-epochs", "2"], "use --set tune_epochs=2"),
        (["run", "fedavg", "--mu", "0.1"], "unknown option '--mu'"),
    ],
)
def test_an_option_of_a_method_has_a_way_out(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, *words)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.thorough
def test_methods_are_found_in_capitals_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "run", "FedPROX", *SMALL, "--set", "mu=1").code == 0
    assert read_toml(tmp_path / "runs" / "fedprox-digits-1" / "config.toml")["method"] == "fedprox"
    answer = call(capsys, "compare", "Local", "FedProx", "--set", "FEDPROX.mu=0.5", "--seeds", "0", *SMALL, "--json")
    assert answer.json["methods"] == ["local", "fedprox"]
    assert answer.json["runs"]["fedprox"][0]["config"]["set"] == {"mu": 0.5}
    assert call(capsys, "methods", "FedAvg").out.startswith("fedavg: ")


def spoken(command: str, cwd: Path, **surroundings: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a command in which `coterie` stands for the command line."""
    line = command.replace("coterie", f"{shlex.quote(sys.executable)} -m coterie")
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **surroundings},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("coterie methods >&-", 0),
        ("coterie --help >&-", 0),
        ("coterie methods 2>&-", 0),
        ("coterie show nowhere >&-", 2),
        ("coterie methods | true", 141),
    ],
)
def test_nobody_need_listen(command: str, code: int, tmp_path: Path) -> None:
    """A closed stdout is as good as one that leads nowhere, and a reader who has gone is no error of ours."""
    answer = spoken(command, tmp_path)
    assert answer.returncode == code
    assert "Traceback" not in answer.stderr
    assert (answer.stderr == "") == (code != 2)


@pytest.mark.processes
def test_an_error_is_not_printed_as_a_result_where_stderr_is_closed(tmp_path: Path) -> None:
    answer = spoken("coterie show nowhere 2>&-", tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")


@pytest.mark.parametrize("width", ["0", "00"])
def test_a_terminal_without_a_width_has_the_usual_one(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("TERM", "xterm")
    for words in (["methods"], ["--help"], ["run", "--help"]):
        assert main(words) == 0
        assert len(capsys.readouterr().out.splitlines()) < 1000


def test_paths_that_lead_nowhere_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "loop.py").symlink_to("loop.py")
    loop = str(tmp_path / "loop")
    for words, said in [
        (["run", "local", *SMALL, "--out", "/"], "run = /: is no directory for a run; name one within it"),
        (["run", "local", *SMALL, "--out", loop], f"{loop}: its symbolic links lead in a circle"),
        (["run", "local", *SMALL, "--out", f"{loop}/in"], f"{loop}/in: its symbolic links lead in a circle"),
        (["run", f"{loop}.py:Mine", *SMALL], f"{loop}.py: its symbolic links lead in a circle"),
        (["compare", "local", *SMALL, "--seeds", "0", "--out", loop], "its symbolic links lead in a circle"),
        (["pack", loop, "-o", str(tmp_path / "it.zip")], "its symbolic links lead in a circle"),
    ]:
        answer = call(capsys, *words)
        assert answer.code == 2, words
        assert len(answer.err.splitlines()) == 1
        assert said in answer.err


@pytest.mark.parametrize(
    ("digits", "said"), [(400, "must be a number, finite and at most 3.4e38"), (5000, "not a TOML file (Exceeds the")]
)
def test_numbers_of_any_length_are_one_line(
    digits: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "it.toml").write_text(f'method = "local"\nlr = {"1" * digits}\n')
    answer = call(capsys, "run", "--config", tmp_path / "it.toml", "--out", tmp_path / "run")
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert said in answer.err
