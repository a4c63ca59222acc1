"""Differences over seeds as evidence: against tables of Student's t, worked out by hand, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from coterie.core.evidence import ENOUGH_SEEDS, ERROR, Evidence, clear_rivals, further_seeds


def test_the_interval_is_that_of_a_table_of_students_t() -> None:
    # Mean 4, s = 2, n = 4: s/√n = 1, and t(0.975, 3) = 3.182 in every table.
    low, high = Evidence.of([2.0, 3.0, 4.0, 7.0]).interval
    s = math.sqrt((4 + 1 + 0 + 9) / 3)
    assert (low, high) == pytest.approx((4 - 3.18245 * s / 2, 4 + 3.18245 * s / 2), rel=1e-5)


@pytest.mark.parametrize("values", [[0.6, -1.3, 0.8], [1.0, 1.2, 0.9, 1.6], [-2.0, -2.5, 0.3, -1.0, -0.2]])
def test_p_is_that_of_a_paired_test(values: list[float]) -> None:
    expected = stats.ttest_1samp(values, 0.0)
    evidence = Evidence.of(values)
    assert evidence.p == pytest.approx(expected.pvalue)
    assert evidence.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert (evidence.sign != 0) == (expected.pvalue < ERROR) == (not evidence.interval[0] < 0 < evidence.interval[1])


def test_nothing_is_clear_with_fewer_than_three_seeds_or_without_numbers() -> None:
    assert [Evidence.of(values).sign for values in ([9.0], [9.0, 9.0], [9.0, 9.0, math.nan], [9.0, 9.0, 9.0])] == [
        0,
        0,
        0,
        1,
    ]
    assert Evidence.of([9.0]).interval == (-math.inf, math.inf)
    assert not Evidence.of([0.0, 0.0]).within(0.5)


def test_what_does_not_vary_is_clear() -> None:
    assert (Evidence.of([-1.0] * 3).sign, Evidence.of([0.0] * 3).sign) == (-1, 0)
    assert Evidence.of([0.0] * 3).within(0.5)


def test_more_seeds_make_a_true_difference_clearer_and_a_false_one_no_commoner() -> None:
    """The rule before asked for a mean beyond one standard deviation: with many seeds it saw less, not more."""
    stream = np.random.default_rng(0)

    def share_clear(effect: float, seeds: int) -> float:
        return float(np.mean([Evidence.of(stream.normal(effect, 1.0, seeds)).sign > 0 for _ in range(400)]))

    powers = [share_clear(1.0, seeds) for seeds in (3, 5, 10, 20)]
    assert powers == sorted(powers)
    assert powers[2] > 0.7
    assert all(share_clear(0.0, seeds) < 0.06 for seeds in (3, 10))


def test_further_seeds_are_the_fewest_that_suffice() -> None:
    count = 3 + (further_seeds(3, 1.0, 1.5) or 0)
    reach = [stats.t.ppf(0.975, n - 1) * 1.5 / math.sqrt(n) for n in (count - 1, count)]
    assert reach[0] >= 1.0 > reach[1]
    assert further_seeds(1, 10.0, 0.1) == ENOUGH_SEEDS - 1
    assert further_seeds(50, 10.0, 0.1) == 0
    assert Evidence.of([0.0, 0.0]).further_seeds is None


def test_holms_procedure() -> None:
    def with_p(p: float) -> Evidence:
        # Three differences with mean t/√3 · s and s = 1 around it: p is then that of t.
        t = float(stats.t.isf(p / 2, 2))
        return Evidence.of([t / math.sqrt(3) + step for step in (-1.0, 0.0, 1.0)])

    evidence = {name: with_p(p) for name, p in (("a", 0.012), ("b", 0.02), ("c", 0.03), ("d", 0.001))}
    assert [known.p for known in evidence.values()] == pytest.approx([0.012, 0.02, 0.03, 0.001])
    # 0.001 < 0.05/4 and 0.012 < 0.05/3, 0.02 < 0.05/2, 0.03 < 0.05
    assert clear_rivals(evidence) == {"a": 1, "b": 1, "c": 1, "d": 1}
    # 0.02 > 0.05/3: from there on nothing is clear, though 0.03 < 0.05
    assert clear_rivals({**evidence, "a": with_p(0.028)}) == {"a": 0, "b": 0, "c": 0, "d": 1}
    assert clear_rivals({"few": Evidence.of([5.0, 5.0])}) == {"few": 0}
    assert clear_rivals({}) == {}
