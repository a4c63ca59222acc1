"""`python tools/results.py`: write what stands in `results/` into the documentation; `--check` only looks.

`docs/results.md` lists the rebuilt tables with what became of the lead of the proposed method, the README has a line
for each, and each method's page gets its rows. All stand between two comments; nothing else of the pages is touched.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.reproduce.page import number_text, page_of
from coterie.reproduce.paper import paper_tables
from coterie.reproduce.similarities import KEY as SIMILARITIES
from coterie.reproduce.store import Results
from coterie.reproduce.verdict import Rebuilt

REPOSITORY = Path(__file__).parents[1]
BEGIN, END = "<!-- results: written by tools/results.py -->", "<!-- end of results -->"


def rebuilt_tables(results: Path) -> list[Rebuilt]:
    """Every table of which something has run."""
    found = (Rebuilt(table, Results(table, results)) for table in paper_tables().values())
    return [one for one in found if one.results.cells]


def list_of_tables(results: Path) -> Iterator[str]:
    """The tables, a section each: a link, and a line for every column."""
    if (results / f"{SIMILARITIES}.md").is_file():
        yield f"- [pFedSim, table 2](../results/{SIMILARITIES}.md): do similar clients have similar classifiers?"
    for rebuilt in rebuilt_tables(results):
        table = rebuilt.table
        yield f"- [{table.title}](../results/{table.key}.md)"
        for part in rebuilt.parts:
            seeds = max(len(own) for own in part.records.values())
            about = f"{part.amount}, {len(part.rows)} rows, {seeds} seed{'s' if seeds > 1 else ''}"
            lead = part.verdicts()[0] if part.verdicts() else None
            told = "" if lead is None else f"; {lead.claim}: {number_text(lead.ours)} points, {lead.word}"
            yield f"    - {part.column.title}: {about}{told}"


def line_of_each_table(results: Path) -> Iterator[str]:
    """The tables in a line each, for the README."""
    if (results / f"{SIMILARITIES}.md").is_file():
        yield f"- [pFedSim, table 2](results/{SIMILARITIES}.md): similar clients have similar classifiers"
    for rebuilt in rebuilt_tables(results):
        told = []
        for part in rebuilt.parts:
            near = sum(not part.differs(row) for row in part.rows)
            within = f", {near} of {len(part.rows)} rows near the paper's number" if part.amount.full else ""
            lead = f"; {verdict.claim}: {verdict.word}" if (verdict := next(iter(part.verdicts()), None)) else ""
            told.append(f"{part.column.title} ({part.amount}){within}{lead}")
        yield f"- [{rebuilt.table.title}](results/{rebuilt.table.key}.md): {'. '.join(told)}"


def rows_of_method(method: str, tables: Sequence[Rebuilt]) -> Iterator[str]:
    """The rows of a method in all rebuilt tables."""
    rows = []
    for rebuilt in tables:
        for part in rebuilt.parts:
            for row in part.rows:
                if row.method_name == method and part.column.measure == "score":
                    paper = part.paper(row)
                    theirs = "" if paper is None else f"{paper[0]:g}"
                    where = f"[{rebuilt.table.title.partition(':')[0]}](../../results/{rebuilt.table.key}.md)"
                    amount = "" if part.amount.full else f" ({part.amount})"
                    ours = number_text(part.ours(row))
                    rows.append(f"| {where} | {row.title} | {part.column.title}{amount} | {theirs} | {ours} |")
    if rows:
        yield "## In the papers' tables"
        yield ""
        yield "| table | row | column | paper, % | ours, % |"
        yield "|---|---|---|---:|---:|"
        yield from rows
        yield ""
        yield "The pages of the tables have the commands, the moments and the seeds."


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
        docs / "results.md": list(list_of_tables(results)),
        docs.parent / "README.md": list(line_of_each_table(results)),
    }
    for page in sorted((docs / "methods").glob("*.md")):
        pages[page] = list(rows_of_method(page.stem, tables))
    found = {page: with_block(page.read_text(encoding="utf-8"), lines) for page, lines in pages.items()}
    for one in tables:
        picture = f"{one.table.key}.svg"
        found[results / f"{one.table.key}.md"] = page_of(one, picture if (results / picture).is_file() else None)
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
