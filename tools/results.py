"""`python tools/results.py`: write what stands in `results/` into the documentation; `--check` only looks.

`docs/results.md` shows the rebuilt tables, the README has a line for each of their columns, and each method's page gets
its rows. All stand between two comments; nothing else of the pages is touched.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.reproduce import similarities
from coterie.reproduce.page import commands, findings_in, heading_of, number_text, numbers_of, page_in
from coterie.reproduce.paper import paper_tables
from coterie.reproduce.store import Results
from coterie.reproduce.verdict import Rebuilt

REPOSITORY = Path(__file__).parents[1]
BEGIN, END = "<!-- results: written by tools/results.py -->", "<!-- end of results -->"


def rebuilt_tables(results: Path) -> list[Rebuilt]:
    """Every table of which something has run."""
    found = (Rebuilt(table, Results(table, results)) for table in paper_tables().values())
    return [one for one in found if one.results.cells]


def all_tables(results: Path) -> Iterator[str]:
    """The tables, a section each: the picture, of every column what ran, paper beside ours, and what was found."""
    if runs := similarities.runs_of(results):
        yield from _section(similarities.TITLE, similarities.KEY)
        yield from _picture(results, similarities.KEY)
        yield from similarities.numbers_of(runs)
        yield ""
    for rebuilt in rebuilt_tables(results):
        table = rebuilt.table
        yield from _section(table.title, table.key)
        yield from _picture(results, table.key)
        for part in rebuilt.parts:
            yield f"### {heading_of(part)}"
            yield ""
            yield from numbers_of(part, part.rows)
            yield ""
        if found := findings_in(results, table.key):
            yield from ("### What was found", "", found, "")


def _section(title: str, key: str) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield f"With notes and commands: [results/{key}.md](../results/{key}.md)."
    yield ""


def _picture(results: Path, key: str) -> Iterator[str]:
    if (results / f"{key}.svg").is_file():
        yield f"![Paper and ours](../results/{key}.svg)"
        yield ""


def line_of_each_column(results: Path) -> Iterator[str]:
    """What ran of the tables, a line for each column, for the README."""
    yield "| table | column | seeds | rows near the paper's number | claim: what became of it |"
    yield "|---|---|---:|---:|---|"
    if runs := similarities.runs_of(results):
        where = f"[{similarities.TITLE.partition(':')[0]}](results/{similarities.KEY}.md)"
        seeds = len({run["seed"] for run in runs.values()})
        claim, answer = similarities.CLAIM.rstrip("."), similarities.answer_of(runs)
        yield f"| {where} | CIFAR-10 | {seeds} |  | {claim}: {answer} |"
    for rebuilt in rebuilt_tables(results):
        where = f"[{rebuilt.table.title.partition(':')[0]}](results/{rebuilt.table.key}.md)"
        for part in rebuilt.parts:
            counts = sorted({len(own) for own in part.records.values()})
            seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
            in_full = part.amount.full and part.column.measure == "score"
            near = f"{sum(not part.differs(row) for row in part.ranked)} of {len(part.ranked)}" if in_full else ""
            claim = next(iter(part.verdicts()), None)
            told = "" if claim is None else f"{claim.claim.rstrip('.')}: {claim.word}"
            yield f"| {where} | {heading_of(part)} | {seeds} | {near} | {told} |"


def rows_of_method(method: str, tables: Sequence[Rebuilt]) -> Iterator[str]:
    """The rows of a method in all rebuilt tables, and the commands that made them."""
    rows, made_by = [], list[str]()
    for rebuilt in tables:
        own = {row.key for row in rebuilt.table.rows if row.method_name == method}
        for part in rebuilt.parts:
            for row in part.rows:
                if row.key in own and part.column.measure == "score":
                    paper = part.paper(row)
                    theirs = "" if paper is None else f"{paper[0]:g}"
                    where = f"[{rebuilt.table.title.partition(':')[0]}](../../results/{rebuilt.table.key}.md)"
                    ours = number_text(part.ours(row))
                    rows.append(f"| {where} | {row.title} | {heading_of(part)} | {theirs} | {ours} |")
        records = [one for one in rebuilt.results.cells.values() if one["row"] in own]
        made_by += commands(rebuilt.table, records) if records else []
    if rows:
        yield "## In the papers' tables"
        yield ""
        yield "| table | row | column | paper, % | ours, % |"
        yield "|---|---|---|---:|---:|"
        yield from rows
        yield ""
        yield "```console no-run"
        yield from (f"$ {command}" for command in made_by)
        yield "```"
        yield ""
        yield "The pages of the tables have the moments, the seeds and the notes."


def with_block(text: str, lines: Sequence[str]) -> str:
    """A page with these lines between the two comments, which are added at its end where there are none.

    >>> with_block("# Page\\n", ["one"]) == f"# Page\\n\\n{BEGIN}\\n\\none\\n\\n{END}\\n"
    True
    """
    block = "\n\n".join([BEGIN, *(["\n".join(lines)] if lines else []), END])
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text)
    return f"{text.rstrip()}\n\n{block}\n" if lines else text


def wanted(results: Path, docs: Path) -> dict[Path, str]:
    """Every page that shows results, as it should be."""
    tables = rebuilt_tables(results)
    pages = {
        docs / "results.md": list(all_tables(results)),
        docs.parent / "README.md": list(line_of_each_column(results)),
    }
    for page in sorted((docs / "methods").glob("*.md")):
        pages[page] = list(rows_of_method(page.stem, tables))
    found = {page: with_block(page.read_text(encoding="utf-8"), lines) for page, lines in pages.items()}
    if runs := similarities.runs_of(results):
        found[results / f"{similarities.KEY}.md"] = similarities.page_in(results, runs)
    for one in tables:
        found[results / f"{one.table.key}.md"] = page_in(results, one)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or say which are out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if a page is out of date")
    options = parser.parse_args(arguments)
    stale = []
    for page, text in wanted(REPOSITORY / "results", REPOSITORY / "docs").items():
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            stale.append(page.relative_to(REPOSITORY).as_posix())
            if not options.check:
                page.write_text(text, encoding="utf-8")
    print("\n".join(f"{'out of date' if options.check else 'written'}: {page}" for page in stale) or "all up to date")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
