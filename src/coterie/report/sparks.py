"""Tiny pictures for cards in notebooks: inline SVG, without axes, in colours that hold on light and on dark ground."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coterie.core.scale import number_text

WIDTH, HEIGHT, BELOW = 260, 70, 4
BLUE, ORANGE = "#3b8fd0", "#dd7a1f"
# More bars than this are drawn as the quantiles of all; more points of a curve are thinned out.
MOST_BARS, MOST_POINTS = 65, 130

Curve = tuple[str, tuple[Sequence[float], Sequence[float]]]
"""A colour, and the places and values of points."""


def curves(lines: Sequence[Curve]) -> str:
    """Curves that share both axes; the smallest and the largest value stand beside them."""
    known = [value for _, (_, values) in lines for value in values if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    spread = high - low or 1.0
    first, last = (pick(place for _, (places, _) in lines for place in places) for pick in (min, max))
    width = last - first or 1.0
    drawn = []
    for colour, (places, values) in lines:
        points = _thinned([(x, y) for x, y in zip(places, values, strict=True) if math.isfinite(y)])
        at = [
            (4 + (WIDTH - 8) * (x - first) / width, HEIGHT - BELOW - (HEIGHT - 8) * (y - low) / spread)
            for x, y in points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        drawn.append(f'<circle cx="{at[-1][0]:.1f}" cy="{at[-1][1]:.1f}" r="2.6" fill="{colour}"/>' if at else "")
    return _svg("".join(drawn), _told(low), _told(high))


def bars(values: Sequence[float], colour: str) -> str:
    """A bar for each value, from zero; where there are very many, for quantiles of them in rising order."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    shown = values if len(values) <= MOST_BARS else np.quantile(known, np.linspace(0, 1, MOST_BARS)).tolist()
    high, low = max(max(known), 0.0), min(min(known), 0.0)
    spread = high - low or 1.0
    step = (WIDTH - 8) / len(shown)
    drawn = []
    for place, value in enumerate(shown):
        if math.isfinite(value):
            top, foot = (
                HEIGHT - BELOW - (HEIGHT - 8) * (edge - low) / spread for edge in (max(value, 0), min(value, 0))
            )
            x, wide = 4 + step * place, max(step * 0.78, 0.8)
            drawn.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{max(foot - top, 0.8):.1f}"/>')
    return _svg(f'<g fill="{colour}">{"".join(drawn)}</g>', _told(low), _told(high))


def _told(value: float) -> str:
    return f"{value:g}" if float(value).is_integer() else number_text(value)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(place)] for place in np.linspace(0, len(points) - 1, MOST_POINTS).tolist()]


def _svg(inside: str, low: str, high: str) -> str:
    ground = f'<path d="M4 {HEIGHT - BELOW + 1}H{WIDTH - 4}" stroke="currentColor" opacity=".3"/>'
    look = f'x="{WIDTH + 2}" font-size="10" fill="currentColor" opacity=".68" font-family="system-ui,sans-serif"'
    told = f'<text y="11" {look}>{high}</text><text y="{HEIGHT - 4}" {look}>{low}</text>'
    return f'<svg width="{WIDTH + 50}" height="{HEIGHT}" role="img" style="display:block">{ground}{inside}{told}</svg>'
