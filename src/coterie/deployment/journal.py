"""What a site writes down about its rounds, for itself: a JSON object a line. Free of PyTorch: launchers read it.

Each line is of a type, and carries the SHA-256 of the rest of it. What is not as it was written (torn, flipped, of
another kind) is left out and named, and the whole file put aside before the next line is written; lines that a power
cut has left in another order are put in order again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from coterie.errors import CoterieError
from coterie.files import sealed_line, unsealed_line, write_whole
from coterie.runs.record import Count, Number, Travelled, decoded, plain

log = logging.getLogger("coterie")

JOURNAL = "journal.jsonl"
DAMAGED = ".damaged"

Entry = dict[str, Any]
"""A line as plain values, without what it lacks."""
Scores = dict[str, Number | list[Number] | dict[str, list[Number]]]
"""What a model is judged by: numbers, numbers by class, and how well its confidence fits."""


class Gained(Struct, frozen=True):
    """What taking part gains, as `assessment.Gain` says it."""

    points: float
    low: float
    high: float
    samples: Count
    clear: bool
    sentence: str


class SiteRound(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A round at a site, or the end of the federation there."""

    round: Count
    time: str = ""
    method: str = ""
    test_samples: Count | None = None
    received: Scores | None = None
    trained: Scores | None = None
    alone: Scores | None = None
    shared: Scores | None = None
    gain: Gained | None = None
    seconds: dict[str, float] = {}
    bytes: Travelled | None = None
    no_baseline: str = ""
    diverged: bool = False
    finished: bool = False


class Journal:
    """The file of a site's rounds, in order; the finished model stands last, with `"finished": true`.

    A round that is done again, and all that the server took back, makes way for what is new.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self._said = ""  # the damage that was said last

    def entries(self) -> list[Entry]:
        """All that is written down and is as it was written."""
        return [plain(line) for line in self._read()[0]]

    def add(self, entry: Entry) -> None:
        """Write down a round, or the end.

        >>> import tempfile
        >>> journal = Journal(Path(tempfile.mkdtemp()))
        >>> for entry in ({"round": 1}, {"round": 2}, {"round": 2, "finished": True}, {"round": 2, "method": "again"}):
        ...     journal.add(entry)
        >>> journal.entries()
        [{'round': 1}, {'round': 2, 'method': 'again'}]
        """
        line = msgspec.convert(entry, SiteRound)
        known, damage = self._read()
        if damage:
            self.path.replace(self.path.with_suffix(DAMAGED))
        earlier = [one for one in known if _place(one) < _place(line)]
        write_whole(self.path, b"".join(sealed_line(msgspec.json.encode(one)) for one in (*earlier, line)))

    def _read(self) -> tuple[list[SiteRound], str]:
        """The lines that are whole, in order, and what is wrong with the file."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return [], ""
        lines, damage = dict[tuple[int, bool], SiteRound](), "" if content else "it is empty"
        for number, text in enumerate(content.splitlines(), 1):
            try:
                line = decoded(unsealed_line(text), SiteRound, "it is of another kind")
            except (CoterieError, ValueError) as error:
                damage = damage or f"line {number}: {error}"
                continue
            lines[_place(line)] = line
        ordered = sorted(lines.values(), key=_place)
        if not damage and ordered != list(lines.values()):
            damage = "its lines are in another order"
        if damage and damage != self._said:
            log.error("'%s' is damaged (%s); what is whole of it is gone on with", self.path, damage)
        self._said = damage
        return ordered, damage


def _place(line: SiteRound) -> tuple[int, bool]:
    return line.round, line.finished
