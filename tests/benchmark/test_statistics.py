"""Who is ahead: each number worked out another way."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.benchmark.statistics import (
    against,
    bayesian_signed_rank,
    hierarchical,
    mean_gain,
    rank_intervals,
    share_harmed,
    worst_tenth,
)


def test_a_bootstrap_draws_clients_and_for_each_of_them_seeds() -> None:
    values = np.array([[0.0, 10.0, 20.0], [2.0, 12.0, 22.0]])  # clients differ by 10, seeds by 2
    number, (low, high) = hierarchical(values, mean_gain)
    assert number == 11.0
    # One draw: the mean of 3 clients of 0, 10, 20, plus the mean of 6 coins of 0 and 2. Its deviation, by hand:
    deviation = ((200 / 3) / 3 + 1 / 6) ** 0.5
    assert 1.5 * deviation < 11 - low < 2.2 * deviation
    assert 1.5 * deviation < high - 11 < 2.2 * deviation
    _, (low, high) = hierarchical(values[:, :1], mean_gain)  # seeds alone are left
    assert (low, high) == (0.0, 2.0)


def test_several_contestants_are_corrected_for_and_few_sets_prove_nothing() -> None:
    sets = [f"set{place}" for place in range(8)]
    bar = dict.fromkeys(sets, 0.5)
    ahead = {name: 0.6 + 0.01 * place for place, name in enumerate(sets)}
    mixed = {name: 0.5 + 0.01 * (place + 1) * (-1) ** place for place, name in enumerate(sets)}
    few = {name: ahead[name] for name in sets[:5]}
    found = against(bar, {"ahead": ahead, "mixed": mixed, "few": few})
    assert found.keys() == {"ahead", "mixed"}
    assert found["ahead"] == pytest.approx(2 * 2 / 2**8)  # all of 8 on one side, both sides, two contestants
    assert found["mixed"] > 0.5


def test_a_belief_is_that_of_baycomp() -> None:
    baycomp = pytest.importorskip("baycomp", reason="baycomp is not installed")
    stream = np.random.default_rng(3)
    for shift in (-0.01, 0.0, 0.004, 0.02):
        differences = stream.normal(shift, 0.02, 12)
        theirs = baycomp.SignedRankTest.probs(np.zeros(12), differences, rope=0.005, nsamples=20_000, random_state=1)
        found = bayesian_signed_rank(differences.tolist())
        assert (found.behind, found.alike, found.ahead) == pytest.approx(theirs, abs=0.02)


def test_a_belief_of_one_set_is_that_of_a_plain_integral() -> None:
    # One set, a difference of 1: with weight w ~ Beta(1, 1/2) pairs lie ahead with w² + 2 w (1 − w), else alike.
    found = bayesian_signed_rank([1.0], alike=0.005)
    # ahead is the largest where w (2 − w) > 1/2, w > 1 − √½; P(W > x) = √(1 − x) for Beta(1, 1/2).
    assert found.ahead == pytest.approx(0.5**0.25, abs=0.02)
    assert found.behind == 0.0
    assert found.alike == pytest.approx(1 - 0.5**0.25, abs=0.02)


def test_ranks_have_intervals_over_sets() -> None:
    always = np.array([[0.9, 0.5]] * 6)
    assert rank_intervals(always) == [(1.0, 1.0), (2.0, 2.0)]
    turning = np.array([[0.9, 0.5], [0.5, 0.9]] * 3)
    (low, high), _ = rank_intervals(turning)
    assert low < 1.3 < 1.7 < high


def test_a_worst_tenth_is_of_one_client_at_least() -> None:
    assert worst_tenth(np.array([0.3, 0.1, 0.9])) == pytest.approx(0.1)
    assert worst_tenth(np.arange(20) / 20) == pytest.approx(0.025)


def test_half_a_point_harms_nobody() -> None:
    assert share_harmed(np.array([-0.004, -0.006, 0.1, -0.5])) == 0.5
