"""ε against Opacus's own accountant and against the exact ε of Gaussian noise."""

from __future__ import annotations

import logging
import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from coterie.errors import CoterieError
from coterie.privacy import account
from coterie.privacy.account import ORDERS, Release, epsilon_of

pytestmark = pytest.mark.thorough  # Opacus takes seconds to load


def exact_gaussian(multiplier: float, steps: int, delta: float) -> float:
    """The least ε of Gaussian noise without sampling (Balle and Wang, 2018): steps add up to one of less noise."""
    mu = math.sqrt(steps) / multiplier

    def missing(epsilon: float) -> float:
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return float(brentq(missing, 0.0, 200.0))


@pytest.mark.parametrize(("multiplier", "rate", "steps"), [(1.1, 256 / 60_000, 14_040), (0.8, 0.1, 50), (2.0, 1.0, 10)])
def test_equals_opacus(multiplier: float, rate: float, steps: int) -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    theirs.history = [(multiplier, rate, steps)]
    wanted = theirs.get_epsilon(1e-5, alphas=list(ORDERS))
    assert epsilon_of([Release(multiplier, steps, rate)], 1e-5) == pytest.approx(wanted, rel=1e-9)
    # Our orders are not fewer than needed: Opacus's own give no smaller ε by a hundredth.
    assert wanted <= 1.01 * theirs.get_epsilon(1e-5)


def by_hand(multiplier: float, rate: float, steps: int, delta: float) -> float:
    """The same written out for whole orders (Mironov et al., 2019), and how they become an ε (Balle et al., 2020)."""
    found = []
    for order in range(2, 33):
        terms = (
            math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * math.exp((k * k - k) / (2 * multiplier**2))
            for k in range(order + 1)
        )
        divergence = steps * math.log(sum(terms)) / (order - 1)
        found.append(divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return min(found)


@pytest.mark.parametrize(("multiplier", "rate", "steps"), [(1.1, 256 / 60_000, 14_040), (2.0, 0.05, 100)])
def test_equals_the_formulas_written_out(multiplier: float, rate: float, steps: int) -> None:
    found = epsilon_of([Release(multiplier, steps, rate)], 1e-5)
    assert found == pytest.approx(by_hand(multiplier, rate, steps, 1e-5), rel=1e-6)


@pytest.mark.parametrize(("multiplier", "steps"), [(1.0, 1), (4.0, 20), (0.5, 3), (0.15, 1)])
def test_is_a_bound_on_the_exact_loss_and_not_far_from_it(multiplier: float, steps: int) -> None:
    exact = exact_gaussian(multiplier, steps, 1e-5)
    found = epsilon_of([Release(multiplier, steps)], 1e-5)
    assert exact <= found <= 1.15 * exact


def test_different_releases_add_up() -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    theirs.history = [(1.0, 0.2, 30), (10.0, 1.0, 1)]
    both = epsilon_of([Release(1.0, 30, 0.2), Release(10.0, 1)], 1e-5)
    assert both == pytest.approx(theirs.get_epsilon(1e-5, alphas=list(ORDERS)), rel=1e-9)
    assert both > epsilon_of([Release(1.0, 30, 0.2)], 1e-5)


def test_without_noise_there_is_no_bound_and_without_releases_nothing_is_spent() -> None:
    assert epsilon_of([Release(0.0, 1), Release(1.0, 1)], 1e-5) == math.inf
    assert epsilon_of([Release(0.0, 0)], 1e-5) == 0.0


def test_opacus_does_not_set_up_logging() -> None:
    before = list(logging.getLogger().handlers)
    epsilon_of([Release(1.0, 1)], 1e-5)
    assert logging.getLogger().handlers == before


def test_without_opacus_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opacus.accountants.analysis", None)
    monkeypatch.setattr(account, "_opacus", account._opacus.__wrapped__)
    with pytest.raises(CoterieError, match=r"pip install 'coterie\[privacy\]'"):
        epsilon_of([Release(1.25, 1)], 1e-5)
