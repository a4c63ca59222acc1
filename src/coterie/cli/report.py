"""`coterie report`: one run or several as a page that opens offline, and its figures as files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from coterie.errors import require
from coterie.files import write_whole
from coterie.report.page import page, report_content
from coterie.report.terminal import print_result

SUFFIXES = (".html", ".htm")


def report_command(paths: Sequence[Path], out: Path, figures: Path | None) -> None:
    """Write the report and say where it is; what could not be shown goes to stderr too."""
    require(bool(paths), "report needs RUN")
    require(out.suffix.lower() in SUFFIXES, f"out = {out}: must end in {' or '.join(SUFFIXES)}")
    if figures is not None:
        from coterie.report.charts import require_plots

        require_plots()
    content = report_content(paths)
    for note in content["notes"]:
        print(f"coterie: warning: {note}", file=sys.stderr)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page(content).encode())
    print_result(f"The report is kept in {out}")
    if figures is not None:
        from coterie.report.charts import write_figures

        written = write_figures(content, figures)
        print_result(f"{len(written)} figures are kept in {figures}")
