"""The decision guide says what was measured."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from typing import Any

import pytest
import tools.guide
from tools.guide import METHODS, RESULTS, SITUATIONS, page

MEASURED: dict[str, Any] = json.loads((RESULTS / "guide.json").read_text(encoding="utf-8"))


def gains(situation: str, method: str, moment: str) -> list[float]:
    """Points over training alone, seed by seed."""
    scores = MEASURED["situations"][situation]
    return [
        100 * (ours - alone) for ours, alone in zip(scores[method][moment], scores["local"]["trained"], strict=True)
    ]


def test_the_page_shows_the_numbers_that_are_kept() -> None:
    assert list(MEASURED["situations"]) == list(SITUATIONS)
    assert all(list(scores) == list(METHODS) for scores in MEASURED["situations"].values())
    assert (RESULTS / "guide.md").read_text(encoding="utf-8") == "\n".join(page(MEASURED)) + "\n"


def statements() -> Iterator[tuple[str, bool]]:
    """What docs/howto/pick-a-method.md says, in the order of its table."""
    yield "one model gains where inputs differ", min(gains("forms", "fedavg", "trained")) > 8
    yield "keeping classifiers apart does not", abs(sum(gains("forms", "fedper", "trained"))) < 3
    yield "one model gains where clients are alike", min(gains("alike", "fedavg", "received")) > 5
    for method in ("fedavg", "fedala", "fedrema"):
        yield f"{method} gains where classes are somewhat uneven", min(gains("mild", method, "trained")) > 8
    yield "one model loses under uneven classes", max(gains("skewed", "fedavg", "received")) < -4
    yield "and is ahead once trained", min(gains("skewed", "fedavg", "trained")) > 0
    for method in ("fedcac", "pfedsim", "fedala"):
        yield f"{method} gains under uneven classes", min(gains("skewed", method, "trained")) > 0
    yield "one model loses among groups", sum(gains("groups", "fedavg", "received")) < -30
    yield "finding the groups gains", min(gains("groups", "fedrema", "trained")) > 0
    worst = MEASURED["situations"]["groups"]
    better = zip(worst["fedrema"]["worst"], worst["local"]["worst"], strict=True)
    yield "most for the worst off", min(ours - alone for ours, alone in better) > 0.05
    others = set(METHODS) - {"ditto", "local"}
    yield (
        "ditto is the worst",
        all(
            max(gains(situation, "ditto", "trained")) < min(max(gains(situation, one, "trained")) for one in others)
            for situation in ("skewed", "forms", "alike")
        ),
    )


@pytest.mark.parametrize(("words", "so"), list(statements()))
def test_what_the_guide_says_was_measured(words: str, so: bool) -> None:
    assert so, words


def test_examples_in_the_tool_hold() -> None:
    outcome = doctest.testmod(tools.guide)
    assert outcome.attempted
    assert not outcome.failed
