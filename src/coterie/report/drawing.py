"""What the figures on paper have in common: colours, sizes, axes. They need matplotlib, the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.report.learning import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Those of the page on light ground: series after Okabe and Ito, classes after Tol's muted palette.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b8568f", "#b97f00", "#4c5563", "#2f9bd0", "#7a5c00")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (5, 3)), (0, (1, 2)))
CLASSES = (
    "#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255", "#aa4499", "#8b8f96",
)  # fmt: skip
INK, SOFT, LINE = "#1d2430", "#596273", "#e1e5eb"
MOMENTS = {
    "received": "as received, before local training",
    "trained": "right after local training",
    "stored": "after each client's own last training",
}


def new_figure(width: float, height: float, title: str) -> Figure:
    """A figure of its own, which touches nothing global in matplotlib; sizes in inches."""
    from coterie.report.canvas import ShownFigure

    figure = ShownFigure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.suptitle(plain(title), fontsize=11, color=INK, x=0.02, ha="left", weight="bold")
    return figure


def plain(text: str) -> str:
    """A text that matplotlib does not take for a formula.

    >>> plain("5 $ and 6 $")
    '5 \\\\$ and 6 \\\\$'
    """
    return text.replace("$", r"\$")


def style(axes: Axes, x: str, y: str) -> Axes:
    """Titles on both axes, light lines, no frame; rounds and bytes are numbered as such."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if x == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if y.startswith("bytes"):
        axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.set_xlabel(x, color=SOFT, fontsize=9)
    axes.set_ylabel(y, color=SOFT, fontsize=9)
    axes.grid(axis="y", color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=8, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    return axes


def legend(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """The legend of some axes, below the figure, where it covers nothing."""
    names: dict[str, Any] = {"frameon": False, "fontsize": 8, "labelcolor": SOFT}
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, **names)


def class_colours(classes: int) -> list[str]:
    """A colour for each class: ten that can be told apart, or a scale for more."""
    if classes <= len(CLASSES):
        return list(CLASSES[:classes])
    import matplotlib
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in matplotlib.colormaps["viridis"](np.linspace(0, 1, classes))]


def metric_title(metric: dict[str, Any]) -> str:
    """The title of an axis of scores, with its unit."""
    return f"{metric['name']}, %" if metric["share"] else str(metric["name"])


def scores(metric: dict[str, Any], values: Sequence[float | None]) -> Floats:
    """Scores as they are drawn: shares in per cent, NaN for none."""
    return np.array(values, np.float64) * (100 if metric["share"] else 1)
