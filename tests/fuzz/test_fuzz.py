"""A thousand cases of all fuzz targets, the same every time (`make fuzz` has new ones), and every case kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.everything import TARGETS
from tests.fuzz.searching import UNHURRIED, search
from tests.fuzz.trial import KEPT, Case, Target, WrongError, must

CASES = 1000


@pytest.mark.thorough
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_a_line_or_something_whole(name: str) -> None:
    target = TARGETS[name]
    cases = round(CASES * target.share / sum(one.share for one in TARGETS.values()))

    @settings(UNHURRIED, max_examples=cases, derandomize=True)
    @given(target.cases)
    def trial(case: Case) -> None:
        target.try_case(case)

    trial()


@pytest.mark.parametrize("file", sorted(KEPT.glob("*.json")), ids=lambda file: file.stem)
def test_what_went_wrong_once(file: Path) -> None:
    kept = json.loads(file.read_text(encoding="ascii"))
    TARGETS[kept["target"]].try_case(kept["case"])


def test_a_search_finds_what_goes_wrong_and_shrinks_it() -> None:
    def check(case: Case, folder: Path) -> None:
        must(case["number"] < 100, "too large")

    target = Target("numbers", st.fixed_dictionaries({"number": st.integers(0, 10_000)}), check, 1)
    told: list[Any] = []
    batch = search(target, 7, 200, told.append)
    assert [one["case"] for one in batch.findings] == [{"number": 100}]
    assert batch.cases == len([case for case in told if case is not None]) >= 100
    with pytest.raises(WrongError, match="too large"):
        target.try_case({"number": 100})
