"""The page of a rebuilt table, in Markdown: paper beside ours, what became of its claims, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from coterie.core.number import Number
from coterie.reproduce.paper import PaperRow, PaperTable
from coterie.reproduce.store import Record
from coterie.reproduce.verdict import DEVIATIONS, POINTS, Rebuilt, RebuiltColumn, Verdict
from coterie.rounds.evaluate import MOMENTS


def page_of(rebuilt: Rebuilt, figure: str | None = None) -> str:
    """The whole page.

    `figure` is the name of a picture that lies beside it.
    """
    return "\n".join(_lines(rebuilt, figure)) + "\n"


def _lines(rebuilt: Rebuilt, figure: str | None) -> Iterator[str]:
    table, parts = rebuilt.table, rebuilt.parts
    yield f"# {table.title}"
    yield ""
    yield f"The paper's numbers are {table.reports}; ours likewise, unless a row says otherwise. Unit: {table.unit}."
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
    yield from _list("Notes", [*table.notes, *_row_notes(table)])
    yield from _provenance(rebuilt)


def _column(part: RebuiltColumn) -> Iterator[str]:
    table, ranks = part.table, part.ranks()
    yield f"## {part.column.title}" + ("" if part.amount.full else f" ({part.amount})")
    yield ""
    header = ["method", "paper", "ours", "seeds", "difference", "rank in the paper", "our rank"]
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
            for row in table.rows
            if row.key in part.records or part.paper(row) is not None
        ],
    )
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
    if part.column.measure == "score":
        yield ""
        yield from _moments(part)


def _marks(part: RebuiltColumn, row: PaperRow) -> str:
    return " †" if row.key in part.records and part.differs(row) else ""


def _paper_text(part: RebuiltColumn, row: PaperRow) -> str:
    paper = part.paper(row)
    if paper is None:
        return ""
    mean, std = paper
    return f"{mean:g}" if std is None else f"{mean:.2f} ± {std:.2f}"


def number_text(number: Number, measure: str = "score") -> str:
    """A number for people.

    >>> number_text(Number({0: 86.111, 1: 86.333})), number_text(Number({0: 19240.0}), "upload")
    ('86.22 ± 0.16', '19,240')
    """
    if math.isnan(number.mean):
        return "–"
    spread = number.std
    if measure in ("upload", "download", "period"):
        return f"{number.mean:,.0f}"
    if measure == "seconds":
        return f"{1e4 * number.mean:.2f}" + ("" if spread is None else f" ± {1e4 * spread:.2f}")
    if measure == "runtime":
        return f"{number.mean:.0f}"
    return f"{number.mean:.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def _signed(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:+.2f}"


def _told(verdict: Verdict) -> list[str]:
    spread = verdict.ours.std
    ours = f"{_signed(verdict.ours.mean)}" + ("" if spread is None else f" ± {spread:.2f}")
    return [verdict.claim, _signed(verdict.paper), ours, verdict.word]


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
    for text in _machines(cells):
        yield f"- {text}"
    hours = sum(record["runtime"] for record in cells) / 3600
    yield f"- {len(cells)} runs, {hours:.1f} hours on one core each"
    partitions = sorted({(record["column"], record["seed"], record["partition"][:12]) for record in cells})
    listed = "; ".join(f"{column}, seed {seed}: {digest}" for column, seed, digest in partitions)
    yield f"- partitions (SHA-256): {listed}"


def commands(table: PaperTable, cells: Sequence[Record]) -> list[str]:
    """The commands that make the page: one for every amount of work, naming what has run."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in cells:
        groups.setdefault((record["rounds"], record["share"], record["data"]), []).append(record)
    found = []
    for (rounds, share, data), own in groups.items():
        columns = _in_order([column.key for column in table.columns], {record["column"] for record in own})
        rows = _in_order([row.key for row in table.rows], {record["row"] for record in own})
        parts = [f"coterie reproduce {table.key}"]
        parts += [f"--columns {','.join(columns)}"] if len(columns) < len(table.columns) else []
        parts += [f"--methods {','.join(rows)}"] if len(rows) < len(table.rows) else []
        parts += [f"--seeds {' '.join(map(str, sorted({record['seed'] for record in own})))}"]
        parts += [f"--rounds {rounds}"] if rounds is not None else []
        parts += [f"--share {share:g}"] if share != 1.0 else []
        parts += [f"--data {data}"] if data else []
        found.append(" ".join(parts))
    return found or [f"coterie reproduce {table.key}"]


def _machines(cells: Sequence[Record]) -> list[str]:
    described = {tuple(sorted(record["machine"].items())) for record in cells}
    texts = []
    for one in sorted(described):
        about = dict(one)
        texts.append(
            f"Coterie {about['coterie']}, PyTorch {about['torch']}, Python {about['python']}, {about['processor']} "
            f"({about['capability']})"
        )
    return texts


def _in_order(order: Sequence[str], chosen: set[str]) -> list[str]:
    return [key for key in order if key in chosen]


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield ""
        yield f"## {title}"
        yield ""
        yield from (f"- {item}" for item in items)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + "|".join("---" if place == 0 else "---:" for place in range(len(header))) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
