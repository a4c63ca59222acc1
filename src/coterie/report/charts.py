"""The figures of reports one by one, for papers and notebooks: drawn by the scripts of the page, without a browser.

They need the extra `plots`: an engine for the scripts, and a converter for images.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from coterie.compare.table import Comparison, run_folder
from coterie.display import FORMATS, Figure
from coterie.errors import CoterieError, require, unknown
from coterie.report.html import CHARTS, asset, light_colours
from coterie.report.onerun import MOST_ENTRIES, basic_content, run_content
from coterie.report.reading import read_run
from coterie.report.rounding import Content, rounded
from coterie.report.severalruns import Contender, contenders_content, metric_content
from coterie.runs.reader import Record

# Figures that take no time, however many clients there are, and those for which all recorded weights are read.
BASIC, OF_WEIGHTS = ("curves", "bytes", "seconds"), ("learning", "graph", "influence", "agreement")
QUALITY_OF_A_RUN, QUALITY_OF_SEVERAL = ("recall", "ranking", "calibration"), ("recalls", "rankings", "calibrations")
OF_A_RUN = ("curves", "training", "clients", "partition", *QUALITY_OF_A_RUN, *OF_WEIGHTS, "bytes", "seconds")
"""The figures of one run."""
OF_SEVERAL = ("methods", "against-bytes", "against-seconds", "gains", *QUALITY_OF_SEVERAL)
"""Those of several runs."""


def require_plots() -> None:
    """An error that says how to get what figures need if it is missing."""
    try:
        import quickjs  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise CoterieError('pictures need an extra that is not installed: pip install "coterie[plots]"') from None


def drawn(content: Content, names: Iterable[str], heading: Sequence[str] = ()) -> dict[str, Figure]:
    """Figures of a content by name, with lines above them; those for which it has no numbers are left out."""
    import quickjs

    page = quickjs.Context()
    page.eval("\n".join([f"const COLOURS = {json.dumps(light_colours())};", *map(asset, ("paper.js", *CHARTS))]))
    page.get("begin")(json.dumps(content))
    draw, above = page.get("drawn"), json.dumps(heading)
    return {name: Figure(svg) for name in names if (svg := json.loads(draw(name, above)))}


def run_figures(run: Content, names: Iterable[str] = OF_A_RUN) -> dict[str, Figure]:
    """The figures of one run."""
    return drawn(run, names, [f"{run['method']} on {run['data']}"])


def write_figures(content: Content, folder: Path, formats: Iterable[str] = tuple(FORMATS)) -> list[Path]:
    """Write every figure that the content has numbers for, in each format; those of several runs in folders each."""
    places: list[tuple[Path, dict[str, Figure]]] = []
    if content["search"] is not None:
        places.append((folder, drawn(content["search"], ["search"])))
    if content["comparison"] is not None:
        places.append((folder, drawn(content["comparison"], OF_SEVERAL)))
    taken: set[str] = set()
    for number, run in enumerate(content["runs"], 1):
        name = run["name"] if run["name"] not in taken else f"{run['name']}-{number}"
        taken.add(name)
        places.append((folder if len(content["runs"]) == 1 else folder / name, run_figures(run)))
    return [
        figure.save(place / f"{name}{suffix}")
        for place, figures in places
        for name, figure in figures.items()
        for suffix in formats
    ]


def plot_run(kept: Record, what: str) -> Figure:
    """One of the figures of a run."""
    _require_known(what, OF_A_RUN)
    run = read_run(kept)
    content = basic_content(run) if what in BASIC else run_content(run, MOST_ENTRIES if what in OF_WEIGHTS else 0)
    reasons = {
        **dict.fromkeys(OF_WEIGHTS, content.get("why_no_learning")),
        **dict.fromkeys(QUALITY_OF_A_RUN, content.get("quality", {}).get("why")),
        "partition": content.get("why"),
        "bytes": "nothing travelled" if content["cost"]["rounds"] else "",
    }
    return _only(what, run_figures(content, [what]), reasons.get(what))


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
    about = "gains" if what == "gains" else "quality"
    reason = content[about]["why"] if what in ("gains", *QUALITY_OF_SEVERAL) else ""
    return _only(what, drawn(content, [what]), reason)


def _only(what: str, figures: Mapping[str, Figure], why_not: str | None) -> Figure:
    require(what in figures, f"{what}: there is nothing to draw ({why_not or 'no round was tested'})")
    return figures[what]


def _require_known(what: str, names: Sequence[str]) -> None:
    if what not in names:
        raise unknown("figure", what, names)
    require_plots()


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
