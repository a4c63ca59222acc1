"""The report as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.errors import CoterieError
from coterie.files import write_whole
from coterie.report.html import CHARTS, Content, html_page
from coterie.report.onerun import MOST_ENTRIES, run_content
from coterie.report.reading import ReportedRun, read_run, run_folders
from coterie.report.severalruns import search_content, several_content
from coterie.typed import typed
from coterie.version import VERSION


@typed
def report(runs: str | Path | Sequence[str | Path], out: str | Path = "report.html") -> Path:
    """Write the report of a run, or of several runs, into an HTML file that opens offline.

    A run is a run directory, finished or not, or a packed run; a folder of runs stands for all of them, such as that of
    a comparison or of a search. What cannot be read is named on the page.
    """
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    target = Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, page(report_content([Path(path) for path in paths])).encode())
    return target


def report_content(paths: Sequence[Path]) -> Content:
    """All that a page shows, as plain values; `notes` name what is not shown. An error if nothing can be."""
    reported: list[ReportedRun] = []
    notes: list[str] = []
    for path in dict.fromkeys(_folders(paths, notes)):
        try:
            reported.append(read_run(path))
        except (CoterieError, OSError) as error:
            notes.append(str(error))
    if not reported:
        raise CoterieError("; ".join(notes) or "run: name at least one run directory")
    contents = [run_content(run, MOST_ENTRIES // len(reported)) for run in reported]
    notes += [note for run in reported for note in run.skipped]
    comparison, left_out = several_content(reported) if len(reported) > 1 else (None, [])
    search, unread = search_content(paths[0], reported) if len(paths) == 1 else (None, [])
    first = contents[0]
    title = f"{first['method']} on {first['data']}"
    if search is not None:
        title = f"{title}: {len(search['candidates'])} settings tried"
    elif len(reported) > 1:
        title = f"{len(reported)} runs on {first['data']}"
    return {
        "title": title,
        "version": VERSION,
        "runs": contents,
        "search": search,
        "comparison": comparison,
        "notes": [*notes, *unread, *left_out],
    }


def _folders(paths: Sequence[Path], notes: list[str]) -> Iterator[Path]:
    for path in paths:
        try:
            yield from run_folders(path)
        except (CoterieError, OSError) as error:
            notes.append(str(error))


def page(content: Content) -> str:
    """The page of a report's content."""
    return html_page(content, (*CHARTS, "main.js"))
