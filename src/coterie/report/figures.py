"""The figures of a report as files, for papers: the numbers of the page, drawn by matplotlib (the extra `plots`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.files import write_whole
from coterie.report.drawing import (
    INK,
    LINE,
    MOMENTS,
    SERIES,
    SOFT,
    class_colours,
    legend,
    metric_title,
    new_figure,
    plain,
    scores,
    style,
)
from coterie.report.figures_influence import influence_figure
from coterie.report.figures_quality import QUALITY_OF_A_RUN, QUALITY_OF_SEVERAL
from coterie.report.figures_search import search_figure
from coterie.report.figures_several import against, gains, method_curves
from coterie.report.learning import Floats
from coterie.report.onerun import ABSENT, PARTS
from coterie.report.pictures import ABSENT as ABSENT_COLOUR
from coterie.report.pictures import DPI, FORMATS, GAMMA, WEIGHTS
from coterie.report.rounding import Content

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCES = 3


def write_figures(content: Content, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write every figure that the content has numbers for, in each format; those of several runs in folders each."""
    written: list[Path] = []
    if content["search"] is not None and (found := search_figure(content["search"])) is not None:
        written += save_figures({"search": found}, folder, formats)
    if content["comparison"] is not None:
        written += save_figures(method_figures(content["comparison"]), folder, formats)
    taken: set[str] = set()
    for number, run in enumerate(content["runs"], 1):
        name = run["name"] if run["name"] not in taken else f"{run['name']}-{number}"
        taken.add(name)
        written += save_figures(run_figures(run), folder if len(content["runs"]) == 1 else folder / name, formats)
    return written


def method_figures(comparison: Content) -> dict[str, Figure]:
    """The figures of several runs, by name."""
    return {name: figure for name, draw in OF_SEVERAL.items() if (figure := draw(comparison)) is not None}


def run_figures(run: Content) -> dict[str, Figure]:
    """The figures of one run, by name; those for which it has no numbers are left out."""
    return {name: figure for name, draw in OF_A_RUN.items() if (figure := draw(run)) is not None}


def save_figures(figures: Mapping[str, Figure], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write figures by name, each in every format; the same numbers give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, figure in figures.items():
        # Finding room for everything takes longer than drawing, and is the same for all formats.
        figure.dpi = DPI
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for suffix in formats:
            written.append(folder / f"{name}{suffix}")
            write_whole(written[-1], _drawn(figure, suffix, name))
    return written


def _drawn(figure: Figure, suffix: str, name: str) -> bytes:
    """A figure as a file. `savefig` would draw it twice."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.BytesIO()
    figure.dpi = DPI
    canvas: Any = {".png": FigureCanvasAgg, ".pdf": FigureCanvasPdf, ".svg": FigureCanvasSVG}[suffix](figure)
    # Without the salt and with a date, two drawings of the same numbers differ.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        if suffix == ".png":
            canvas.print_png(out)
        elif suffix == ".pdf":
            canvas.print_pdf(out, metadata={"CreationDate": None})
        else:
            canvas.print_svg(out, metadata={"Date": None})
    return out.getvalue()


def _curves(run: Content) -> Figure | None:
    if not run["curves"]:
        return None
    moments = run["curves"]
    figure = new_figure(4.2 * len(moments), 3.4, f"{run['method']} on {run['data']}: {run['metric']['name']}")
    places = figure.subplots(1, len(moments), sharey=True, squeeze=False)[0]
    for axes, (moment, one) in zip(places, moments.items(), strict=True):
        values = {name: scores(run["metric"], one[name]) for name in ("mean", "worst", "q10", "q25", "q75", "q90")}
        rounds = one["rounds"]
        style(axes, "round", metric_title(run["metric"]))
        axes.fill_between(rounds, values["q10"], values["q90"], color=SERIES[0], alpha=0.16, lw=0, label="10–90 %")
        axes.fill_between(rounds, values["q25"], values["q75"], color=SERIES[0], alpha=0.28, lw=0, label="25–75 %")
        axes.plot(rounds, values["mean"], color=SERIES[0], lw=1.8, label="mean over clients")
        axes.plot(rounds, values["worst"], color=SERIES[1], lw=1.2, ls="--", label="worst tenth, mean")
        axes.set_title(MOMENTS[moment], fontsize=9, color=INK, loc="left")
    legend(figure, places[0])
    return figure


def _training(run: Content) -> Figure | None:
    one = run["training"]
    if one is None:
        return None
    values = {name: scores({"share": False}, one[name]) for name in ("mean", "tested", "q10", "q25", "q75", "q90")}
    figure = new_figure(5.6, 3.4, f"{run['method']} on {run['data']}: training loss")
    axes, rounds = style(figure.subplots(), "round", "loss"), one["rounds"]
    axes.fill_between(rounds, values["q10"], values["q90"], color=SERIES[2], alpha=0.16, lw=0, label="10–90 %")
    axes.fill_between(rounds, values["q25"], values["q75"], color=SERIES[2], alpha=0.28, lw=0, label="25–75 %")
    axes.plot(rounds, values["mean"], color=SERIES[2], lw=1.8, label="mean over clients")
    axes.plot(rounds, values["tested"], color=SERIES[5], lw=1.2, ls="--", label="on test samples, right after")
    legend(figure, axes)
    return figure


def _clients(run: Content) -> Figure | None:
    if not run["final"]:
        return None
    order, metric = run["order"], run["metric"]
    rows = np.arange(len(order))[::-1]
    height = 1.1 + 0.22 * len(order)
    figure = new_figure(8.4, height, f"Each client: its classes, its {metric['name']}")
    mixed = run["counts"] is not None
    places = figure.subplots(1, 1 + mixed, sharey=True, squeeze=False, gridspec_kw={"wspace": 0.02})[0]
    if mixed:
        counts = np.array(run["counts"])[order]
        shares, left = counts / np.maximum(counts.sum(1, keepdims=True), 1), np.zeros(len(order))
        for name, colour, share in zip(run["classes"], class_colours(len(run["classes"])), shares.T, strict=True):
            places[0].barh(rows, share, left=left, color=colour, height=0.66, label=plain(name))
            left = left + share
        style(places[0], "shares of classes", "client")
        if len(run["classes"]) <= 20:
            legend(figure, places[0], columns=10)
    for number, (moment, values) in enumerate(run["final"].items()):
        colour, own = SERIES[(1, 0, 2)[number]], scores(metric, [values[k] for k in order])
        hollow = {"facecolors": "none", "edgecolors": colour} if number == 0 else {"color": colour}
        places[-1].scatter(own, rows, s=34 if number == 0 else 14, label=moment, zorder=3, **hollow)
    style(places[-1], metric_title(metric), "" if mixed else "client")
    places[-1].grid(axis="x", color=LINE, linewidth=0.7)
    legend(figure, places[-1])
    places[0].set_yticks(rows, [plain(run["clients"][k]) for k in order])
    return figure


def _partition(run: Content) -> Figure | None:
    if run["counts"] is None:
        return None
    counts = np.array(run["counts"])[run["order"]]
    clients, classes = counts.shape
    wide = float(np.clip(1.5 + 0.3 * clients, 4, 14))
    high = float(np.clip(1.2 + 0.26 * classes, 2.4, 12))
    figure = new_figure(wide, high, "Who holds how many samples of which class")
    axes = style(figure.subplots(), "client", "class")
    place, kind = np.nonzero(counts)
    colours = class_colours(classes)
    axes.scatter(place, kind, s=180 * counts[place, kind] / max(counts.max(), 1), c=[colours[c] for c in kind])
    every = max(1, round(clients / 50))
    names = [plain(run["clients"][k]) for k in run["order"]]
    axes.set_xticks(range(0, clients, every), names[::every], rotation=90 if max(map(len, names)) > 3 else 0)
    every = max(1, classes // 40)
    axes.set_yticks(range(0, classes, every), list(map(plain, run["classes"]))[::every])
    axes.invert_yaxis()
    return figure


def shown_matrix(run: Content) -> Floats | None:
    """Who learns from whom in the round that the page shows first, of its first track: `[K, K]`; NaN for the absent."""
    if not run["learning"]:
        return None
    track, clients = run["learning"][0], len(run["clients"])
    parts = np.array(track["weights"][track["start"]], np.float64)
    matrix = np.tile(parts, (clients, 1)) if len(parts) == clients else parts.reshape(clients, clients)
    return np.where(matrix == ABSENT, np.nan, matrix / PARTS)


def _learning(run: Content) -> Figure | None:
    matrix = shown_matrix(run)
    if matrix is None:
        return None
    track, order = run["learning"][0], run["order"]
    title = f"{run['method']}: who learns from whom ({track['group']}, into {track['target']})"
    panels = 1 if run["overlap"] is None else 2
    figure = new_figure(4.6 * panels, 4.9, title)
    places = figure.subplots(1, panels, squeeze=False)[0]
    _heat(places[0], matrix, run, f"weights of round {track['rounds'][track['start']]}", ("from", "learns"))
    if panels == 2:
        _heat(places[1], np.array(run["overlap"]), run, "overlap of classes, Σ min(p, q)", ("client", "client"))
    for axes in places:
        every = max(1, len(order) // 25)
        names = [plain(run["clients"][k]) for k in order][::every]
        axes.set_xticks(range(0, len(order), every), names, fontsize=7, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(0, len(order), every), names, fontsize=7)
        axes.tick_params(length=0)
    return figure


def _heat(axes: Axes, matrix: Floats, run: Content, title: str, names: tuple[str, str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colours = LinearSegmentedColormap.from_list("weights", WEIGHTS).with_extremes(bad=ABSENT_COLOUR)
    shown = matrix[np.ix_(run["order"], run["order"])]
    top = float(np.nanmax(shown)) if not np.isnan(shown).all() else 1.0
    image = axes.imshow(shown, cmap=colours, norm=PowerNorm(GAMMA, vmin=0, vmax=top or 1.0), interpolation="nearest")
    axes.set_title(title, fontsize=9, color=INK, loc="left")
    axes.set_xlabel(names[0], color=SOFT, fontsize=9)
    axes.set_ylabel(names[1], color=SOFT, fontsize=9)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.7)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, colors=SOFT, length=0)


def _graph(run: Content) -> Figure | None:
    from matplotlib.patches import FancyArrowPatch

    matrix = shown_matrix(run)
    if matrix is None or len(matrix) < 2:
        return None
    track = run["learning"][0]
    others = np.nan_to_num(matrix) * (1 - np.eye(len(matrix)))
    places, most = settled(others, run["order"]), float(others.max()) or 1.0
    figure = new_figure(6, 5.4, f"{run['method']}: who learns from whom, round {track['rounds'][track['start']]}")
    axes = figure.subplots()
    for learner in range(len(others)):
        for source in np.argsort(-others[learner])[:SOURCES]:
            strength = others[learner, source] / most
            if strength > 0.02:
                look: dict[str, Any] = {"lw": 0.4 + 2.6 * strength, "alpha": 0.25 + 0.6 * strength, "color": SERIES[0]}
                bent: dict[str, Any] = {"connectionstyle": "arc3,rad=0.15", "shrinkA": 8, "shrinkB": 8}
                axes.add_patch(
                    FancyArrowPatch(places[source], places[learner], arrowstyle="-|>", mutation_scale=8, **bent, **look)
                )
    main = class_colours(len(run["classes"])) if run["classes"] else [SERIES[0]]
    colours = [main[int(np.argmax(row))] for row in run["counts"]] if run["classes"] else main * len(others)
    axes.scatter(places[:, 0], places[:, 1], s=130, c=colours, edgecolors="white", zorder=3)
    for name, (x, y) in zip(run["clients"], places, strict=True):
        axes.annotate(plain(name), (x, y), (0, -13), textcoords="offset points", ha="center", fontsize=7, color=INK)
    axes.margins(0.1)
    axes.set_axis_off()
    note = "arrows lead to who learns; " + ("colours: the class held most" if run["classes"] else "")
    axes.set_title(note.rstrip("; "), fontsize=8, color=SOFT, loc="left")
    return figure


def settled(others: Floats, order: list[int], steps: int = 400) -> Floats:
    """Where clients stand in the graph, as on the page: they push each other away, weights pull: `[K, 2]`.

    >>> apart = settled(np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], float), [0, 1, 2, 3])
    >>> bool(np.linalg.norm(apart[0] - apart[1]) < np.linalg.norm(apart[0] - apart[2]))
    True
    """
    clients = len(others)
    both = others + others.T
    pairs = both[~np.eye(clients, dtype=bool)]
    low, spread = float(pairs.min()), float(np.ptp(pairs))
    pull = (both - low) / spread if spread > 1e-6 else np.zeros_like(both)
    turn = 2 * np.pi * np.argsort(order) / clients
    places = 0.6 * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    apart = 1 / np.sqrt(clients)
    for step in range(steps):
        way = places[:, None] - places[None]
        far = np.maximum(np.linalg.norm(way, axis=2), 1e-4)
        force = apart**2 / far**2 - 0.9 * pull * far / apart
        np.fill_diagonal(force, 0)
        moves = (way * force[:, :, None]).sum(1) - 2 * places
        size = np.maximum(np.linalg.norm(moves, axis=1, keepdims=True), 1e-9)
        places = places + moves / size * np.minimum(size * 0.1, 0.12 * (1 - step / steps) + 0.001)
    return places


def _agreement(run: Content) -> Figure | None:
    tracks = [track for track in run["learning"] if track["agreement"] is not None]
    if not tracks:
        return None
    figure = new_figure(5.6, 3.4, f"{run['method']}: how well the weights follow the overlap of classes")
    axes = style(figure.subplots(), "round", "rank correlation, off the diagonal")
    for number, track in enumerate(tracks):
        values = scores({"share": False}, track["agreement"]["values"])
        label = plain(f"{track['group']}, into {track['target']}")
        axes.plot(track["agreement"]["rounds"], values, color=SERIES[(number + 2) % len(SERIES)], label=label)
    legend(figure, axes)
    return figure


def _costs(run: Content, what: str) -> Figure | None:
    rounds = run["cost"]["rounds"]
    if not rounds:
        return None
    figure = new_figure(5.6, 3.0, f"{run['method']}: {what} per round")
    axes = style(figure.subplots(), "round", "bytes, all clients of the round" if what == "bytes" else "seconds")
    below = np.zeros(len(rounds))
    for number, (part, values) in enumerate(run["cost"][what].items()):
        axes.bar(rounds, values, bottom=below, width=1.0, color=SERIES[(0, 4, 5)[number]], label=part)
        below = below + np.array(values)
    legend(figure, axes)
    return figure


OF_A_RUN: dict[str, Callable[[Content], Figure | None]] = {
    "curves": _curves,
    "training": _training,
    "clients": _clients,
    "partition": _partition,
    **QUALITY_OF_A_RUN,
    "learning": _learning,
    "graph": _graph,
    "influence": influence_figure,
    "agreement": _agreement,
    "bytes": lambda run: _costs(run, "bytes"),
    "seconds": lambda run: _costs(run, "seconds"),
}
"""The figures of one run, by name; nothing is drawn where it has no numbers for one."""
OF_SEVERAL: dict[str, Callable[[Content], Figure | None]] = {
    "methods": method_curves,
    "against-bytes": lambda comparison: against(comparison, "bytes"),
    "against-seconds": lambda comparison: against(comparison, "seconds"),
    "gains": gains,
    **QUALITY_OF_SEVERAL,
}
"""Those of several runs."""
