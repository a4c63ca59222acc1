"""The picture of who learned from whom. It needs matplotlib, which the extra `plots` brings."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.core.exchange import Applied
from coterie.errors import CoterieError, require
from coterie.files import write_whole
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.partition import PARTITIONS
from coterie.partition.npz import is_partition_file
from coterie.registry import short_name
from coterie.report.learning import (
    Floats,
    class_shares,
    label_order,
    learn_differently,
    learning_matrix,
    most_personal,
)
from coterie.rounds.report import RoundReport
from coterie.runs.about import About, described_clients, described_data
from coterie.runs.kept import KeptRun
from coterie.runs.opened import kept_run
from coterie.setup.config import Config, complete
from coterie.setup.prepared import Prepared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
DPI = 150
# Inches: the square matrix, the gap between it and its neighbours, the space for the title and the colour bar.
MATRIX, GAP, ABOVE, BAR, BESIDE_BAR = 5.6, 0.12, 0.9, 0.16, 0.62
# Points: names as large as their rows allow; those that would be too small to read are thinned out.
SMALLEST, LARGEST = 4.5, 9.0
LONGEST_NAME = 16
# With more clients or classes than this, lines between cells would cover them.
MOST_WITH_LINES = 40
# The colour follows the root of the weight: on a plain scale, what clients take from themselves hides the rest.
GAMMA = 0.5
# One hue from white to dark: the order of weights survives every kind of colour blindness, and grey print.
WEIGHTS, SHARES = ("#ffffff", "#c3d9ee", "#6aaed6", "#2070b4", "#08306b"), ("#ffffff", "#111111")
INK, FAINT, LINES, ABSENT = "#222222", "#666666", "#ececec", "#f2e9db"


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
    def of_run(cls, run: str | Path | KeptRun, round: int | None = None) -> Learning:
        """From a run that is kept: a recorded round; by default the last in which clients chose whom to learn from."""
        directory = run if isinstance(run, KeptRun) else kept_run(Path(run))
        config = directory.config()
        chosen = _recorded_round(directory, config, round)
        about = directory.about()
        return cls._of(directory.mixes(chosen), chosen, config, about["clients"], about["data"])

    @classmethod
    def of_round(cls, report: RoundReport, prepared: Prepared) -> Learning:
        """From what a listener gets: a report, and `start.prepared`; nothing need be on disk."""
        config = complete(prepared.experiment)
        return cls._of(report.mixes, report.round, config, described_clients(prepared), described_data(prepared))

    @classmethod
    def _of(
        cls, mixes: Sequence[Applied], round: int, config: Config, everyone: Sequence[About], data: About
    ) -> Learning:
        clients = [client for client in everyone if client["takes_part"]]
        mix = most_personal(mixes)
        method = METHODS[config["method"]].__name__ if config["method"] in METHODS else short_name(config["method"])
        what = f"mix of {mix.group}, into {mix.target}" + (", some elements only" if mix.gated else "")
        return cls(
            matrix=learning_matrix(mixes, len(clients)),
            counts=np.array([client["classes"] for client in clients]),
            names=tuple(client["name"] for client in clients),
            classes=tuple(data["class_names"]),
            round=round,
            title=f"{method}: who learns from whom in round {round} of {config['rounds']}",
            about=f"{what}\n{data['name']}, {len(clients)} clients, {_spoken_partition(config)}",
        )

    def ordered(self, order: Sequence[int]) -> Learning:
        """The same with the clients in another order."""
        rows = list(order)
        return replace(
            self,
            matrix=self.matrix[np.ix_(rows, rows)],
            counts=self.counts[rows],
            names=tuple(self.names[client] for client in rows),
        )


def picture(source: str | Path | Learning, path: str | Path, round: int | None = None) -> Path:
    """Draw who learned from whom in a round of a run directory (or a `Learning`) into a .png, .pdf or .svg file.

    Rows learn, columns are learned from. Clients with the same classes stand next to each other, so a method
    that finds them draws dark blocks along the diagonal. `round` is as for `Learning.of_run`.
    """
    target = Path(path)
    require(target.suffix.lower() in FORMATS, f"out = {target}: must end in {', '.join(FORMATS)}")
    require_matplotlib()
    learning = source if isinstance(source, Learning) else Learning.of_run(source, round)
    figure = draw(learning)
    content = io.BytesIO()
    figure.savefig(content, format=target.suffix.lower()[1:], dpi=DPI)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content.getvalue())
    return target


def require_matplotlib() -> None:
    """An error that says how to get matplotlib if it is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise CoterieError('pictures need matplotlib, which is not installed: pip install "coterie[plots]"') from None


def draw(learning: Learning) -> Figure:
    """The picture as a figure of its own, which touches nothing global in matplotlib."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    from coterie.report.canvas import ShownFigure

    shown = learning.ordered(label_order(learning.counts))
    names = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in shown.names]
    clients, classes = shown.counts.shape
    # The room that the names need, and that of the axis labels beside them.
    longest = max(map(len, names)) * _points(clients) * 0.6 / 72
    left, below = 0.5 + longest, 0.4 + longest
    strip = MATRIX * min(max(classes / 38, 0.2), 0.45) + GAP if classes else 0.0
    width, height = left + strip + MATRIX + GAP + BAR + BESIDE_BAR, ABOVE + MATRIX + below
    figure = ShownFigure(figsize=(width, height), facecolor="white")

    def axes(start: float, across: float) -> Axes:
        return figure.add_axes((start / width, below / height, across / width, MATRIX / height))

    beside = axes(left, strip - GAP) if classes else None
    matrix, bar = axes(left + strip, MATRIX), axes(left + strip + MATRIX + GAP, BAR)
    first = beside or matrix

    if beside is not None:
        greys = LinearSegmentedColormap.from_list("shares", SHARES)
        beside.imshow(class_shares(shown.counts), cmap=greys, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        _name_places(beside.xaxis, shown.classes if max(map(len, shown.classes)) <= 3 else [""] * classes, strip - GAP)
        beside.set_xlabel("classes held", color=INK)

    colours = LinearSegmentedColormap.from_list("weights", WEIGHTS).with_extremes(bad=ABSENT)
    scale = PowerNorm(GAMMA, vmin=0, vmax=float(np.nanmax(shown.matrix)))
    image = matrix.imshow(shown.matrix, cmap=colours, norm=scale, aspect="auto", interpolation="nearest")
    _name_places(matrix.xaxis, names)
    matrix.yaxis.set_ticks([])
    _name_places(first.yaxis, names)
    first.set_ylabel("learns", color=INK)
    matrix.set_xlabel("from", color=INK)

    weights = figure.colorbar(image, cax=bar)
    weights.set_label("weight (the colour follows its square root)", color=INK)
    weights.outline.set_visible(False)
    bar.tick_params(colors=FAINT, labelcolor=INK, labelsize=LARGEST - 1, length=2)
    for place in dict.fromkeys((first, matrix)):
        place.spines[:].set_color("#bbbbbb")
        _lines(place)
    if np.isnan(shown.matrix).any():
        from matplotlib.patches import Patch

        absent, corner = Patch(facecolor=ABSENT, label="took no part"), (matrix.get_position().x1, 1 - 0.38 / height)
        figure.legend(
            handles=[absent], loc="upper right", bbox_to_anchor=corner, borderpad=0, frameon=False, fontsize=LARGEST
        )
    figure.text(left / width, 1 - 0.18 / height, learning.title, va="top", color=INK, fontsize=13, weight="bold")
    figure.text(left / width, 1 - 0.44 / height, learning.about, va="top", color=FAINT, fontsize=LARGEST)
    return figure


def _recorded_round(directory: KeptRun, config: Config, round: int | None) -> int:
    recorded = directory.recorded_rounds()
    if not recorded:
        reason = "record_every = 0" if config["record_every"] == 0 else "nobody has learned from others"
        raise CoterieError(f"run = {directory.path}: there is nothing to draw ({reason})")
    if round is None:
        chose = (one for one in reversed(recorded) if learn_differently(directory.mixes(one)))
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


def _points(places: int, inches: float = MATRIX) -> float:
    """The size of letters that fits so many places into a length."""
    return min(max(inches * 72 / places * 0.75, SMALLEST), LARGEST)


def _name_places(axis: Axis, names: Sequence[str], inches: float = MATRIX) -> None:
    """Put a name at every row or column, or at every n-th where there is no room for all."""
    size = _points(len(names), inches)
    every = int(np.ceil(len(names) * size * 1.05 / (inches * 72)))
    axis.set_ticks(range(0, len(names), every), list(names[::every]))
    # Names below columns stand upright unless they fit into their column.
    upright = axis is axis.axes.xaxis and max(map(len, names)) * size * 0.65 > inches * 72 * every / len(names)
    axis.set_tick_params(length=0, labelsize=size, labelcolor=INK, labelrotation=90 if upright else 0)


def _lines(axes: Axes) -> None:
    """Hairlines between cells, where there are not too many."""
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        cells = round(abs(limits[1] - limits[0]))
        if cells <= MOST_WITH_LINES:
            axis.set_ticks(np.arange(1, cells) - 0.5, minor=True)
            axis.grid(which="minor", color=LINES, linewidth=0.6)
    axes.tick_params(which="minor", length=0)
