"""Figures of runs and comparisons that are at hand, one at a time: those that reports draw. They need matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from coterie.compare.table import Comparison, run_folder
from coterie.errors import CoterieError, require, unknown
from coterie.report.figures import OF_A_RUN, OF_SEVERAL
from coterie.report.figures_quality import QUALITY_OF_A_RUN, QUALITY_OF_SEVERAL
from coterie.report.onerun import MOST_ENTRIES, basic_content, run_content
from coterie.report.pictures import Learning, draw, require_matplotlib
from coterie.report.reading import read_run
from coterie.report.rounding import Content, rounded
from coterie.report.severalruns import Contender, contenders_content, metric_content
from coterie.runs.kept import KeptRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Figures that take no time, however many clients there are, and those for which all recorded weights are read.
BASIC, OF_WEIGHTS = ("curves", "bytes", "seconds"), ("learning", "graph", "agreement")


def plot_run(kept: KeptRun, what: str) -> Figure:
    """One of the figures of a run."""
    _require_known(what, OF_A_RUN)
    run = read_run(kept)
    content = basic_content(run) if what in BASIC else run_content(run, MOST_ENTRIES if what in OF_WEIGHTS else 0)
    figure = OF_A_RUN[what](content)
    if figure is None:
        reasons = {
            **dict.fromkeys(OF_WEIGHTS, content.get("why_no_learning")),
            **dict.fromkeys(QUALITY_OF_A_RUN, content.get("quality", {}).get("why")),
            "partition": content.get("why"),
        }
        raise CoterieError(f"{what}: there is nothing to draw ({reasons.get(what) or 'no round was tested'})")
    return figure


def plot_mixing(kept: KeptRun, round: int | None) -> Figure:
    """Who learned from whom in a round."""
    require_matplotlib()
    return draw(Learning.of_run(kept, round))


def plot_comparison(comparison: Comparison, what: str) -> Figure:
    """One of the figures of a comparison."""
    _require_known(what, OF_SEVERAL)
    if comparison.folder is None:
        require(what == "methods", f"{what}: needs the runs themselves; keep them: coterie.compare(…, out='somewhere')")
        content = _heard_content(comparison)
    else:
        folder, seeds = comparison.folder, comparison.seeds
        content = contenders_content(
            [
                Contender(name, tuple(read_run(folder / run_folder(name, seed)) for seed in seeds))
                for name in comparison.methods
            ],
            notes=[],
        )
    figure = OF_SEVERAL[what](content)
    if figure is None:
        about = "gains" if what == "gains" else "quality"
        why = content[about]["why"] if what in ("gains", *QUALITY_OF_SEVERAL) else "no round was tested"
        raise CoterieError(f"{what}: there is nothing to draw ({why})")
    return figure


def _require_known(what: str, figures: Mapping[str, Callable[[Content], Figure | None]]) -> None:
    if what not in figures:
        raise unknown("figure", what, figures)
    require_matplotlib()


def _heard_content(comparison: Comparison) -> Content:
    """What was heard of runs that are not kept: the mean scores of received models."""
    methods = []
    for name in comparison.methods:
        curves = [comparison.heard.get((name, seed), {}) for seed in comparison.seeds]
        shared = sorted(set.intersection(*map(set, curves)))
        by_round = [[curve[round] for curve in curves] for round in shared]
        received = {
            "rounds": shared,
            "mean": rounded([fmean(values) for values in by_round]),
            "std": rounded([stdev(values) for values in by_round]) if len(curves) > 1 else None,
        }
        methods.append({"title": name, "curves": {"received": received} if shared else {}})
    return {"metric": metric_content(comparison.scale), "methods": methods}
