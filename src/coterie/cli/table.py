"""`coterie table`: tables of runs that are kept, however they came about."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from coterie.compare.differing import settings_note
from coterie.compare.grid import Grid
from coterie.compare.kept import KeptTable, kept_tables, keys_of
from coterie.errors import CoterieError, unknown
from coterie.report.grids import grid_lines, print_grid
from coterie.report.terminal import print_result
from coterie.report.written import as_csv, as_latex, as_markdown

FORMATS = ("text", "md", "latex", "csv")


def table_command(paths: Sequence[Path], format: str, columns: Sequence[str]) -> None:
    """Print the tables of some runs; what is left out is named on stderr."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    tables, left_out = kept_tables(paths)
    for line in left_out:
        print(f"coterie: left out: {line}", file=sys.stderr)
    if not tables:
        raise CoterieError("run: none of these runs is whole, so there is no table")
    named = keys_of(tables)
    grids = {title: Grid(table.rows, tuple(columns)) for title, table in named.items()}
    if len(named) > 1:
        print(f"coterie: {len(named)} tables, since data or partition differ", file=sys.stderr)
    if format == "csv":
        print(as_csv(grids))
        return
    for place, (title, grid) in enumerate(grids.items()):
        if place:
            print_result("")
        _print(title, grid, named[title], format)


def _print(title: str, grid: Grid, table: KeptTable, format: str) -> None:
    different = settings_note(table.configs)
    if format == "text":
        print_result(title, "")
        print_grid(grid, different)
        return
    notes = [*grid_lines(grid, "Bold:"), *([different] if different else [])]
    # Other programs read these: their lines are not for a terminal to break.
    if format == "md":
        print(f"**{title}**", "", as_markdown(grid), "", *notes, sep="\n")
    else:
        print(f"% {title}", as_latex(grid), *(f"% {note}" for note in notes), sep="\n")
