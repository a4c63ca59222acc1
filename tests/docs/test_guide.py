"""The decision guide says what was measured."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Any

import pytest
import tools.guide
from tools.guide import METHODS, MOMENTS, RESULTS, SITUATIONS, page

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
    """What docs/howto/pick-a-method.md says, in the order of the page."""
    for situation in SITUATIONS:
        tuned = gains(situation, "fedavg-ft", "received")
        yield f"own training after FedAvg gains: {situation}", min(tuned) > 0
        if situation != "groups":
            others = set(METHODS) - {"fedavg-ft", "fedavg-ft:step=0.5"}
            best = max(fmean(gains(situation, one, moment)) for one in others for moment in MOMENTS)
            at_its_best = max(fmean(gains(situation, "fedavg-ft:step=0.5", "received")), fmean(tuned))
            yield f"nobody is clearly ahead of it: {situation}", best < at_its_best + 1.5
    yield "one model gains where inputs differ", min(gains("forms", "fedavg", "trained")) > 7
    yield "keeping classifiers apart half of that", 0.4 < ratio("forms", "fedper", "fedavg") < 0.6
    yield "one model gains where clients are alike", min(gains("alike", "fedavg", "received")) > 20
    for method in ("fedavg", "ditto", "fedala"):
        yield f"{method} gains where classes are somewhat uneven", min(gains("mild", method, "trained")) > 8
    yield "sixteen points", 15 < fmean(gains("mild", "fedavg", "trained")) < 17
    down = gains("skewed", "fedavg", "received")
    yield "nothing clear as downloaded under uneven classes", stdev(down) > abs(fmean(down))
    yield "half of the way gains five", 4.5 < min(gains("skewed", "fedavg-ft:step=0.5", "received")) < 5.5
    yield "a model held near it three", 2.5 < fmean(gains("skewed", "ditto", "trained")) < 3.5
    yield "classifiers kept apart one", 0.5 < fmean(gains("skewed", "fedper", "trained")) < 1.5
    yield "one model loses among groups", -8 < fmean(gains("groups", "fedavg", "received")) < -6
    yield "and is ahead once trained", min(gains("groups", "fedavg", "trained")) > 0
    yield "finding the groups gains", 2.5 < fmean(gains("groups", "fedrema", "trained")) < 3.5
    yield "with every seed", min(gains("groups", "fedrema", "trained")) > 0
    worst = MEASURED["situations"]["groups"]
    better = zip(worst["fedrema"]["worst"], worst["local"]["worst"], strict=True)
    yield "most for the worst off", min(ours - alone for ours, alone in better) > 0.05
    for situation in SITUATIONS:
        yield f"ditto gains: {situation}", min(gains(situation, "ditto", "trained")) > 0
    ranked = sorted(METHODS, key=lambda one: -fmean(gains("skewed", one, "trained")))
    yield "ditto leads where classes are very uneven", ranked[0] == "ditto"


def ratio(situation: str, one: str, other: str) -> float:
    """How much of another method's gain a method has."""
    return fmean(gains(situation, one, "trained")) / fmean(gains(situation, other, "trained"))


def test_all_train_as_long_but_for_what_the_table_tells() -> None:
    """Among clients of one size a group of parameters has as many gradients in every method."""
    alike = MEASURED["situations"]["alike"]
    (usual,) = alike["local"]["effort"]["steps"].values()
    for method, found in alike.items():
        for moves, count in found["effort"]["steps"].items():
            if "blend" not in moves:
                assert count == pytest.approx(usual, rel=0.06), (method, moves)


@pytest.mark.parametrize(("words", "so"), list(statements()))
def test_what_the_guide_says_was_measured(words: str, so: bool) -> None:
    assert so, words


def test_examples_in_the_tool_hold() -> None:
    outcome = doctest.testmod(tools.guide)
    assert outcome.attempted
    assert not outcome.failed
