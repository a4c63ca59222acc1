"""Calling the command line in this process, and in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main
from support import PATIENCE

# A run of some hundredths of a second.
SMALL = ("--clients", "4", "--rounds", "2", "--epochs", "1", "--threads", "1")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Answer:
    """Run a command line in this process."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Answer(code, captured.out, captured.err)


def start(*arguments: str | Path, before: str = "", after: str = "") -> subprocess.Popen[str]:
    """Start a command line in a process of its own, with some Python before and after it."""
    script = (
        "import signal, sys\n"
        # A test run in the background of a shell would hand down that Ctrl-C is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"{before}\nfrom coterie.cli import main\ncode = main(sys.argv[1:])\n{after}\nsys.exit(code)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=PATIENCE)
    return Answer(process.returncode, out, err)


def rounds_without_seconds(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return lines


def assert_same_run(one: Path, other: Path) -> None:
    """Two runs agree in every bit of their rows and in every number of their rounds."""
    assert (one / "rows.safetensors").read_bytes() == (other / "rows.safetensors").read_bytes()
    assert rounds_without_seconds(one) == rounds_without_seconds(other)
    assert sorted(p.name for p in (one / "mixes").iterdir()) == sorted(p.name for p in (other / "mixes").iterdir())
    for mix in (one / "mixes").iterdir():
        assert mix.read_bytes() == (other / "mixes" / mix.name).read_bytes()
