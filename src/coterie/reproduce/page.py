"""The page of a rebuilt table, in Markdown: paper beside ours, what became of its claims, and where it comes from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from coterie.core.numbers import Number
from coterie.reproduce.cells import PARTITIONS
from coterie.reproduce.paper import PaperRow, PaperTable
from coterie.reproduce.store import Record, amount_of, place_of
from coterie.reproduce.verdict import DEVIATIONS, POINTS, Rebuilt, RebuiltColumn, Verdict
from coterie.rounds.evaluate import MOMENTS

WORDS = frozenset({"method", "claim", "tested alike", "verdict"})
"""The columns that hold no numbers."""
Key = TypeVar("Key")
Value = TypeVar("Value")


def page_of(rebuilt: Rebuilt, figure: str | None = None, findings: str = "") -> str:
    """The whole page.

    Args:
        rebuilt: The table and its results.
        figure: The file of the picture, beside the page.
        findings: What somebody found in these results, in words.
    """
    return "\n".join(_lines(rebuilt, figure, findings)) + "\n"


def page_in(folder: Path, rebuilt: Rebuilt) -> str:
    """The page as it should stand in a folder: with the picture and the findings, if there are any."""
    picture = folder / f"{rebuilt.table.key}.svg"
    return page_of(rebuilt, picture.name if picture.is_file() else None, findings_in(folder, rebuilt.table.key))


def findings_in(folder: Path, key: str) -> str:
    """What was found in the results of a folder: a text, written by hand, about these runs and not about the table."""
    path = folder / f"{key}.findings.md"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _lines(rebuilt: Rebuilt, figure: str | None, findings: str) -> Iterator[str]:
    table, parts = rebuilt.table, rebuilt.parts
    yield f"# {table.title}"
    yield ""
    if any(column.measure == "score" for column in table.columns):
        yield f"The paper's numbers are {table.reports}; ours likewise, unless a row says otherwise."
        yield f"Unit: {table.unit}."
    yield "± is the standard deviation over seeds. Empty cells have not been run."
    if figure is not None:
        yield ""
        yield f"![Paper and ours]({figure})"
    for part in parts:
        yield ""
        yield from _column(part)
    if not parts:
        yield ""
        yield "Nothing of it has been run yet."
    if findings:
        yield from ("", "## What was found", "", findings)
    yield from _list("Notes", [*table.notes, *_row_notes(table)])
    yield from _provenance(rebuilt)


def _column(part: RebuiltColumn) -> Iterator[str]:
    yield f"## {heading_of(part)}"
    yield ""
    yield from numbers_of(part, part.table.rows)
    if part.column.measure == "score":
        yield ""
        yield from _moments(part)


def heading_of(part: RebuiltColumn) -> str:
    """The title of a column; where less was done than the paper did, it says so."""
    return part.column.title + ("" if part.amount.full else f" ({part.amount})")


def numbers_of(part: RebuiltColumn, rows: Sequence[PaperRow]) -> Iterator[str]:
    """These rows of a column, paper beside ours, and what became of its claims."""
    ranks = part.ranks()
    unit = f", {part.column.unit}" if part.column.unit else ""
    header = ["method", f"paper{unit}", f"ours{unit}", "seeds", "difference", "rank in the paper", "our rank"]
    yield from _table(
        header,
        [
            [
                row.title + _marks(part, row),
                _paper_text(part, row),
                number_text(part.ours(row), part.column.measure) if row.key in part.records else "",
                str(len(part.records.get(row.key, ()))) if row.key in part.records else "",
                _signed(part.difference(row)) if row.key in part.records else "",
                *(map(str, ranks[row.key]) if row.key in ranks else ("", "")),
            ]
            for row in rows
            if row.key in part.records or part.paper(row) is not None
        ],
    )
    if ranks and any(len(part.records[key]) > len(part.common_seeds) for key in ranks):
        yield ""
        yield f"Our ranks are by the seeds that all of these have: {', '.join(map(str, part.common_seeds))}."
    if (tau := part.agreement()) is not None:
        yield ""
        yield f"Kendall's τ between the paper's order and ours: {tau:.2f} ({len(ranks)} methods)."
    far = [row.title for row in part.rows if part.differs(row)]
    if far:
        yield ""
        yield (
            f"† differs from the paper by more than {DEVIATIONS:g} of its standard deviations ({POINTS:g} points where "
            f"it gives none): {', '.join(far)}."
        )
    if verdicts := part.verdicts():
        yield ""
        yield from _table(["claim", "paper", "ours, paired over seeds", "verdict"], [_told(one) for one in verdicts])


def _marks(part: RebuiltColumn, row: PaperRow) -> str:
    return " †" if row.key in part.records and part.differs(row) else ""


def _paper_text(part: RebuiltColumn, row: PaperRow) -> str:
    paper = part.paper(row)
    if paper is None:
        return ""
    mean, std = paper
    return f"{mean:g}" if std is None else f"{mean:.2f} ± {std:.2f}"


def number_text(number: Number, measure: str = "score", sign: Literal["+", "-"] = "-") -> str:
    """A number for people; with sign "+" also positive numbers show theirs.

    >>> number_text(Number({0: 86.111, 1: 86.333})), number_text(Number({0: 19240.0}), "upload", "+")
    ('86.22 ± 0.16', '+19,240')
    """
    if math.isnan(number.mean):
        return "–"
    digits = ".2f" if measure in ("score", "seconds") else ",.0f"
    spread = "" if number.std is None else f" ± {number.std:{digits}}"
    return f"{number.mean:{sign}{digits}}{spread}"


def _signed(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:+.2f}"


def _told(verdict: Verdict) -> list[str]:
    return [verdict.claim, _signed(verdict.paper), number_text(verdict.ours, verdict.measure, "+"), verdict.word]


def _moments(part: RebuiltColumn) -> Iterator[str]:
    """Our numbers at every moment: which of them a paper takes decides more than one would think."""
    yield "The same runs at all moments (the paper's mean and round):"
    yield ""
    rows = [[row.title, *(number_text(part.ours(row, moment)) for moment in MOMENTS)] for row in part.rows]
    yield from _table(["method", *MOMENTS], rows)
    leads = [lead for moment in MOMENTS if (lead := part.lead(moment)) is not None]
    if leads:
        yield ""
        yield from _table(["tested alike", "paper", "ours, paired over seeds", "verdict"], list(map(_told, leads)))


def _row_notes(table: PaperTable) -> list[str]:
    return [f"{row.title}: {row.note}" for row in table.rows if row.note]


def _provenance(rebuilt: Rebuilt) -> Iterator[str]:
    table, cells = rebuilt.table, list(rebuilt.results.cells.values())
    yield ""
    yield "## Where this comes from"
    yield ""
    yield "```console"
    for command in commands(table, cells):
        yield f"$ {command}"
    yield "```"
    if not cells:
        return
    yield ""
    for text in machines_of(cells):
        yield f"- {text}"
    hours = sum(record["runtime"] for record in cells) / 3600
    runs = "1 run" if len(cells) == 1 else f"{len(cells)} runs"
    yield f"- {runs} of one core each, {hours:.1f} hours in all"
    yield f"- partitions (SHA-256): {'; '.join(dict.fromkeys(map(_partition, cells)))}"


def _partition(record: Record) -> str:
    """Which partition a run had: a file is the same for every seed, though what else is drawn with the seed differs."""
    partition = str(record["config"]["partition"])
    if not partition.endswith(".npz"):
        return f"{record['column']}, seed {record['seed']}: {record['partition'][:12]}"
    digest = hashlib.sha256((PARTITIONS / partition).read_bytes()).hexdigest()
    return f"{record['column']}, every seed: {digest[:12]} (the file {partition})"


def commands(table: PaperTable, cells: Sequence[Record]) -> list[str]:
    """The commands that run these cells, and no others."""
    in_order = sorted(cells, key=lambda record: place_of(table, record))
    seeds_of = _together(((amount_of(one), one["column"], one["row"]), one["seed"]) for one in in_order)
    rows_of = _together(((amount, seeds, column), row) for (amount, column, row), seeds in seeds_of.items())
    columns_of = _together(((amount, seeds, rows), column) for (amount, seeds, column), rows in rows_of.items())
    found = []
    for (amount, seeds, rows), columns in columns_of.items():
        parts = [f"coterie reproduce {table.key}"]
        parts += [f"--columns {','.join(columns)}"] if len(columns) < len(table.columns) else []
        parts += [f"--methods {','.join(rows)}"] if len(rows) < len(table.rows) else []
        parts += [f"--seeds {' '.join(map(str, seeds))}"]
        parts += [f"--rounds {amount.rounds}"] if amount.rounds is not None else []
        parts += [f"--share {amount.share:g}"] if amount.share != 1.0 else []
        parts += [f"--data {amount.data}"] if amount.data else []
        found.append(" ".join(parts))
    return found or [f"coterie reproduce {table.key}"]


def _together(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, tuple[Value, ...]]:
    """The values of each key."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in found.items()}


def machines_of(records: Iterable[Record]) -> list[str]:
    """The machines and versions behind records."""
    described = {tuple(sorted(record["machine"].items())) for record in records}
    texts = []
    for one in sorted(described):
        about = dict(one)
        texts.append(
            f"Coterie {about['coterie']}, PyTorch {about['torch']}, Python {about['python']}, {about['processor']} "
            f"({about['capability']})"
        )
    return texts


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield ""
        yield f"## {title}"
        yield ""
        yield from (f"- {item}" for item in items)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + "|".join("---" if title in WORDS else "---:" for title in header) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
