"""The report as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.errors import CoterieError
from coterie.files import write_whole
from coterie.report.html import html_page
from coterie.report.onerun import MOST_ENTRIES, run_content
from coterie.report.reading import RunRecord, read_run, run_folders
from coterie.report.rounding import Content
from coterie.report.severalruns import several_content
from coterie.typed import typed
from coterie.version import VERSION

# In the order in which they need each other.
SCRIPTS = (
    "kit.js",
    "scheme.js",
    "curves.js",
    "clients.js",
    "quality.js",
    "learning.js",
    "graph.js",
    "several.js",
    "main.js",
)


@typed
def report(runs: str | Path | Sequence[str | Path], out: str | Path = "report.html") -> Path:
    """Write the report of a run, or of several runs, into an HTML file that opens offline.

    A run is a run directory, finished or not; a folder of runs stands for all of them. What cannot be read is named
    on the page.
    """
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    target = Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, page(report_content([Path(path) for path in paths])).encode())
    return target


def report_content(paths: Sequence[Path]) -> Content:
    """All that a page shows, as plain values; `notes` name what is not shown. An error if nothing can be."""
    found: list[RunRecord] = []
    notes: list[str] = []
    for path in dict.fromkeys(folder for given in paths for folder in run_folders(given)):
        try:
            found.append(read_run(path))
        except (CoterieError, OSError) as error:
            notes.append(str(error))
    if not found:
        raise CoterieError("; ".join(notes) or "run: name at least one run directory")
    contents = [run_content(run, MOST_ENTRIES // len(found)) for run in found]
    notes += [note for run in found for note in run.skipped]
    comparison, left_out = several_content(found) if len(found) > 1 else (None, [])
    first = contents[0]
    several = f"{len(found)} runs on {first['data']}"
    return {
        "title": several if len(found) > 1 else f"{first['method']} on {first['data']}",
        "version": VERSION,
        "runs": contents,
        "comparison": comparison,
        "notes": [*notes, *left_out],
    }


def page(content: Content) -> str:
    """The page of a report's content."""
    return html_page(content, SCRIPTS)
