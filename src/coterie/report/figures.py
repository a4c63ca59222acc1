"""The figures of reports one by one, for papers and notebooks, and who learned from whom in one round.

They are drawn by the scripts of the page, without a browser.

They need the extra `plots`: an engine for the scripts, and a converter for images.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.compare.table import Comparison, run_folder
from coterie.core.exchange import Applied
from coterie.display import FORMATS, Figure, required_format
from coterie.errors import CoterieError, require, unknown
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.partition import PARTITIONS
from coterie.partition.partition import is_partition_file
from coterie.registry import short_name
from coterie.report.html import CHARTS, Content, asset, light_colours, rounded
from coterie.report.learning import (
    Floats,
    label_order,
    learn_differently,
    learning_matrix,
    most_personal,
    whole_numbers,
)
from coterie.report.onerun import MOST_ENTRIES, basic_content, metric_content, run_content
from coterie.report.reading import read_run
from coterie.report.severalruns import Contender, contenders_content
from coterie.rounds.listeners import RoundReport
from coterie.runs.about import described_clients, described_data
from coterie.runs.reader import Record, record_of
from coterie.runs.record import ClientAbout, DataAbout
from coterie.setup.config import Config, complete
from coterie.setup.prepared import Prepared

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


@dataclass(frozen=True, eq=False)
class Learning:
    """Who learned from whom in one round, with what is needed to read it.

    `matrix [K, K]` as `learning_matrix` gives it, `counts [K, C]` the samples of each class at every client.
    """

    matrix: Floats
    counts: npt.NDArray[Any]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    round: int
    title: str
    about: str

    @classmethod
    def of_run(cls, run: str | Path | Record, round: int | None = None) -> Learning:
        """From a run that is kept: a recorded round; by default the last in which clients chose whom to learn from."""
        directory = run if isinstance(run, Record) else record_of(Path(run))
        config = directory.config()
        chosen = _recorded_round(directory, config, round)
        about = directory.about()
        return cls._of(directory.mixes(chosen), chosen, config, about.participants, about.data)

    @classmethod
    def of_round(cls, report: RoundReport, prepared: Prepared) -> Learning:
        """From what a listener gets: a report, and `start.prepared`; nothing need be on disk."""
        config = complete(prepared.experiment)
        clients = [client for client in described_clients(prepared) if client.takes_part]
        return cls._of(report.mixes, report.round, config, clients, described_data(prepared))

    @classmethod
    def _of(
        cls, mixes: Sequence[Applied], round: int, config: Config, clients: Sequence[ClientAbout], data: DataAbout
    ) -> Learning:
        mix = most_personal(mixes)
        method = METHODS[config["method"]].__name__ if config["method"] in METHODS else short_name(config["method"])
        what = f"mix of {mix.group}, into {mix.target}" + (", some elements only" if mix.gated else "")
        return cls(
            matrix=learning_matrix(mixes, len(clients)),
            counts=np.array([client.classes for client in clients]),
            names=tuple(client.name for client in clients),
            classes=tuple(data.class_names),
            round=round,
            title=f"{method}: who learns from whom in round {round} of {config['rounds']}",
            about=f"{what}\n{data.name}, {len(clients)} clients, {_spoken_partition(config)}",
        )


def picture(source: str | Path | Learning, path: str | Path, round: int | None = None) -> Path:
    """Draw who learned from whom in a round of a run directory (or a `Learning`) into a .png, .pdf or .svg file.

    Rows learn, columns are learned from. Clients with the same classes stand next to each other, so a method
    that finds them draws dark blocks along the diagonal. `round` is as for `Learning.of_run`.
    """
    target = required_format(Path(path))
    require_plots()
    return draw(source if isinstance(source, Learning) else Learning.of_run(source, round)).save(target)


def plot_mixing(kept: Record, round: int | None) -> Figure:
    """Who learned from whom in a round."""
    require_plots()
    return draw(Learning.of_run(kept, round))


def draw(learning: Learning) -> Figure:
    """The picture: the matrix beside the classes that clients hold, in an order that shows groups."""
    content = {
        "clients": learning.names,
        "classes": learning.classes,
        "counts": learning.counts.tolist(),
        "order": label_order(learning.counts),
        "learning": [{"rounds": [learning.round], "weights": [whole_numbers(learning.matrix)]}],
    }
    return drawn(content, ["mixing"], [learning.title, *learning.about.splitlines()])["mixing"]


def _recorded_round(directory: Record, config: Config, round: int | None) -> int:
    recorded = directory.recorded_rounds()
    if not recorded:
        reason = "record_every = 0" if config["record_every"] == 0 else "nobody has learned from others"
        raise CoterieError(f"run = {directory.path}: there is nothing to draw ({reason})")
    if round is None:
        chose = (past for past in reversed(recorded) if learn_differently(directory.mixes(past)))
        return next(chose, recorded[-1])
    require(
        round in recorded,
        f"round = {round}: is not among the rounds in which '{directory.path}' recorded who learned from whom "
        f"({_spoken_rounds(recorded)})",
    )
    return round


def _spoken_rounds(rounds: Sequence[int]) -> str:
    """The rounds in short.

    >>> _spoken_rounds([1, 2, 3, 4, 5, 7, 9, 11]), _spoken_rounds([2, 4])
    ('1, 2, 3 … 11', '2, 4')
    """
    if len(rounds) <= 4:
        return ", ".join(map(str, rounds))
    return f"{', '.join(map(str, rounds[:3]))} … {rounds[-1]}"


def _spoken_partition(config: Config) -> str:
    rule = str(config["partition"])
    known = option_fields(PARTITIONS[rule]) if rule in PARTITIONS else {}
    options = ", ".join(f"{name}={config[name]}" for name in known if name != "clients" and name in config)
    if is_partition_file(rule):
        return Path(rule).name
    seed = config.get("partition_seed", config["seed"])
    return rule + (f" ({options})" if options else "") + f", seed {seed}"
