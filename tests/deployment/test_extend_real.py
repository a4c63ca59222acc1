"""A federation that runs, by its own commands: a site leaves, one comes, rounds are added, and nothing is restarted."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data import load
from support import eventually

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = [pytest.mark.real, pytest.mark.slow]

LIMIT = 900.0


class Town:
    """A folder in which a server and sites are run by `coterie federation`, each with a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = folder / "fed" / "server"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        digits = load("digits")
        for number, site in enumerate(("site-a", "site-b", "site-c", "site-d")):
            mine = np.arange(len(digits)) % 15 == number
            np.savez(folder / f"{site}.npz", x=digits.inputs[mine].numpy(), y=digits.labels[mine].numpy())

    def run(self, words: str) -> str:
        """What a command says that ends by itself."""
        done = subprocess.run(
            [sys.executable, "-m", "coterie", *shlex.split(words)],
            cwd=self.folder,
            env=dict(os.environ),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str, words: str) -> None:
        """Begin a command that goes on."""
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "coterie", *shlex.split(words)]
            self._running[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def ended(self, name: str) -> int | None:
        return self._running[name].poll()

    def join(self, site: str, *more: str) -> None:
        """Accept the agreement, and have the key accepted."""
        words = self.run(f"federation join fed --name {site} {' '.join(more)}")
        (line,) = [line for line in words.splitlines() if "--accept" in line]
        self.run(line.replace("coterie ", "", 1).replace("DIR", "fed"))

    def connect(self, site: str) -> None:
        server = f"--server 127.0.0.1:{self.port}"
        self.start(site, f"federation client fed --name {site} --data {site}.npz {server}")

    @property
    def port(self) -> int:
        return 8000 + os.getpid() % 20000

    def status(self) -> dict[str, Any]:
        path = self.server / "status.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def rounds(self) -> list[dict[str, Any]]:
        path = self.server / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def close(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    found = Town(tmp_path)
    yield found
    found.close()


def test_a_running_federation_is_extended_and_nobody_is_restarted(town: Town) -> None:
    terms = "--method pfedsim --model mlp --rounds 400 --epochs 1 --least-sites 2 --gather 300"
    town.run(f"federation init fed --sites site-a,site-b,site-c --shape 1,8,8 --classes 10 {terms}")
    town.run("federation keys fed")
    for site in ("site-a", "site-b", "site-c"):
        town.join(site)
    town.start("server", f"federation server fed --port {town.port}")
    for site in ("site-a", "site-b", "site-c"):
        town.connect(site)
    assert eventually(lambda: len(town.rounds()) >= 2, LIMIT), town.said("server")
    assert all(line["answered"] == ["site-a", "site-b", "site-c"] for line in town.rounds())

    # The sites accept the next version one after the other while the server goes on with the present one.
    done = len(town.rounds())
    said = town.run(f"federation extend fed --rounds {done + 6} --remove site-b --add site-d --term gather=600")
    assert "site-b is no site any more" in said
    for site in ("site-a", "site-c"):
        town.run(f"federation join fed --name {site} --changed")
    town.join("site-d")
    town.connect("site-d")

    assert eventually(lambda: town.ended("server") is not None, LIMIT), town.said("server")
    assert town.ended("server") == 0, town.said("server")
    lines = town.rounds()
    assert lines[-1]["round"] == done + 6
    assert set(lines[-1]["answered"]) == {"site-a", "site-c", "site-d"}
    assert set(json.loads((town.server / "summary.json").read_text())["finished"]) == {"site-a", "site-c", "site-d"}
    assert all(town.ended(site) is None for site in ("site-a", "site-c", "site-d")), "no client was restarted"
    assert "version 2 of the agreement takes over" in (town.server / "log.txt").read_text()
    assert "site-b has left: all that the SuperLink kept is forgotten" in town.said("server")
    events = [json.loads(line) for line in (town.server / "audit.jsonl").read_text().splitlines()]
    versions = [line["version"] for line in events if line["event"] == "started"]
    assert (versions[0], versions[-1]) == (1, 2)
    first = next(line["round"] for line in lines if "site-b" not in line["asked"])
    refused = [line for line in events if line["event"] == "refused"]
    assert any("a key that the federation does not know" in line["reason"] for line in refused), "site-b tries on"
    assert all("site-b" not in line["asked"] for line in lines if line["round"] >= first)
