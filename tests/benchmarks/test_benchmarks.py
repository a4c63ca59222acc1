"""The benchmarks run: at a size that says nothing about speed, but everything about their not being broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from benchmarks.harness import Figure, in_turns, ratio

from benchmarks import baselines, core, methods


def test_ratios_are_of_medians_and_bars_are_judged() -> None:
    figure = ratio("x", [2.0, 4.0, 6.0], [1.0, 2.0, 3.0], ("a", "b"), bar=1.5)
    assert figure.value == 2.0
    assert (figure.low, figure.high) == (2.0, 2.0)
    assert not figure.met
    assert Figure("x", "a", "b", 2.0, 2.0, 2.0, bar=1.5, at_most=False).met


def test_cases_run_in_turns() -> None:
    calls: list[str] = []
    seconds = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, warmup=0)
    assert calls == ["a", "b", "b", "a"]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("figures", "count"),
    [
        (lambda: core.serial_against_bare(repeats=2, scale=0.1), 3),
        (lambda: methods.rounds_against_plain(repeats=2, samples=10, epochs=1), 5),
        (lambda: baselines.against_bare_work(repeats=2, samples=10, epochs=1), 4),
    ],
)
def test_benchmarks_run(figures: Callable[[], Iterator[Figure]], count: int) -> None:
    found = list(figures())
    assert len(found) == count
    assert all(0 < one.low <= one.high and one.value > 0 for one in found)
