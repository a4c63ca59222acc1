"""Tables of runs: for people, with numbers that are never broken in two, and as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from coterie.compare.grid import Column, Grid
from coterie.core.numbers import NO_NUMBER, Number, number_text, spoken_bytes
from coterie.errors import spreadsheet_cell
from coterie.methods import METHODS
from coterie.report.terminal import plain_table, print_result, result_console


def print_grid(grid: Grid, *lines: str) -> None:
    """A table on stdout, below it what its numbers are and who wins, and further lines."""
    for table in fitting_tables(grid, result_console()):
        print_result(table, "")
    print_result(*grid_lines(grid), *(line for line in lines if line))


def fitting_tables(grid: Grid, console: Console) -> list[Table]:
    """The table; where that is wider than the console, several with some of the columns each."""
    tables: list[Table] = []
    left = list(grid.columns.values())
    while left:
        count = len(left)
        while count > 1 and _width(grid_table(grid, left[:count]), console) > console.width:
            count -= 1
        tables.append(grid_table(grid, left[:count]))
        left = left[count:]
    return tables


def _width(table: Table, console: Console) -> int:
    unlimited = console.options.update(width=10 * console.width)
    return Measurement.get(console, unlimited, table).maximum


def grid_table(grid: Grid, columns: Sequence[Column]) -> Table:
    """Rows and some columns, mean ± standard deviation over seeds, winners marked by a star."""
    # Narrow columns: one word of the title a line.
    titles = [_title(column) for column in columns]
    table = plain_table("method", *titles, right=range(1, len(titles) + 1))
    for row in grid.rows:
        table.add_row(Text(row), *(cell_text(grid, row, column) for column in columns))
    return table


def grid_lines(grid: Grid, mark: str = "*") -> Iterator[str]:
    """What the numbers of a table are, who wins (marked by a star unless told otherwise), and what else to know."""
    seeds = ", ".join(map(str, grid.seeds))
    spread = f"mean {plus_minus()} standard deviation over seeds" if len(grid.seeds) > 1 else "seed"
    yield f"{grid.scale.title}: {spread} {seeds}. {grid.note(mark)}"
    yield from grid.remarks()


def _title(column: Column) -> str:
    words = column.title.split()
    return "\n".join([*words, "%"] if column.unit == "share" else words)


def cell_text(grid: Grid, row: str, column: Column) -> str:
    """A cell of the table: the mean over seeds, with its spread and its mark, if it has them."""
    winner = grid.winner(column.key)
    # In a column with a star, a space takes its place, so that the numbers stand below each other.
    mark = "" if winner is None else "*" if winner == row else " "
    return f"{mean_and_spread(grid.number(row, column.key), column, plus_minus())}{mark}"


def plus_minus() -> str:
    """The sign ±, or what stands for it where stdout cannot have it."""
    try:
        "±".encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "+-"
    return "±"


def mean_and_spread(number: Number, column: Column, sign: str = "±") -> str:
    """A number of a column for people: shares in per cent, with ± where several seeds have a spread to tell."""
    mean, std = number.mean, number.std
    if math.isnan(mean):
        return NO_NUMBER
    if column.unit == "bytes":
        return spoken_bytes(mean)
    if column.unit == "count":
        return f"{mean:.1f}".removesuffix(".0")
    if column.unit == "seconds":
        return f"{mean:.2f}"
    if column.unit == "share":
        return f"{100 * mean:.1f}" if std is None else f"{100 * mean:.1f}{sign}{100 * std:.1f}"
    return number_text(mean) if std is None else f"{number_text(mean)}{sign}{number_text(std)}"


def as_markdown(grid: Grid) -> str:
    """A table in Markdown; winners are bold."""
    titles = [_title_in_a_line(column) for column in grid.columns.values()]
    rows = (f"| {row.replace('|', chr(92) + '|')} | {' | '.join(_cells(grid, row, '**{}**'))} |" for row in grid.rows)
    return "\n".join([f"| method | {' | '.join(titles)} |", f"|---|{'---:|' * len(titles)}", *rows])


# Methods whose papers spell them otherwise than their classes can be called.
SPELLED = {
    "fedap": "f-FedAP",
    "fedrod": "FedRoD",
    "knn-per": "kNN-Per",
    "lg-fedavg": "LG-FedAvg",
    "mr-mtl": "MR-MTL",
    "per-fedavg": "Per-FedAvg",
    "pfedfda": "pFedFDA",
    "pfedgraph": "pFedGraph",
    "pfedme": "pFedMe",
    "pfedsim": "pFedSim",
}


def in_print(row: str) -> str:
    """A row as papers call it: the method as its authors spell it, with its options.

    >>> in_print("pfedcs:beta=4,lr=0.01"), in_print("mine")
    ('PFedCS (beta = 4, lr = 0.01)', 'mine')
    """
    name, _, settings = row.partition(":")
    spelled = SPELLED.get(name) or (METHODS[name].__name__ if name in METHODS else name)
    return f"{spelled} ({settings.replace('=', ' = ').replace(',', ', ')})" if settings else spelled


def as_latex(grid: Grid) -> str:
    """A `tabular` of LaTeX, which needs no package; methods are called as in papers, winners are bold."""
    titles = [_in_latex(_title_in_a_line(column)) for column in grid.columns.values()]
    head = f"method & {' & '.join(titles)} \\\\"
    lines = [f"\\begin{{tabular}}{{l{'r' * len(titles)}}}", "\\hline", head, "\\hline"]
    for row in grid.rows:
        cells = _cells(grid, row, r"\textbf{{{}}}", _in_latex)
        lines.append(f"{_in_latex(in_print(row))} & {' & '.join(cells)} \\\\")
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
            cells = [_exact(part) for number in numbers for part in (number.mean, number.std)]
            writer.writerow([spreadsheet_cell(title), spreadsheet_cell(row), len(runs), *cells])
    return out.getvalue().rstrip("\n")


def _exact(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else repr(value)


def _title_in_a_line(column: Column) -> str:
    return f"{column.title} (%)" if column.unit == "share" else column.title


def _cells(grid: Grid, row: str, winning: str, escaped: Callable[[str], str] = str) -> Iterator[str]:
    """A row's numbers as texts; `winning` is the look of the best in a column."""
    for column in grid.columns.values():
        text = escaped(mean_and_spread(grid.number(row, column.key), column))
        yield winning.format(text) if grid.winner(column.key) == row else text


LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "–": "--", **{mark: f"\\{mark}" for mark in "%_&#${}"}}


def _in_latex(text: str) -> str:
    """A text as LaTeX.

    >>> print(_in_latex("96.1±0.6"), _in_latex("pfedcs:tune_epochs=1"))
    96.1$\\pm$0.6 pfedcs:tune\\_epochs=1
    """
    return "".join(LATEX.get(mark, mark) for mark in text)
