"""`coterie report` and `coterie picture`: runs as a page that opens offline, and figures as files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.options import OUTPUT, file, option
from coterie.errors import require

SUFFIXES = (".html", ".htm")


def report(
    *runs: Annotated[
        Path, Parameter(help="Directories of runs, finished or not, of a comparison or a sweep; or a .zip of runs.")
    ],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="The .html file to write.", group=OUTPUT)] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None, file("A folder for every figure as .svg, .pdf and .png (needs the extra 'plots').", "none", OUTPUT)
    ] = None,
) -> None:
    """Write one run or several as an HTML page that opens offline: curves, clients, who learns from whom, costs."""
    from coterie.files import write_whole
    from coterie.report.figures import require_plots, write_figures
    from coterie.report.page import page, report_content
    from coterie.report.terminal import print_result

    require(bool(runs), "report needs RUN")
    require(out.suffix.lower() in SUFFIXES, f"out = {out}: must end in {' or '.join(SUFFIXES)}")
    if figures is not None:
        require_plots()
    content = report_content(runs)
    for note in content["notes"]:
        print(f"coterie: warning: {note}", file=sys.stderr)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page(content).encode())
    print_result(f"The report is kept in {out}")
    if figures is not None:
        print_result(f"{len(write_figures(content, figures))} figures are kept in {figures}")


def picture(
    run: Annotated[Path, Parameter(help="The directory of a run.")],
    /,
    *,
    round: Annotated[
        int | None, option("The round to draw.", "the last in which clients chose whom to learn from", OUTPUT)
    ] = None,
    out: Annotated[
        Path | None, file("The .png, .pdf or .svg file to write.", "RUN/picture-round-N.png", OUTPUT)
    ] = None,
) -> None:
    """Draw who learned from whom in a round of a run, as a heat map (needs the extra 'plots')."""
    from coterie.report.figures import Learning, picture, require_plots
    from coterie.report.terminal import print_result

    require_plots()
    learning = Learning.of_run(run, round)
    folder = run if run.is_dir() else Path()  # into a packed run nothing is written
    target = picture(learning, folder / f"picture-round-{learning.round}.png" if out is None else out)
    print_result(f"The picture of round {learning.round} is kept in {target}")
