"""The figures of several runs: curves of the methods, what they cost, who gained and who lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.report.drawing import (
    DASHES,
    INK,
    LINE,
    MOMENTS,
    SERIES,
    legend,
    metric_title,
    new_figure,
    plain,
    scores,
    style,
)
from coterie.report.rounding import Content

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS = {"bytes": ("bytes up and down so far, MB", 1e6), "seconds": ("seconds of computation so far", 1.0)}


def method_curves(comparison: Content) -> Figure | None:
    """The methods' means over clients and seeds, a panel for each moment; bands are deviations over seeds."""
    methods, metric = comparison["methods"], comparison["metric"]
    moments = [moment for moment in MOMENTS if any(moment in one["curves"] for one in methods)]
    if not moments:
        return None
    figure = new_figure(4.4 * len(moments), 3.6, f"The methods: {metric['name']}, mean over clients and seeds")
    places = figure.subplots(1, len(moments), squeeze=False)[0]
    for axes, moment in zip(places, moments, strict=True):
        style(axes, "round", metric_title(metric))
        axes.set_title(MOMENTS[moment], fontsize=9, color=INK, loc="left")
        for number, one in enumerate(methods):
            if moment not in one["curves"]:
                continue
            curve, colour = one["curves"][moment], SERIES[number % len(SERIES)]
            mean = scores(metric, curve["mean"])
            dash = DASHES[number // len(SERIES) % len(DASHES)]
            axes.plot(curve["rounds"], mean, color=colour, ls=dash, label=plain(one["title"]))
            if curve["std"]:
                std = scores(metric, curve["std"])
                axes.fill_between(curve["rounds"], mean - std, mean + std, color=colour, alpha=0.16, lw=0)
    legend(figure, places[0])
    return figure


def against(comparison: Content, what: str) -> Figure | None:
    """The methods' scores as received against what they had cost by then."""
    title, unit = UNITS[what]
    metric = comparison["metric"]
    figure = new_figure(5.6, 3.6, f"{metric['name'].capitalize()} as received, against {what}")
    axes = style(figure.subplots(), title, metric_title(metric))
    for number, one in enumerate(comparison["methods"]):
        curve = one["curves"]["received"]
        look: dict[str, Any] = {
            "color": SERIES[number % len(SERIES)],
            "ls": DASHES[number // len(SERIES) % len(DASHES)],
        }
        axes.plot(np.array(curve[what]) / unit, scores(metric, curve["mean"]), label=plain(one["title"]), **look)
    legend(figure, axes)
    return figure


def gains(comparison: Content) -> Figure | None:
    """Every client a dot: how much better than by training alone."""
    moments = {moment: rows for moment, rows in comparison["gains"]["moments"].items() if rows}
    if not moments:
        return None
    metric = comparison["metric"]
    most = max(map(len, moments.values()))
    figure = new_figure(4.6 * len(moments), 1.2 + 0.6 * most, "Each client against training alone")
    places = figure.subplots(1, len(moments), sharex=True, squeeze=False)[0]
    for axes, (moment, rows) in zip(places, moments.items(), strict=True):
        unit = ", percentage points" if metric["share"] else ""
        style(axes, f"gain in {metric['name']}{unit}", "")
        axes.axvline(0, color=INK, lw=0.8)
        axes.grid(axis="x", color=LINE, linewidth=0.7)
        for place, row in enumerate(rows):
            values = scores(metric, [gain["gain"] for gain in row["gains"]])
            spread = ((np.arange(len(values)) * 7) % 5 - 2) * 0.07
            colours = [SERIES[0] if value > 0 else SERIES[1] if value < 0 else SERIES[5] for value in values]
            axes.scatter(values, place + spread, s=18, c=colours, alpha=0.75, lw=0)
            axes.vlines(float(np.mean(values)), place - 0.3, place + 0.3, color=INK, lw=2)
        told = [f"{plain(row['method'])}\n{row['gained']} gained, {row['lost']} lost" for row in rows]
        axes.set_yticks(range(len(rows)), told)
        axes.invert_yaxis()
        axes.set_title(f"models as {moment}", fontsize=9, color=INK, loc="left")
    return figure
