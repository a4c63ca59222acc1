"""The figures of finished models: classes recognised, ranking, calibration; by client, or method by method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from coterie.report.drawing import DASHES, INK, LINE, SERIES, SOFT, legend, new_figure, plain, scores, style
from coterie.report.learning import Floats
from coterie.report.pictures import ABSENT, WEIGHTS
from coterie.report.rounding import Content

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARE = {"share": True}
# A bin of fewer of the samples lies anywhere: it is a dot, and no turn of the line.
FIRM = 0.01


def _recall(run: Content) -> Figure | None:
    quality, order = run["quality"], run["order"]
    if quality["why"] or quality["recall"] is None:
        return None
    shares = np.array([scores(SHARE, quality["recall"][k]) for k in order])
    title = f"{run['method']}: recall of each class, %, by client"
    return _grid(title, shares, [run["clients"][k] for k in order], quality["classes"])


def _grid(title: str, shares: Floats, rows: Sequence[str], columns: Sequence[str]) -> Figure:
    from matplotlib.colors import LinearSegmentedColormap

    figure = new_figure(1.8 + 0.5 * min(len(columns), 20), 1.3 + 0.24 * len(rows), title)
    axes = figure.subplots()
    colours = LinearSegmentedColormap.from_list("recall", WEIGHTS).with_extremes(bad=ABSENT)
    image = axes.imshow(shares, cmap=colours, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    if len(columns) <= 20 and len(rows) <= 60:
        for (row, column), share in np.ndenumerate(shares):
            if not np.isnan(share):
                colour = "white" if share > 50 else INK
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=7, color=colour)
    every = max(1, len(columns) // 25)
    axes.set_xticks(range(0, len(columns), every), [plain(name) for name in columns[::every]], fontsize=7)
    axes.set_yticks(range(len(rows)), [plain(name) for name in rows], fontsize=7)
    axes.set_xlabel("class (sand: no test samples of it)", color=SOFT, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, colors=SOFT, length=0)
    return figure


def _ranking(run: Content) -> Figure | None:
    quality, order = run["quality"], run["order"]
    if quality["why"]:
        return None
    rows = np.arange(len(order))
    title = f"{run['method']}: ranking and calibration by client"
    figure = new_figure(7.0, 1.2 + 0.22 * len(order), title)
    left, right = figure.subplots(1, 2, sharey=True)
    left.scatter(scores(SHARE, [quality["auc"][k] for k in order]), rows, s=22, color=SERIES[0])
    errors = np.nan_to_num(scores(SHARE, [quality["ece"][k] for k in order]))
    right.barh(rows, errors, height=0.6, color=SERIES[1], alpha=0.75)
    for axes, name in ((left, "AUC, one against the rest, %"), (right, "calibration error (ECE), %")):
        style(axes, name, "")
        axes.grid(axis="x", color=LINE, linewidth=0.7)
    left.set_yticks(rows, [plain(run["clients"][k]) for k in order], fontsize=7)
    left.invert_yaxis()
    return figure


def _calibration(run: Content) -> Figure | None:
    if run["quality"]["why"]:
        return None
    return _curves(f"{run['method']}: what confidence is worth", [("all clients", run["quality"]["together"])])


def _curves(title: str, curves: Sequence[tuple[str, Content]]) -> Figure:
    figure = new_figure(4.8, 4.4, title)
    axes = style(figure.subplots(), "confidence (mean of the bin), %", "right predictions, %")
    axes.plot([0, 100], [0, 100], color=SOFT, lw=1, ls="--", label="perfect")
    for number, (name, one) in enumerate(curves):
        samples = np.array(one["samples"])
        part = samples / max(samples.sum(), 1)
        x, y, colour = scores(SHARE, one["confidence"]), scores(SHARE, one["accuracy"]), SERIES[number % len(SERIES)]
        dash = DASHES[number // len(SERIES) % len(DASHES)]
        label = plain(f"{name}: ECE {100 * (one['error'] or 0):.1f} %")
        axes.plot(x[part >= FIRM], y[part >= FIRM], color=colour, ls=dash, lw=1.8, label=label)
        axes.scatter(x[part > 0], y[part > 0], s=8 + 160 * part[part > 0], color=colour, alpha=0.6, lw=0)
    legend(figure, axes, 2)
    return figure


def _recalls(comparison: Content) -> Figure | None:
    quality = comparison["quality"]
    if quality["why"]:
        return None
    shares = np.array([scores(SHARE, one["recall"]) for one in quality["methods"]])
    return _grid("Recall of each class, %", shares, [one["title"] for one in quality["methods"]], quality["classes"])


def _calibrations(comparison: Content) -> Figure | None:
    quality = comparison["quality"]
    if quality["why"]:
        return None
    return _curves("Calibration of the methods", [(one["title"], one) for one in quality["methods"]])


def _rankings(comparison: Content) -> Figure | None:
    if comparison["quality"]["why"]:
        return None
    methods = comparison["quality"]["methods"]
    figure = new_figure(7.6, 1.2 + 0.5 * len(methods), "Ranking and calibration of each client's model")
    places = figure.subplots(1, 2, sharey=True)
    for axes, what, name in zip(places, ("auc", "ece"), ("AUC, %", "calibration error (ECE), %"), strict=True):
        style(axes, name, "")
        axes.grid(axis="x", color=LINE, linewidth=0.7)
        for place, one in enumerate(methods):
            _dotted(axes, scores(SHARE, [dot[what] for dot in one["dots"]]), place)
    places[0].set_yticks(range(len(methods)), [plain(one["title"]) for one in methods])
    places[0].invert_yaxis()
    return figure


def _dotted(axes: Axes, values: Floats, place: int) -> None:
    there = values[~np.isnan(values)]
    spread = ((np.arange(len(there)) * 7) % 5 - 2) * 0.07
    axes.scatter(there, place + spread, s=18, color=SERIES[place % len(SERIES)], alpha=0.7, lw=0)
    if len(there):
        axes.vlines(float(there.mean()), place - 0.3, place + 0.3, color=INK, lw=2)


QUALITY_OF_A_RUN: dict[str, Callable[[Content], Figure | None]] = {
    "recall": _recall,
    "ranking": _ranking,
    "calibration": _calibration,
}
"""The figures of one run, by name; nothing is drawn where it has no numbers for one."""
QUALITY_OF_SEVERAL: dict[str, Callable[[Content], Figure | None]] = {
    "recalls": _recalls,
    "rankings": _rankings,
    "calibrations": _calibrations,
}
"""Those of several runs."""
