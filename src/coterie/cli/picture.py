"""`coterie picture`: who learned from whom in a round of a run, as an image."""

from __future__ import annotations

from pathlib import Path

from coterie.report.charts import require_plots
from coterie.report.pictures import Learning, picture
from coterie.report.terminal import print_result


def picture_command(path: Path, round: int | None, out: Path | None) -> None:
    """Draw the picture and say where it is."""
    require_plots()
    learning = Learning.of_run(path, round)
    folder = path if path.is_dir() else Path()  # into a packed run nothing is written
    target = picture(learning, folder / f"picture-round-{learning.round}.png" if out is None else out)
    print_result(f"The picture of round {learning.round} is kept in {target}")
