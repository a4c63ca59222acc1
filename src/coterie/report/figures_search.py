"""The figure of a search for settings: what validation made of each value that was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.report.drawing import INK, SERIES, legend, metric_title, new_figure, plain, scores, style
from coterie.report.rounding import Content

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DECADE = 10


def search_figure(search: Content) -> Figure | None:
    """A panel for each option that was varied; dots are settings, hollow if they were given up, ringed if chosen."""
    known = [one for one in search["candidates"] if one["score"] is not None]
    if not known or not search["options"]:
        return None
    most = max(one["rounds"] for one in known)
    heights = scores(search["metric"], [one["score"] for one in known])
    ended = [one["rounds"] == most for one in known]
    options = search["options"]
    figure = new_figure(3.6 * len(options), 3.4, f"Settings and their validation {search['metric']['name']}")
    places = figure.subplots(1, len(options), sharey=True, squeeze=False)[0]
    for index, (axes, option) in enumerate(zip(places, options, strict=True)):
        style(axes, plain(option), metric_title(search["metric"]) if not index else "")
        values = [one["values"][index] for one in known]
        numbers = all(isinstance(value, int | float) for value in values)
        different = list(dict.fromkeys(sorted(values) if numbers else values))
        if numbers and len(different) >= 4:
            across = values
            if min(values) > 0 and max(values) >= DECADE * min(values):
                axes.set_xscale("log")
        else:
            across = [different.index(value) for value in values]
            axes.set_xticks(range(len(different)), [plain(str(value)) for value in different])
            axes.set_xlim(-0.5, len(different) - 0.5)
        for wanted, label in ((True, "ran to the end"), (False, "given up on the way")):
            own = [place for place, done in enumerate(ended) if done == wanted]
            face = SERIES[0] if wanted else "none"
            edge = SERIES[0] if wanted else SERIES[5]
            x, y = [across[place] for place in own], [heights[place] for place in own]
            axes.scatter(x, y, s=26, facecolors=face, edgecolors=edge, label=label, zorder=3)
        best = [place for place, one in enumerate(known) if one["name"] == search["best"]]
        x, y = [across[place] for place in best], [heights[place] for place in best]
        axes.scatter(x, y, s=90, facecolors="none", edgecolors=INK, label="chosen", zorder=4)
    legend(figure, places[0])
    return figure
