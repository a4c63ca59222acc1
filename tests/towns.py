"""A server and sites that are run by `coterie federation …`, each with a log, for tests of real federations."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import coterie
from coterie.data import Dataset, load
from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.folder import name_task_key, write_folder
from coterie.deployment.flower.keys import Keys, accept_key, make_keys, make_site_key, make_task_key
from coterie.deployment.flower.processes import free_port
from coterie.runs.record import Line, lines_in_order
from support import PATIENCE


def few_digits(*sites: str, side: int = 8) -> dict[str, Dataset]:
    """Some digits for every site, others for each, as images of another size if need be."""
    digits, found = load("digits"), {}
    for number, site in enumerate(sites):
        mine = np.arange(len(digits)) % 15 == number
        inputs = digits.inputs[mine].repeat_interleave(side // 8, 2).repeat_interleave(side // 8, 3)
        found[site] = Dataset(site, inputs, digits.labels[mine], 10)
    return found


SENT = """

_honest = SiteEnvelopes.sealed
SiteEnvelopes.sealed = lambda self, task, packed: _honest(self, task, tampered(packed))
"""
"""Has a site sign what `tampered` makes of its answers."""


def tampered_library(folder: Path, answers: str, records: str = "") -> tuple[str, ...]:
    """A Coterie as somebody may install it at a site, with some more lines at the ends of two files: those in which
    answers are signed (a function `tampered` of theirs changes them before) and in which they become Flower's records.

    What is given are the words before a command that has it use this library.
    """
    installed = Path(coterie.__file__).parent
    shutil.copytree(installed, folder / "coterie", ignore=shutil.ignore_patterns("__pycache__"))
    for name, more in (("envelopes.py", answers + SENT), ("flower/records.py", records)):
        with (folder / "coterie" / "deployment" / name).open("a") as file:
            file.write(more)
    return ("env", f"PYTHONPATH={folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


class Town:
    """A folder in which commands are run; those that go on are ended with it."""

    def __init__(self, folder: Path, data: Mapping[str, Dataset]) -> None:
        self.folder, self.port = folder, free_port()
        self.server = folder / "fed" / "server"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for site, own in data.items():
            np.savez(folder / f"{site}.npz", x=own.inputs.numpy(), y=own.labels.numpy())

    def run(self, words: str, code: int = 0) -> str:
        """What a command says that ends by itself."""
        command = [sys.executable, "-m", "coterie", *shlex.split(words)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=2 * PATIENCE)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, name: str, words: str, before: tuple[str, ...] = ()) -> None:
        """Begin a command that goes on; `before` are the words of one that runs it elsewhere."""
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [*before, sys.executable, "-m", "coterie", *shlex.split(words)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._running[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=environment)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def ended(self, name: str) -> int | None:
        """A command's exit code; none as long as it goes on."""
        return self._running[name].poll()

    def end(self, name: str) -> int:
        """End a command politely."""
        self._running[name].send_signal(signal.SIGTERM)
        return self._running[name].wait(PATIENCE)

    def kill(self, name: str) -> None:
        """End a command by force, and nothing that it has started."""
        self._running[name].kill()
        self._running[name].wait()

    def agree(self, agreement: Agreement, hosts: Sequence[str]) -> None:
        """All that is to be done before the start, as the commands would do it, without theirs."""
        fed = self.folder / "fed"
        write_folder(fed, agreement)
        make_keys(fed / "keys", hosts)
        name_task_key(fed / "federation.toml", make_task_key(Keys(fed / "keys").task_key))
        for site in agreement.sites:
            own = fed / "sites" / site
            own.mkdir(parents=True)
            accept_key(Keys(fed / "keys"), site, make_site_key(own / "key"))
            shutil.copy(fed / "federation.toml", own)

    def join(self, site: str, *more: str) -> None:
        """Accept the agreement, and have the key accepted."""
        words = self.run(f"federation join fed --name {site} {' '.join(more)}")
        (line,) = [line for line in words.splitlines() if "--accept" in line]
        self.run(line.replace("coterie ", "", 1).replace("DIR", "fed"))

    def connect(
        self, site: str, server: str = "", before: tuple[str, ...] = (), more: str = "", name: str = ""
    ) -> None:
        """Start a site's client, as a command of the site's name or another."""
        words = f"--name {site} --data {site}.npz --server {server or f'127.0.0.1:{self.port}'} {more}"
        self.start(name or site, f"federation client fed {words}", before)

    def status(self) -> dict[str, Any]:
        path = self.server / "status.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def rounds(self) -> list[Line]:
        path = self.server / "rounds.jsonl"
        return lines_in_order(path.read_bytes(), str(path)) if path.is_file() else []

    def audit(self) -> list[dict[str, Any]]:
        """The server's audit log."""
        path = self.server / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def close(self) -> None:
        """End everything that goes on."""
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
        for process in self._running.values():
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
