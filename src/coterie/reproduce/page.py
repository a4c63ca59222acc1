"""The page of a rebuilt table, in Markdown, and its picture: paper beside ours, claims, and where it comes from."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Literal, TypeVar

from coterie.core.numbers import Number
from coterie.reproduce.cells import PARTITIONS
from coterie.reproduce.paper import PaperRow, PaperTable
from coterie.reproduce.store import Record, amount_of, place_of
from coterie.reproduce.verdict import DEVIATIONS, POINTS, Rebuilt, RebuiltColumn, Verdict
from coterie.rounds.evaluate import MOMENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    ranks, seeds = part.ranks(), part.common_seeds
    unit = f", {part.column.unit}" if part.column.unit else ""
    # Ranks are by the seeds that all ranked rows have: where some have more, so is the mean that stands beside them.
    fewer = any(len(part.records[key]) > len(seeds) for key in ranks)
    by_seeds = f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"
    header = ["method", f"paper{unit}", f"ours{unit}", "seeds", "difference", "rank in the paper"]
    header += [f"ours, {by_seeds}", f"our rank, {by_seeds}"] if fewer else ["our rank"]
    blank = [""] * (len(header) - 5)
    yield from _table(
        header,
        [
            [
                row.title + _marks(part, row),
                _paper_text(part, row),
                number_text(part.ours(row), part.column.measure) if row.key in part.records else "",
                str(len(part.records.get(row.key, ()))) if row.key in part.records else "",
                _signed(part.difference(row)) if row.key in part.records else "",
                *(_ranks(part, row, ranks[row.key], fewer) if row.key in ranks else blank),
            ]
            for row in rows
            if row.key in part.records or part.paper(row) is not None
        ],
    )
    if agreements := part.agreement():
        yield ""
        spoken = (f"{known.tau:.2f} ({known.among}: {known.methods})" for known in agreements)
        yield f"Kendall's τ between the paper's order and ours: {', '.join(spoken)}."
    far = [row.title for row in part.rows if part.differs(row)]
    if far:
        yield ""
        yield (
            f"† differs from the paper by more than {DEVIATIONS:g} standard deviations, the paper's and ours together "
            f"({POINTS:g} points where it gives none): {', '.join(far)}."
        )
    if verdicts := part.verdicts():
        yield ""
        yield from _table(["claim", "paper", "ours, paired over seeds", "verdict"], list(map(_answer, verdicts)))


def _ranks(part: RebuiltColumn, row: PaperRow, ranks: tuple[int, int], fewer: bool) -> list[str]:
    """The paper's rank and ours, and between them the mean that ours is about, if it is not that of all seeds."""
    theirs, ours = map(str, ranks)
    return [theirs, number_text(Number({0: part.common(row)}), part.column.measure), ours] if fewer else [theirs, ours]


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


def _answer(verdict: Verdict) -> list[str]:
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
        yield from _table(["tested alike", "paper", "ours, paired over seeds", "verdict"], list(map(_answer, leads)))


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
    seeds_of = _together(((amount_of(cell), cell["column"], cell["row"]), cell["seed"]) for cell in in_order)
    rows_of = _together(((amount, seeds, column), row) for (amount, column, row), seeds in seeds_of.items())
    columns_of = _together(((amount, seeds, rows), column) for (amount, seeds, column), rows in rows_of.items())
    lines = []
    for (amount, seeds, rows), columns in columns_of.items():
        parts = [f"coterie reproduce {table.key}"]
        parts += [f"--columns {','.join(columns)}"] if len(columns) < len(table.columns) else []
        parts += [f"--methods {','.join(rows)}"] if len(rows) < len(table.rows) else []
        parts += [f"--seeds {' '.join(map(str, seeds))}"]
        parts += [f"--rounds {amount.rounds}"] if amount.rounds is not None else []
        parts += [f"--share {amount.share:g}"] if amount.share != 1.0 else []
        parts += [f"--data {amount.data}"] if amount.data else []
        lines.append(" ".join(parts))
    return lines or [f"coterie reproduce {table.key}"]


def _together(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, tuple[Value, ...]]:
    """The values of each key."""
    by_key: dict[Key, list[Value]] = {}
    for key, value in pairs:
        by_key.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in by_key.items()}


def machines_of(records: Iterable[Record]) -> list[str]:
    """The machines and versions behind records."""
    described = {tuple(sorted(record["machine"].items())) for record in records}
    return [
        f"Coterie {about['coterie']}, PyTorch {about['torch']}, Python {about['python']}, {about['processor']} "
        f"({about['capability']})"
        for about in map(dict, sorted(described))
    ]


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
