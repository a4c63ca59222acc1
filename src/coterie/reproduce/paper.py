"""A paper's result table as it stands in a TOML file: its runs, its numbers and its claims."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar, get_args

from coterie.errors import CoterieError, require, unknown
from coterie.options import option_fields
from coterie.runs.protocols import Reports

Measure = Literal["score", "upload", "download", "seconds", "runtime", "period"]
T = TypeVar("T")


@dataclass(frozen=True)
class PaperColumn:
    """A column: the settings of its runs, or another number of the same runs.

    `drawn` are settings in place of a partition from a file, where that does not fit: on a share of the data, or on
    other data.
    """

    key: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = ""
    reports: Mapping[str, str] = field(default_factory=dict)
    measure: str = "score"
    unit: str = ""

    def __post_init__(self) -> None:
        if self.measure not in get_args(Measure):
            raise unknown("measure", self.measure, get_args(Measure))


@dataclass(frozen=True)
class PaperRow:
    """A row: a method with its options, and the paper's numbers by column, `[mean]` or `[mean, std]`.

    No `method` means that Coterie has no such thing; the paper's numbers are shown all the same. A `variant` repeats a
    row of the paper's with something changed: it stands beside the others, without a rank.
    """

    key: str
    title: str
    method: str | None = None
    variant: bool = False
    set: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    reports: Mapping[str, str] = field(default_factory=dict)
    paper: Mapping[str, Sequence[float]] = field(default_factory=dict)
    note: str = ""

    @property
    def method_name(self) -> str:
        """The method that the row runs; empty if Coterie has none."""
        return self.key if self.method is None else self.method


@dataclass(frozen=True)
class Claim:
    """What the paper says that its table shows: one row is better than another.

    `readings` are pairs of rows that stand for these two where the paper leaves something open, such as a rate: a claim
    that turns with such a reading cannot be refuted.
    """

    text: str
    better: str
    worse: str
    columns: Sequence[str] = ()
    readings: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class PaperTable:
    """A result table of a paper."""

    key: str
    title: str
    paper: str
    proposed: str
    protocol: str
    seeds: int
    unit: str
    reports: Reports
    settings: Mapping[str, Any]
    columns: Sequence[PaperColumn]
    rows: Sequence[PaperRow]
    claims: Sequence[Claim]
    notes: Sequence[str]

    def column(self, key: str) -> PaperColumn:
        """A column by key."""
        return _by_key(f"column of {self.key}", self.columns, key)

    def row(self, key: str) -> PaperRow:
        """A row by key."""
        return _by_key(f"method of {self.key}", self.rows, key)

    def reports_of(self, row: PaperRow, column: PaperColumn) -> Reports:
        """Which recorded number a cell shows."""
        return self.reports.changed({**column.reports, **row.reports})

    def paper_number(self, row: PaperRow, column: PaperColumn) -> tuple[float, float | None] | None:
        """The paper's mean and standard deviation of a cell, as far as it gives them."""
        numbers = row.paper.get(column.key)
        return None if numbers is None else (numbers[0], numbers[1] if len(numbers) > 1 else None)


def _by_key(what: str, among: Sequence[T], key: str) -> T:
    by_key = {getattr(item, "key"): item for item in among}  # noqa: B009, rows and columns alike
    if key not in by_key:
        raise unknown(what, key, by_key)
    return by_key[key]


@cache
def paper_tables() -> dict[str, PaperTable]:
    """All tables, by key.

    >>> paper_tables()["pfedsim-table3"].row("pfedsim").paper["cifar10-dir0.1"]
    [86.76, 0.84]
    """
    entries = sorted(
        (entry for entry in files("coterie.reproduce").joinpath("tables").iterdir() if entry.name.endswith(".toml")),
        key=lambda entry: entry.name,
    )
    return {
        key: read_table(key, entry.read_text(encoding="utf-8"))
        for entry in entries
        if (key := entry.name.removesuffix(".toml"))
    }


def find_table(key: str, besides: Sequence[str] = ()) -> PaperTable:
    """The table of that key; an error names what is allowed besides."""
    if key not in paper_tables():
        raise unknown("table", key, [*paper_tables(), *besides])
    return paper_tables()[key]


def read_table(key: str, text: str) -> PaperTable:
    """A table from its TOML; whatever it says must be meant for something."""
    try:
        content = tomllib.loads(text)
        table = PaperTable(
            key=key,
            title=content.pop("title"),
            paper=content.pop("paper"),
            proposed=content.pop("proposed", ""),
            protocol=content.pop("protocol"),
            seeds=content.pop("seeds"),
            unit=content.pop("unit", "%"),
            reports=Reports().changed(content.pop("reports", {})),
            settings=content.pop("settings", {}),
            columns=[_made("column", PaperColumn, entry) for entry in content.pop("columns")],
            rows=[_made("row", PaperRow, entry) for entry in content.pop("rows")],
            claims=[_made("claim", Claim, entry) for entry in content.pop("claims", [])],
            notes=content.pop("notes", []),
        )
    except KeyError as error:
        raise CoterieError(f"table {key}: {error} is missing") from None
    except CoterieError as error:
        raise CoterieError(f"table {key}: {error}") from None
    require(not content, f"table {key}: nobody knows {', '.join(content)}")
    _require_consistent(table)
    return table


def _made(kind: str, cls: type[T], entry: Mapping[str, Any]) -> T:
    known = option_fields(cls)
    for option in entry:
        if option not in known:
            raise unknown(f"key of a {kind}", option, known)
    try:
        return cls(**entry)
    except TypeError as error:
        raise CoterieError(f"{kind} {entry.get('key', '')}: {error}") from None


def _require_consistent(table: PaperTable) -> None:
    columns, rows = [column.key for column in table.columns], [row.key for row in table.rows]
    for what, keys in (("column", columns), ("row", rows)):
        require(len(set(keys)) == len(keys), f"table {table.key}: a {what} stands there twice")
    named = [table.proposed] if table.proposed else []
    named += [
        key
        for claim in table.claims
        for key in (claim.better, claim.worse, *(key for pair in claim.readings for key in pair))
    ]
    strangers = (set(named) - set(rows)) | {key for row in table.rows for key in row.paper if key not in columns}
    strangers |= {key for claim in table.claims for key in claim.columns if key not in columns}
    require(not strangers, f"table {table.key}: there is no row or column {', '.join(sorted(strangers))}")
    for row in table.rows:
        bad = [key for key, numbers in row.paper.items() if len(numbers) not in (1, 2)]
        require(not bad, f"table {table.key}: {row.key}: the number of {', '.join(bad)} must be [mean] or [mean, std]")
