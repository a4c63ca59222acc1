"""How sure a site can be that taking part pays."""

from __future__ import annotations

import pytest

from coterie.deployment.gain import paired_gain


def test_the_interval_is_bonett_and_prices() -> None:
    """By hand, 8 and 2 of 50: (9 − 3)/52 ± 1.959964·√((12/52 − (6/52)²)/52) = 0.115385 ± 0.126745."""
    gain = paired_gain(8, 2, 50)
    assert gain is not None
    assert gain.points == pytest.approx(12.0)
    assert gain.low == pytest.approx(100 * (6 / 52 - 0.126745), abs=0.01)
    assert gain.high == pytest.approx(100 * (6 / 52 + 0.126745), abs=0.01)
    assert not gain.clear
    assert paired_gain(0, 0, 0) is None
    none = paired_gain(0, 0, 3)
    assert none is not None
    assert none.low < 0 < none.high, "three samples on which both are right prove nothing"
    clear = paired_gain(0, 30, 60)
    assert clear is not None
    assert clear.sentence.startswith("Taking part costs you −50.0 points")
