"""How a federation stands, from the files that its server writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from coterie.deployment.as_run import note_of
from coterie.deployment.inspection import FederationFacts
from coterie.deployment.state_file import read_state
from coterie.deployment.status import Gauge
from coterie.errors import CoterieError
from coterie.report.learning import learning_matrix, most_personal, whole_numbers
from coterie.runs.directory import RunDirectory
from coterie.runs.record import Line, Scores, lines_in_order, plain
from coterie.runs.store import ABOUT, CONFIG, LOG, ROUNDS
from coterie.version import VERSION

# Bytes and lines of the log's end that the page shows.
LOG_END, LOG_LINES = 16_384, 40
STATES = ("waiting", "running", "finished", "failed")
TOLD = {
    "asked": "Rounds in which a site was asked.",
    "answered": "Rounds in which a site's answer counted.",
    "unanswered": "Rounds in which a site's answer did not come in time.",
    "refused": "Rounds in which a site's answer was not as agreed.",
    "lost": "Rounds in which a site had lost what it kept.",
    "set_aside": "Rounds in which a site's answer was set aside, because it jumped.",
}


@dataclass
class FederationStatus:
    """A `StatusSource`: `folder` is the server's, `ended` names a process that has ended by itself.

    `days_left` says for how many days the server's certificate holds; none where there are no keys.
    """

    folder: Path
    facts: FederationFacts
    ended: Callable[[], str | None]
    days_left: Callable[[], int | None]
    script = "server.js"

    @property
    def title(self) -> str:
        """What the page is about."""
        return f"{self.facts.name}, the server"

    def content(self) -> dict[str, Any]:
        """How it stands, every site, the rounds so far, and who learned from whom in the last one."""
        lines = self._lines()
        return {
            "federation": self.facts.name,
            "method": self.facts.method,
            "metric": self.facts.metric,
            "rounds": self.facts.rounds,
            "version": VERSION,
            "folder": str(self.folder),
            "status": self._status(),
            "problem": self.problem(),
            "sites": self._sites(lines),
            "lines": [_short(line) for line in lines],
            "run": self._details(),
        }

    def problem(self) -> str:
        """A process that has ended by itself, or a federation that has failed."""
        status = self._status()
        failed = f"the federation failed: {status.get('message', '')}" if status.get("state") == "failed" else ""
        return self.ended() or failed

    def gauges(self) -> list[Gauge]:
        """Numbers of the federation, its last round, and every site."""
        status, lines = self._status(), self._lines()
        state = Gauge("federation_state", "How the federation stands: 1 for the state that it is in.")
        for name in STATES:
            state.at(float(status.get("state") == name), state=name)
        planned = Gauge("federation_rounds_planned", "Rounds that were agreed on.").at(self.facts.rounds)
        done = Gauge("federation_round", "Rounds that are over.").at(len(lines))
        present = Gauge("federation_site_present", "Whether a site is connected.")
        quarantined = Gauge("federation_site_quarantined", "Whether a site's answers do not count for now.")
        for site in self.facts.sites:
            present.at(float(site in status.get("present", ())), site=site)
            quarantined.at(float(site in status.get("quarantined", ())), site=site)
        standing = [state, planned, done, present, quarantined, *self._by_site(lines)]
        moved = Gauge("federation_bytes_total", "Bytes of models that travelled so far.", counter=True)
        for way in ("down", "up"):
            moved.at(sum(getattr(line.bytes, way) for line in lines), way=way)
        taken = Gauge("federation_round_seconds", "How long the last round took.")
        when = Gauge("federation_last_round_timestamp_seconds", "When the last round was over.")
        if lines:
            taken.at(lines[-1].seconds.total)
            when.at((self.folder / ROUNDS).stat().st_mtime)
        left = Gauge("federation_certificate_days_left", "For how many days the server's certificate holds.")
        return [*standing, moved, taken, when, left.at(self.days_left())]

    def _by_site(self, lines: list[Line]) -> list[Gauge]:
        counts = {name: Gauge(f"federation_site_{name}_total", text, counter=True) for name, text in TOLD.items()}
        score = Gauge("federation_site_score", "What a site was last judged by, at a moment.")
        for site in self._sites(lines):
            for name in TOLD:
                counts[name].at(site["counts"][name], site=site["name"])
            for moment in ("received", "trained"):
                score.at(site[moment], site=site["name"], moment=moment)
        return [*counts.values(), score]

    def _sites(self, lines: list[Line]) -> list[dict[str, Any]]:
        """Every site: whether it is here, how often what happened to it, and its last scores."""
        status, known = self._status(), {client["name"]: client for client in self._json(ABOUT).get("clients", [])}
        notes = [(line.round, note_of(line)) for line in lines]
        sites = []
        for place, name in enumerate(self.facts.sites):
            newest = {
                moment: next(
                    (
                        value
                        for line in reversed(lines)
                        if (value := _score(line, moment, self.facts.metric, place)) is not None
                    ),
                    None,
                )
                for moment in ("received", "trained")
            }
            answered = [round for round, note in notes if name in note.answered]
            sites.append(
                {
                    "name": name,
                    "here": name in status.get("present", ()),
                    "quarantined": name in status.get("quarantined", ()),
                    "last_round": answered[-1] if answered else None,
                    "counts": {what: sum(name in getattr(note, what) for _, note in notes) for what in TOLD},
                    "samples": {part: known.get(name, {}).get(part) for part in ("train", "test")},
                    **newest,
                }
            )
        return sites

    def _details(self) -> Mapping[str, Any] | None:
        """Who learned from whom in the last recorded round, and the end of the log; nothing before a run begins."""
        if not (self.folder / CONFIG).is_file():
            return None
        return {"clients": self.facts.sites, "learning": self._learning(), "log": self._log()}

    def _learning(self) -> Mapping[str, Any] | None:
        directory = RunDirectory(self.folder)
        try:
            recorded = directory.recorded_rounds()
            if not recorded:
                return None
            mixes = directory.mixes(recorded[-1])
            mix, weights = most_personal(mixes), whole_numbers(learning_matrix(mixes, len(self.facts.sites)))
        except (CoterieError, SafetensorError, KeyError, IndexError, ValueError, OSError):
            return None  # just being written
        return {"group": mix.group, "target": mix.target, "rounds": [recorded[-1]], "weights": [weights]}

    def _log(self) -> list[str]:
        try:
            with (self.folder / LOG).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - LOG_END))
                return file.read(LOG_END).decode(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            return []

    def _status(self) -> dict[str, Any]:
        return read_state(self.folder)

    def _json(self, name: str) -> dict[str, Any]:
        try:
            values = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return values if isinstance(values, dict) else {}

    def _lines(self) -> list[Line]:
        try:
            lines = lines_in_order((self.folder / ROUNDS).read_bytes(), str(self.folder / ROUNDS))
            return lines if all(map(note_of, lines)) else []
        except (OSError, CoterieError):
            return []


def _score(line: Line, moment: str, metric: str, place: int) -> float | None:
    scores: Scores | None = getattr(line, moment)
    values = [] if scores is None else scores.values.get(metric, [])
    return values[place] if place < len(values) else None


def _short(line: Line) -> dict[str, Any]:
    """A round without what is told elsewhere on the page."""
    tests = {moment: getattr(line, moment) for moment in ("received", "trained")}
    means = {moment: scores.mean for moment, scores in tests.items() if scores is not None}
    note = note_of(line)
    happened = {name: sites for name in TOLD if (sites := getattr(note, name))}
    return {"round": line.round, "bytes": plain(line.bytes), **happened, **means, "seconds": line.seconds.total}
