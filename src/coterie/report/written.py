"""Tables of runs as texts for elsewhere: Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping

from coterie.compare.grid import Column, Grid
from coterie.errors import spreadsheet_cell
from coterie.report.grids import mean_and_spread


def as_markdown(grid: Grid) -> str:
    """A table in Markdown; winners are bold."""
    columns = list(grid.columns.values())
    lines = [
        f"| method | {' | '.join(_title(column) for column in columns)} |",
        f"|---|{'---:|' * len(columns)}",
    ]
    for row in grid.rows:
        cells = [_cell(grid, row, column, "**{}**") for column in columns]
        lines.append(f"| {row.replace('|', chr(92) + '|')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def as_latex(grid: Grid) -> str:
    """A `tabular` of LaTeX, which needs no package; winners are bold."""
    columns = list(grid.columns.values())
    titles = " & ".join(_escaped(_title(column)) for column in columns)
    lines = [f"\\begin{{tabular}}{{l{'r' * len(columns)}}}", "\\hline", f"method & {titles} \\\\", "\\hline"]
    for row in grid.rows:
        cells = " & ".join(_escaped(_cell(grid, row, column, "{}"), _wins(grid, row, column)) for column in columns)
        lines.append(f"{_escaped(row)} & {cells} \\\\")
    return "\n".join([*lines, "\\hline", "\\end{tabular}"])


def as_csv(grids: Mapping[str, Grid]) -> str:
    """Tables by title as one CSV, numbers to the last digit: mean and deviation of each column, and how many seeds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = next(iter(grids.values())).columns
    writer.writerow(["table", "method", "seeds", *(part for key in columns for part in (key, f"{key}_std"))])
    for title, grid in grids.items():
        for row, runs in grid.rows.items():
            numbers = [grid.number(row, key) for key in columns]
            cells = [part for number in numbers for part in (_exact(number.mean), _exact(number.std))]
            writer.writerow([spreadsheet_cell(title), spreadsheet_cell(row), len(runs), *cells])
    return out.getvalue().rstrip("\n")


def _exact(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else repr(value)


def _title(column: Column) -> str:
    return f"{column.title} (%)" if column.unit == "share" else column.title


def _wins(grid: Grid, row: str, column: Column) -> bool:
    return grid.winner(column.key) == row


def _cell(grid: Grid, row: str, column: Column, winning: str) -> str:
    text = mean_and_spread(grid.number(row, column.key), column)
    return winning.format(text) if _wins(grid, row, column) else text


_LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "–": "--", **{mark: f"\\{mark}" for mark in "%_&#${}"}}


def _escaped(text: str, bold: bool = False) -> str:
    """A text as LaTeX.

    >>> print(_escaped("96.1±0.6", bold=True), _escaped("pfedcs:tune_epochs=1"))
    \\textbf{96.1$\\pm$0.6} pfedcs:tune\\_epochs=1
    """
    plain = "".join(_LATEX.get(mark, mark) for mark in text)
    return f"\\textbf{{{plain}}}" if bold else plain
