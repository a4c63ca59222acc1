"""When a difference over seeds is clear, worked out by hand."""

from __future__ import annotations

from coterie.core.numbers import clear_sign


def test_a_mean_of_just_one_deviation_is_not_clear() -> None:
    """2, 4 and 15 have the mean 7 and the squared deviation (25 + 9 + 64) / 2 = 49."""
    assert clear_sign([2, 4, 15]) == clear_sign([-2, -4, -15]) == 0
    assert clear_sign([2, 4, 14]) == 1
    assert clear_sign([-2, -4, -14]) == -1
