"""The picture of a rebuilt table: for every method the paper's number and ours, side by side."""

from __future__ import annotations

import io
from textwrap import wrap
from typing import TYPE_CHECKING

from coterie.reproduce.verdict import Rebuilt, RebuiltColumn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches; a row of the table takes as much in every picture.
WIDTH, ROW, ABOVE = 4.2, 0.34, 0.95
LETTERS, LINE = 52, 0.18  # of the title, in the width of a column, and the inches that a further line of it takes
PAPER, OURS, FAINT = "#8a8a8a", "#08306b", "#dddddd"


def drawn(rebuilt: Rebuilt) -> bytes | None:
    """The picture as SVG; nothing if no scores have been run, or matplotlib (the extra 'plots') is not there."""
    parts = [part for part in rebuilt.parts if part.column.measure == "score"]
    if not parts:
        return None
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return None
    most = max(len(part.rows) for part in parts)
    # Without these, two drawings of the same numbers differ.
    with matplotlib.rc_context({"svg.hashsalt": rebuilt.table.key, "svg.fonttype": "none"}):
        title = wrap(rebuilt.table.title, LETTERS * len(parts))
        height = ABOVE + ROW * most + LINE * (len(title) - 1)
        figure = Figure(figsize=(WIDTH * len(parts), height), layout="constrained")
        axes = figure.subplots(1, len(parts), squeeze=False)[0]
        for place, part in zip(axes, parts, strict=True):
            _draw(place, part)
        figure.suptitle("\n".join(title), fontsize=10)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _draw(axes: Axes, part: RebuiltColumn) -> None:
    rows = part.rows[::-1]
    for height, row in enumerate(rows):
        ours, paper = part.ours(row), part.paper(row)
        if paper is not None and part.comparable:
            axes.plot([paper[0], ours.mean], [height, height], color=FAINT, linewidth=3, zorder=1)
        if paper is not None:
            axes.errorbar(paper[0], height, xerr=paper[1], fmt="o", color=PAPER, fillstyle="none", capsize=2, zorder=2)
        axes.errorbar(ours.mean, height, xerr=ours.std, fmt="o", color=OURS, markersize=5, capsize=2, zorder=3)
    axes.set_yticks(range(len(rows)), [row.title for row in rows], fontsize=8)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    amount = "" if part.amount.full else f"\n{part.amount}"
    axes.set_title(f"{part.column.title}{amount}", fontsize=9)
    axes.set_xlabel("accuracy, %: paper (rings), ours (dots)", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
