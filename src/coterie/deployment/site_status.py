"""How a site stands, from its own journal: what it sees of itself never leaves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from coterie.deployment.journal import Entry, Journal
from coterie.deployment.status import Gauge
from coterie.version import VERSION

MODELS = ("received", "trained", "alone", "shared")
"""The models that a site tests: as received, as trained here, trained alone, shared by all."""
NUMBERS = ("accuracy", "loss", "auc", "sensitivity", "calibration_error")
"""What is told of each."""


@dataclass
class SiteStatus:
    """A `StatusSource`: `journal` is that of the site, `connected` says whether its server has taken it."""

    site: str
    federation: str
    server: str
    method: str
    rounds: int
    journal: Journal
    connected: Callable[[], bool]
    class_names: list[str] = field(default_factory=list)
    script = "site.js"

    @property
    def title(self) -> str:
        """What the page is about."""
        return f"{self.site} in {self.federation}"

    def content(self) -> dict[str, Any]:
        """All entries in short, and the newest at length."""
        entries = self.journal.entries()
        return {
            "site": self.site,
            "federation": self.federation,
            "server": self.server,
            "method": self.method,
            "rounds": self.rounds,
            "version": VERSION,
            "connected": self.connected(),
            "journal": str(self.journal.path),
            "class_names": self.class_names,
            "entries": [_short(entry) for entry in entries],
            "newest": next((entry for entry in reversed(entries) if "received" in entry), None),
        }

    def problem(self) -> str:
        """A site that is not connected takes no part."""
        return "" if self.connected() else f"not connected to {self.server}"

    def gauges(self) -> list[Gauge]:
        """Numbers of the newest round, and sums over all."""
        entries = self.journal.entries()
        newest: Entry = entries[-1] if entries else {}
        connected = Gauge("site_connected", "Whether the server has taken this site.").at(float(self.connected()))
        first = [connected, Gauge("site_rounds_planned", "Rounds that were agreed on.").at(self.rounds)]
        done = Gauge("site_round", "The last round in which this site took part.").at(newest.get("round", 0))
        when = Gauge("site_last_round_timestamp_seconds", "When that was.").at(_seconds_of(newest))
        tested = Gauge("site_test_samples", "Held-out samples of this site.").at(newest.get("test_samples"))
        taken = Gauge("site_round_seconds", "How long this site worked on its last round.")
        worked: Entry = next((entry["seconds"] for entry in reversed(entries) if "seconds" in entry), {})
        for part, value in worked.items():
            taken.at(value, part=part)
        moved = Gauge("site_bytes_total", "Bytes of models that travelled so far.", counter=True)
        for way in ("down", "up"):
            moved.at(sum(entry.get("bytes", {}).get(way, 0) for entry in entries), way=way)
        scores = [
            Gauge(f"site_{name}", f"{name.replace('_', ' ')} on held-out samples.".capitalize()) for name in NUMBERS
        ]
        for name, gauge in zip(NUMBERS, scores, strict=True):
            for model in MODELS:
                gauge.at(newest.get(model, {}).get(name), model=model)
        gain, points = newest.get("gain", {}), "Accuracy gained by taking part, in points"
        gained = Gauge("site_gain_points", f"{points}.").at(gain.get("points"))
        around = Gauge("site_gain_points_interval", f"{points}: ends of the 95 % interval.")
        for end in ("low", "high"):
            around.at(gain.get(end), end=end)
        return [*first, done, when, tested, taken, moved, *scores, gained, around]


def site_journal(state: Path, federation: str, site: str) -> Journal:
    """The journal of a site, in the folder in which it keeps what it has of a federation."""
    return Journal(state / federation / site)


def _short(entry: Entry) -> Entry:
    """An entry without what is shown of the newest alone."""
    left_out = ("recall", "support", "reliability")
    return {
        key: {name: one for name, one in value.items() if name not in left_out} if key in MODELS else value
        for key, value in entry.items()
    }


def _seconds_of(entry: Entry) -> float | None:
    try:
        return datetime.fromisoformat(entry["time"]).timestamp()
    except (KeyError, ValueError):
        return None
