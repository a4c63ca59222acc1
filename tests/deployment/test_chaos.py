"""A short chaos day: the long one is `python -m tools.chaos`, what came of it is in results/chaos.md."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

from tools.chaos.day import Day
from tools.chaos.faults import FAMILIES, SERVER, Fault
from tools.chaos.place import Place
from tools.chaos.table import table_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("networks"),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]

LIMIT = 3600.0  # seconds, on the busiest machine
FAULTS = (
    (2, "training", "hostile answer", "answer: a row of 3e38", "site-b"),
    (3, "asked", "kill -9", "kill resident", "site-c"),
    (3, "answering", "kill -9", "kill app", SERVER),
    (4, "opening", "damaged state", "torn checkpoint", SERVER),
    (5, "asked", "lines", "line cut", "site-d"),
    (6, "asked", "hostile request", "request: an answer to nothing", "site-e"),
    (6, "training", "damaged state", "torn snapshot", "site-a"),
)


def test_faults_of_every_kind_cost_nobody_else_a_round(tmp_path: Path) -> None:
    plan = [Fault(number, *fault, seed=number) for number, fault in enumerate(FAULTS, 1)]
    assert {fault.family for fault in plan} <= FAMILIES.keys()
    said: list[str] = []
    try:
        place = Place(tmp_path / "day", 12, deadline=900.0)
    except AssertionError as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        day = Day(place, plan, said.append)
        assert day.run(time.monotonic() + LIMIT), said
    finally:
        place.close()
        place.unmount()
    wrong = [event["words"] for event in day.events if event["event"] == "violation"]
    # How long a silence lasts, and how far a status lags behind, is the machine's affair as well.
    assert not [words for words in wrong if not words.startswith(("silence", "the status"))], said
    assert len([event for event in day.events if event["event"] == "fault"]) == len(plan)
    assert all(event["equal"] for event in day.events if event["event"] == "round")
    assert f"{len(plan)} of {len(plan)} faults" in table_of(day.events)
