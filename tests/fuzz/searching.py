"""Looking for cases that go wrong: a batch of one target, from a seed, each finding shrunk to a minimal case."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import FlakyFailure
from tests.fuzz.trial import Case, Target, signature

UNHURRIED = settings(
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    print_blob=False,
)
"""Cases take as long as they take, and what is found is kept by us."""


@dataclass
class Batch:
    """What came of a batch."""

    cases: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)


def search(target: Target, first_seed: int, cases: int, tell: Callable[[Case | None], None]) -> Batch:
    """Try so many cases of a target. `tell` is told each before it is tried, and nothing once it is over.

    After a finding the search goes on from the next seed; what is found again is found once.
    """
    batch, known, number = Batch(), set[str](), first_seed
    while batch.cases < cases:
        before = batch.cases
        found = _one_search(target, number, cases - batch.cases, batch, known, tell)
        if found is not None:
            known.add(found["found"])
            batch.findings.append(found)
        elif batch.cases == before:
            break
        number += 1
    return batch


def _one_search(
    target: Target, number: int, cases: int, batch: Batch, known: set[str], tell: Callable[[Case | None], None]
) -> dict[str, Any] | None:
    """The first finding from one seed, shrunk."""
    last: dict[str, Any] = {}

    @seed(number)
    @settings(UNHURRIED, max_examples=cases)
    @given(target.cases)
    def trial(case: Case) -> None:
        batch.cases += 1
        tell(case)
        try:
            target.try_case(case)
        except Exception as error:
            kind = signature(error)
            if kind in known:
                return
            last.update(target=target.name, seed=number, found=kind, words=str(error)[:2000], case=case)
            raise
        finally:
            tell(None)

    try:
        trial()
    except (FlakyFailure, Exception):
        if not last:
            raise
        return last
    return None


def paced(act: Callable[[int], None], seconds: float = 1.0) -> Callable[[Case | None], None]:
    """Call a function with the number of cases so far, about once in so many seconds."""
    done, due = 0, time.monotonic()

    def tell(case: Case | None) -> None:
        nonlocal done, due
        if case is None:
            done += 1
            if time.monotonic() >= due:
                due = time.monotonic() + seconds
                act(done)

    return tell
