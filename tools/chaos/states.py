"""What a disk can be like after a power cut, or after somebody has restored a back-up: faults of what is kept.

All of them come with a power cut at the host, and its start afterwards. What a site has lost for good, the replay's
site loses too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.chaos.day import Day
    from tools.chaos.faults import Act, Fault

Harm = Callable[[Path, Random], None]


def torn(path: Path, draw: Random) -> None:
    """Only its beginning was written."""
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(max(1, len(content)))])


def empty(path: Path, draw: Random) -> None:
    """Its name was written, its content was not."""
    path.write_bytes(b"")


def flipped(path: Path, draw: Random) -> None:
    """One bit is another."""
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(content))


def gone(path: Path, draw: Random) -> None:
    """Its name was not written."""
    path.unlink()


def short(path: Path, draw: Random) -> None:
    """Its last line was not written, and what was written after it was: writes were reordered."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def separate(path: Path) -> None:
    """Let what is done to a file be done to no other name of it."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def at_server(name: str, harm: Harm) -> Act:
    """Harm a file of the server's."""

    def act(day: Day, fault: Fault, draw: Random) -> str:
        place = day.place
        place.end_all(fault.host)
        path = place.server / name
        if path.is_file():
            if name.endswith("safetensors"):
                both = [other for other in (place.server / "checkpoints").glob("*") if other.samefile(path)]
                separate(path)
                harm(path, draw)
                for other in both:
                    other.unlink()
                    shutil.copyfile(path, other) if path.is_file() else None
            else:
                harm(path, draw)
        return f"{harm.__name__} {name}"

    return act


def newest(folder: Path) -> int:
    """The round of a site's newest snapshot; 0 if there is none."""
    rounds = [int(path.stem.removeprefix("round-")) for path in folder.glob("round-*.safetensors")]
    return max(rounds, default=0)


def at_site(name: str, harm: Harm) -> Act:
    """Harm a file of a site's: the newest snapshot, or one that has a name of its own."""

    def act(day: Day, fault: Fault, draw: Random) -> str:
        place, site = day.place, fault.host
        place.end_all(site)
        folder = place.store(site)
        round = newest(folder)
        path = folder / (name or f"round-{round:05d}.safetensors")
        if path.is_file():
            harm(path, draw)
            if not name:
                lost = harm in (gone,)
                day.lose(site, round - 1 if lost else round, torn=not lost)
        return f"{harm.__name__} {path.name}"

    return act


def back(day: Day, fault: Fault, draw: Random) -> str:
    """Everything is as it was some rounds ago."""
    place, count = day.place, draw.randint(1, 4)
    place.end_all(fault.host)
    if fault.host == "server":
        kept = sorted((place.server / "checkpoints").glob("*.safetensors"))
        if len(kept) <= count:
            return "there was none"
        old = kept[-1 - count]
        for path in kept[-count:]:
            path.unlink()
        (place.server / "checkpoint.safetensors").unlink(missing_ok=True)
        shutil.copyfile(old, place.server / "checkpoint.safetensors")
        lines = (place.server / "rounds.jsonl").read_bytes().splitlines(keepends=True)
        (place.server / "rounds.jsonl").write_bytes(b"".join(lines[: int(old.stem)]))
        return f"of round {int(old.stem)}"
    folder = place.store(fault.host)
    to = newest(folder) - count
    for path in folder.glob("round-*.safetensors"):
        if int(path.stem.removeprefix("round-")) > to:
            path.unlink()
    for name in ("answer.safetensors", "last-task.json"):
        (folder / name).unlink(missing_ok=True)
    day.lose(fault.host, to, torn=False)
    return f"of round {to}"


CHECKPOINT = "checkpoint.safetensors"
OF_SERVER: dict[str, Act] = {
    **{f"{harm.__name__} checkpoint": at_server(CHECKPOINT, harm) for harm in (torn, empty, flipped, gone)},
    **{f"{harm.__name__} rounds": at_server("rounds.jsonl", harm) for harm in (torn, short)},
    **{f"{harm.__name__} status": at_server("status.json", harm) for harm in (torn, empty)},
    "torn registrations": at_server("registered.json", torn),
    "flipped audit": at_server("audit.jsonl", flipped),
    "lost database": at_server("superlink.db", gone),
}
OF_SITES: dict[str, Act] = {
    **{f"{harm.__name__} snapshot": at_site("", harm) for harm in (torn, empty, flipped, gone)},
    **{f"{harm.__name__} answer": at_site("answer.safetensors", harm) for harm in (torn, flipped)},
    **{f"{harm.__name__} last task": at_site("last-task.json", harm) for harm in (torn, empty, gone)},
    "torn journal": at_site("journal.jsonl", torn),
}
BACKUPS: dict[str, Act] = {"old back-up": back}
