"""The day as a table: what was done, how often, and what it cost whom."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coterie.files import write_whole

Event = dict[str, Any]


def write_table(folder: Path, target: Path) -> None:
    """Write what became of the day in a folder: its events as `chaos.json`, its table as `chaos.md`."""
    events = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    text = "[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n"
    write_whole(target / "chaos.json", text.encode())
    write_whole(target / "chaos.md", table_of(events).encode())


def table_of(events: list[Event]) -> str:
    """The table, and what it is about in a few lines.

    >>> begun = {"event": "begun", "at": 0.0, "seed": 0, "rounds": 1, "faults": 0}
    >>> print(table_of([begun]).splitlines()[0])
    Seed 0: 0 of 1 rounds, 0 of 0 faults, in 0 minutes.
    """
    begun = events[0]
    faults, rounds = of(events, "fault"), of(events, "round")
    last = {event["round"]: event for event in rounds}  # a round that was taken again counts as it was taken last
    wrong = of(events, "violation")
    minutes = max(event["at"] for event in events) / 60
    lines = [
        f"Seed {begun['seed']}: {len(last)} of {begun['rounds']} rounds, {len(faults)} of {begun['faults']} faults, in "
        f"{minutes:.0f} minutes.",
        "",
        *(f"- {line}" for line in remarks(events, list(last.values()))),
        "",
        "| fault | at the server | at a site | rounds that its site missed | back after, s (median, longest) |",
        "|---|---|---|---|---|",
        *rows(faults, of(events, "back"), of(events, "over")),
        "",
    ]
    if wrong:
        lines += ["Rules that were broken:", "", *(f"- {event['words']}" for event in wrong), ""]
    return "\n".join(lines)


def of(events: Iterable[Event], kind: str) -> list[Event]:
    """The events of a kind."""
    return [event for event in events if event["event"] == kind]


def remarks(events: list[Event], rounds: list[Event]) -> list[str]:
    """What holds for the day as a whole."""
    missed = sum(len(event["missing"]) for event in rounds)
    alone = sum(not excuses for event in rounds for excuses in event["missing"].values())
    back = of(events, "taken back")
    seconds = [event["seconds"] for event in rounds]
    again = [event for event in of(events, "ended") if (event["code"] or 0) > 0]
    found = [
        f"rows: {sum(event['equal'] for event in rounds)} rounds equal to the replay, of {len(rounds)}; "
        f"{sum(event['compared'] for event in rounds)} files of server and sites were compared",
        f"misses: {missed} of {5 * len(rounds)} answers were missing, {alone} of them of a site without a fault",
        f"rounds taken back: {sum(event['rounds'] for event in back)}",
        f"longest silence before it was said what is waited for: {most(rounds, 'silence'):.1f} s",
        f"longest time for which the status was behind: {most(rounds, 'lag'):.1f} s",
        f"commands that ended by themselves and were started again: {len(again)}",
        f"interruptions of the day itself: {len(of(events, 'carried on'))}",
    ]
    if seconds:
        found.append(f"seconds a round: median {statistics.median(seconds):.1f}, longest {max(seconds):.0f}")
    return found


def most(rounds: list[Event], what: str) -> float:
    """The largest of a number of all rounds."""
    return max((float(event[what]) for event in rounds), default=0.0)


def rows(faults: list[Event], back: list[Event], over: list[Event]) -> Iterable[str]:
    """A row for each kind of fault."""
    returned = {event["number"]: event for event in back}
    ended = {event["number"]: event["at"] for event in over}
    kinds: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for fault in faults:
        kinds[fault["family"], fault["kind"]].append(fault)
    for (family, kind), found in kinds.items():
        at_server = sum(fault["host"] == "server" for fault in found)
        came = [returned[fault["number"]] for fault in found if fault["number"] in returned]
        missed = str(sum(event["missed"] for event in came)) if came else ""
        seconds = [event["at"] - ended[event["number"]] for event in came if event["number"] in ended]
        took = f"{statistics.median(seconds):.0f}, {max(seconds):.0f}" if seconds else ""
        name = kind if kind.startswith(("answer", "request", family)) else f"{family}: {kind}"
        yield f"| {name} | {at_server or ''} | {len(found) - at_server or ''} | {missed} | {took} |"
