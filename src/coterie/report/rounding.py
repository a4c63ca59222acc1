"""Numbers as a page holds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coterie.rounds.evaluate import Floats

Content = dict[str, Any]
"""What a page shows, as plain values."""


def rounded(values: Floats | Sequence[float], digits: int = 5) -> list[float | None]:
    """Numbers short enough for a page; none for what is not finite.

    >>> rounded([0.123456789, float("nan")])
    [0.12346, None]
    """
    return [round(float(value), digits) if math.isfinite(value) else None for value in values]
