"""Follows a federation through the files that its server writes, and sees when a next version makes it begin anew."""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coterie.cli.errors import FailureError, StandstillError
from coterie.cli.output import WARNING, as_json, tell
from coterie.deployment.inspection import FederationFacts
from coterie.deployment.state_file import is_gone, note_end, read_state, write_state
from coterie.errors import PassingError
from coterie.files import UNFIT

POLL = 0.25  # seconds between two looks at the files
SILENCE = 20.0  # seconds without news after which Flower is asked whether the run is still alive
ENDING = 15.0  # seconds that a finished ServerApp has to go
PATIENCE = 900.0  # seconds that a round under way may take before what is new begins without it
SHOWN_LEVELS = (" WARNING ", " ERROR ")


class Runs(Protocol):
    """Whoever knows whether a run and its processes are alive: the `ServerProcesses`."""

    home: Path

    def ended(self) -> str | None:
        """Which process has ended by itself."""

    def hangs(self) -> str | None:
        """Which process has not answered for long."""

    def run_status(self, run: str) -> tuple[str, str]:
        """The status of a run and its details."""


class Follower:
    """What is known of a run from `status.json`, `rounds.jsonl` and `log.txt` in the server's folder."""

    def __init__(
        self,
        folder: Path,
        facts: FederationFacts,
        following: NextVersion | None = None,
        warnings: Callable[[], list[str]] = list,
    ) -> None:
        self.folder, self.facts, self.following, self.warnings = folder, facts, following, warnings
        self.round = 0
        self._scores = ""
        self._seen: tuple[int, int] | None = None  # the file of the rounds, as it was last read
        self._read = 0  # of the log
        self._begun = False
        console = Console(stderr=True, highlight=False)
        self._bar = Progress(
            TextColumn("rounds"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=as_json() or not console.is_terminal,
        )

    def begin(self) -> None:
        """Speak for the server until its app does; what a former one logged is old news. What this one said is not."""
        if self._begun:
            return
        self._begun = True
        self._look_at_rounds()
        self._wait("the server is being started")
        path = self.folder / "log.txt"
        self._read = path.stat().st_size if path.exists() else 0

    def follow(self, link: Runs, run: str) -> bool:
        """Show progress until the run has finished (True) or its next version is due; a failure is an error."""
        try:
            status = self._follow(link, run)
        except BaseException as error:
            self.note_end(error)
            raise
        self._pass_on_log()
        if status.get("state") == "failed":
            message = status.get("message") or "see log.txt"
            if status.get("passing"):
                raise StandstillError(f"the server's app was ended ({message})")
            raise FailureError(f"the federation failed: {message}; see {self.folder}")
        if status.get("state") == "finished":
            self._await_end(link, run)
        return not self.is_superseded()

    def warn(self) -> None:
        """Pass on what there is to warn of, whatever the run does."""
        for warning in self.warnings():
            tell(warning, WARNING)

    def is_superseded(self) -> bool:
        """Whether the next version of the agreement is due."""
        return self.following is not None and self.following.is_due(self._status())

    def note_end(self, error: BaseException) -> None:
        """Whoever looks at the status must not take a server for running that has ended without a word."""
        way_on = "; the same command resumes" if isinstance(error, StandstillError) else ""
        reason = "the server was stopped" if isinstance(error, KeyboardInterrupt) else f"{error}{way_on}"
        note_end(self.folder, "failed", reason)

    def note_restart(self, reason: str) -> None:
        """Say that the server is started again, which has ended."""
        self._wait(f"{reason}; it is started again")

    def _wait(self, message: str) -> None:
        here = {"round": self.round, "rounds": self.facts.rounds, "present": [], "pid": os.getpid()}
        with suppress(OSError):
            write_state(self.folder, "waiting", **here, message=message)

    def _follow(self, link: Runs, run: str) -> dict[str, Any]:
        task = self._bar.add_task("waiting for the ServerApp", total=self.facts.rounds)
        shown, heard = "", time.monotonic()
        with self._bar:
            while True:
                status = self._status()
                line = self._line(status)
                if line != shown:
                    self._bar.update(task, completed=self._completed(status), description=line)
                    if self._bar.disable:
                        tell(f"round {self.round}/{self.facts.rounds}: {line}" if status else line)
                    shown, heard = line, time.monotonic()
                self._pass_on_log()
                self.warn()
                if status.get("state") in ("finished", "failed") or self.is_superseded():
                    return status
                if gone := link.ended() or link.hangs():
                    raise StandstillError(gone)
                if is_gone(status) and self._status() == status:
                    raise StandstillError(f"the server's app ended without a word; see {self.folder / 'superexec.log'}")
                if time.monotonic() - heard > SILENCE:
                    self._require_alive(link, run)
                    heard = time.monotonic()
                time.sleep(POLL)

    def way_on(self) -> str:
        """What the same command would do next."""
        if self._status().get("state") == "finished":
            return "the federation has finished"
        return f"the same command resumes{f' after round {self.round}' if self.round else ''}"

    def summary(self) -> dict[str, Any]:
        """How good the finished models are."""
        path = self.folder / "summary.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _status(self) -> dict[str, Any]:
        return read_state(self.folder)

    def _completed(self, status: dict[str, Any]) -> int:
        return self.facts.rounds if status.get("state") == "finished" else self.round

    def _line(self, status: dict[str, Any]) -> str:
        if not status:
            return "waiting for the ServerApp"
        self._look_at_rounds()
        self.round = max(self.round, int(status["round"]) - (status["state"] == "running" and bool(status["message"])))
        here = f"{len(status['present'])} of {len(self.facts.sites)} sites are here"
        return ", ".join(part for part in (status["state"], here, self._scores, status["message"]) if part)

    def _look_at_rounds(self) -> None:
        """Read the rounds if they have changed: a new one also says how the last one ended at the sites."""
        path = self.folder / "rounds.jsonl"
        if not path.exists():
            return
        file = path.stat()
        if (file.st_ino, file.st_size) != self._seen:
            self._seen = (file.st_ino, file.st_size)
            lines: list[dict[str, Any]] = []
            with suppress(*UNFIT):  # what is damaged is the app's business: it puts it right
                lines += map(json.loads, path.read_text(encoding="utf-8").splitlines())
            with suppress(*UNFIT):
                self._scores, self.round = means_of(lines), int(lines[-1]["round"]) if lines else 0

    def _news(self) -> list[str]:
        path = self.folder / "log.txt"
        if not path.exists():
            return []
        with path.open("rb") as file:
            begin = min(self._read, path.stat().st_size)  # it may have been moved away
            file.seek(begin)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read = begin + len(whole) + len(end)
        return whole.decode("utf-8", errors="replace").splitlines()

    def _pass_on_log(self) -> None:
        for line in self._news():
            level = next((level for level in SHOWN_LEVELS if level in line), None)
            if level is None:
                continue
            if as_json():
                tell(line.partition(level)[2], level.strip().lower())
            else:
                self._bar.console.print(line, markup=False, soft_wrap=True)

    def _require_alive(self, link: Runs, run: str) -> None:
        try:
            status, details = link.run_status(run)
        except PassingError as error:  # a machine that is far too busy: the processes are alive, and asked again later
            tell(f"nothing is known of the run just now ({error}); looking again")
            return
        if status.startswith("finished") and self._status().get("state") not in ("finished", "failed"):
            raise StandstillError(
                f"the run ended ({status}: {details}) before the federation did; "
                f"see {self.folder / 'log.txt'} and 'FLWR_HOME={link.home} flwr log {run} --show'"
            )

    def _await_end(self, link: Runs, run: str) -> None:
        """Let the ServerApp report its end, so that the run does not look cut off."""
        end = time.monotonic() + ENDING
        with suppress(PassingError):  # all that counts is on the disk
            while time.monotonic() < end and not link.run_status(run)[0].startswith("finished"):
                time.sleep(POLL)


class NextVersion:
    """Whether an agreement's file holds a newer version or other keys are accepted than at the start, and whether it is
    time for that: after the round under way. A file that cannot be read just now is no newer version.
    """

    def __init__(
        self, agreement: Path, version: int, keys: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._version, self._folder, self._clock = agreement, version, keys, clock
        self._stamp: tuple[int, int] | None = None
        self._seen: tuple[float, int] | None = None  # when, and which round was under way
        self._newest, self._keys = version, self._accepted()

    def is_due(self, status: Mapping[str, Any]) -> bool:
        """Given how the federation stands, whether what is new begins now."""
        if not self._is_newer() and self._accepted() == self._keys:
            return False
        if self._seen is None:
            self._seen = (self._clock(), int(status.get("round", 0)))
        since, first = self._seen
        under_way = status.get("state") == "running" and str(status.get("message", "")).startswith(f"round {first} ")
        return not under_way or self._clock() - since > PATIENCE

    def _is_newer(self) -> bool:
        try:
            about = self._path.stat()
            if (stamp := (about.st_mtime_ns, about.st_size)) != self._stamp:
                self._newest = int(tomllib.loads(self._path.read_text(encoding="utf-8")).get("version", 1))
                self._stamp = stamp
        except (OSError, ValueError, TypeError, RecursionError):  # no TOML is a ValueError too
            return False
        return self._newest > self._version

    def _accepted(self) -> dict[str, tuple[int, int]]:
        """The public keys that are accepted, each with what changes if it does."""
        stamps = {}
        for path in [] if self._folder is None else self._folder.glob("*.pub"):
            try:
                about = path.stat()
            except OSError:  # it was removed just now
                continue
            stamps[path.name] = (about.st_mtime_ns, about.st_size)
        return stamps


def means_of(lines: Sequence[Mapping[str, Any]]) -> str:
    """The newest means over sites of what they are judged by, from the lines of `rounds.jsonl`.

    >>> means_of([{"received": {"mean": 0.75}, "trained": {"mean": 0.7}}, {"trained": {"mean": 0.8}}])
    'received mean 0.7500, trained mean 0.8000'
    """
    parts = []
    for moment in ("received", "trained"):
        means = (line[moment]["mean"] for line in reversed(lines) if moment in line)
        newest = next((mean for mean in means if mean is not None), None)
        if newest is not None:
            parts.append(f"{moment} mean {newest:.4f}")
    return ", ".join(parts)
