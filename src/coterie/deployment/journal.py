"""What a site writes down about its rounds, for itself: a JSON object a line. Free of PyTorch: launchers read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coterie.files import write_whole

JOURNAL = "journal.jsonl"

Entry = dict[str, Any]


class Journal:
    """The file of a site's rounds, in order; the finished model stands last, with `"finished": true`.

    A round that is done again, and all that the server took back, makes way for what is new.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL

    def entries(self) -> list[Entry]:
        """All that is written down and can be read."""
        try:
            texts = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        found: list[Entry] = []
        for text in texts:
            try:
                entry = json.loads(text)
            except ValueError:
                continue
            if isinstance(entry, dict) and isinstance(entry.get("round"), int):
                found.append(entry)
        return found

    def add(self, entry: Entry) -> None:
        """Write down a round, or the end.

        >>> import tempfile
        >>> journal = Journal(Path(tempfile.mkdtemp()))
        >>> for entry in ({"round": 1}, {"round": 2}, {"round": 2, "finished": True}, {"round": 2, "again": True}):
        ...     journal.add(entry)
        >>> journal.entries()
        [{'round': 1}, {'round': 2, 'again': True}]
        """
        earlier = [one for one in self.entries() if _place(one) < _place(entry)]
        lines = (json.dumps(one, allow_nan=False) for one in (*earlier, entry))
        write_whole(self.path, "".join(f"{line}\n" for line in lines).encode())


def _place(entry: Entry) -> tuple[int, bool]:
    return entry["round"], bool(entry.get("finished"))
