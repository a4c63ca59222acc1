"""The figure of who gains influence: every client's column weight in W, hostile clients told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coterie.report.drawing import LINE, SERIES, SOFT, legend, new_figure, plain, style
from coterie.report.rounding import Content

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def influence_figure(run: Content) -> Figure | None:
    """A bar per client and group of columns, beside what everybody would have if all had the same."""
    if not run["learning"]:
        return None
    tracks, order = run["learning"], run["order"]
    title = f"{run['method']}: who has influence, mean over the recorded rounds"
    figure = new_figure(4.2 * len(tracks), 1.3 + 0.2 * len(order), title)
    hostile, rows = set(run["hostile"]), np.arange(len(order))[::-1]
    places = figure.subplots(1, len(tracks), sharey=True, squeeze=False)[0]
    for axes, track in zip(places, tracks, strict=True):
        values = np.array([track["influence"][k] or 0 for k in order])
        for told, colour in ((False, SERIES[0]), (True, SERIES[1])):
            chosen = np.array([(k in hostile) == told for k in order])
            if chosen.any() and (told or hostile):
                name = "hostile" if told else "honest"
                axes.barh(rows[chosen], values[chosen], color=colour, height=0.7, label=name)
            elif chosen.any():
                axes.barh(rows[chosen], values[chosen], color=colour, height=0.7)
        axes.axvline(values.mean(), color=SOFT, lw=1.0, ls="--", label="mean")
        style(axes, plain(f"share of the others' {track['group']}, into {track['target']}"), "client")
        axes.grid(axis="x", color=LINE, linewidth=0.7)
    legend(figure, places[0])
    places[0].set_yticks(rows, [plain(run["clients"][k]) for k in order], fontsize=7)
    return figure
