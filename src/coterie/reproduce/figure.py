"""The picture of a rebuilt table: for every method the paper's number and ours, side by side."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

from coterie.reproduce.verdict import Rebuilt, RebuiltColumn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches; a row of the table takes as much in every picture, the names of the methods are written once, on the left.
NAMES, WIDTH, ROW, ABOVE = 2.2, 2.8, 0.34, 1.2
LINE = 0.18  # what a further line of the title takes
LETTERS_PER_INCH, LETTERS_OF_NAME = 11, 32
PAPER, OURS, FAINT = "#8a8a8a", "#08306b", "#dddddd"


def drawn(rebuilt: Rebuilt) -> bytes | None:
    """The picture as SVG; nothing if nothing has been run, or matplotlib (the extra 'plots') is not there."""
    parts = rebuilt.parts
    if not parts:
        return None
    names = {row.key: row.title for row in rebuilt.table.rows if any(row.key in part.records for part in parts)}
    width = NAMES + WIDTH * len(parts)
    title = wrap(rebuilt.table.title, int(LETTERS_PER_INCH * width))
    height = ABOVE + ROW * len(names) + LINE * (len(title) - 1)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(parts), squeeze=False, sharey=True)[0]
        heights = {key: len(names) - 1 - place for place, key in enumerate(names)}
        for place, part in zip(axes, parts, strict=True):
            _draw(place, part, heights)
        axes[0].set_yticks(list(heights.values()), ["\n".join(wrap(name, LETTERS_OF_NAME)) for name in names.values()])
        axes[0].set_ylim(-0.6, len(names) - 0.4)
        figure.suptitle("\n".join(title), fontsize=10)
        figure.supxlabel("paper (rings), ours (dots)", fontsize=8)

    return as_svg(draw, (width, height), rebuilt.table.key)


def as_svg(draw: Callable[[Figure], None], size: tuple[float, float], salt: str) -> bytes | None:
    """What `draw` draws on a figure of a size in inches, as SVG; nothing without matplotlib (the extra 'plots')."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return None
    # Without these, two drawings of the same numbers differ.
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _draw(axes: Axes, part: RebuiltColumn, heights: Mapping[str, int]) -> None:
    for row in part.rows:
        height, ours, paper = heights[row.key], part.ours(row), part.paper(row)
        if paper is not None and part.comparable:
            axes.plot([paper[0], ours.mean], [height, height], color=FAINT, linewidth=3, zorder=1)
        if paper is not None:
            axes.errorbar(paper[0], height, xerr=paper[1], fmt="o", color=PAPER, fillstyle="none", capsize=2, zorder=2)
        axes.errorbar(ours.mean, height, xerr=ours.std, fmt="o", color=OURS, markersize=5, capsize=2, zorder=3)
    title = wrap(part.column.title, LETTERS_OF_NAME) + ([] if part.amount.full else [str(part.amount)])
    axes.set_title("\n".join(title), fontsize=9)
    axes.set_xlabel(part.column.unit or f"accuracy, {part.table.unit}", fontsize=8)
    if part.column.measure in ("upload", "download"):
        axes.set_xlim(0, 1.1 * axes.dataLim.x1 or 1)  # of methods that send nothing, an axis all the same
        axes.locator_params(axis="x", nbins=4)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    plain_axes(axes, "x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def plain_axes(axes: Axes, measured: Literal["x", "y"]) -> None:
    """Small letters, no frame, and faint lines across the axis along which numbers are measured."""
    axes.tick_params(labelsize=8)
    axes.grid(axis=measured, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
