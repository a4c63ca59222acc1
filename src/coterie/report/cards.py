"""What things look like in a notebook: a small card of HTML each, readable on light and on dark ground.

Colours of text are the notebook's own (`currentColor`). All texts are escaped. Nothing is loaded, and no script runs.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np

from coterie.compare.table import Comparison
from coterie.core.numbers import number_text, spoken_bytes
from coterie.data import Dataset
from coterie.errors import CoterieError
from coterie.partition import Partition
from coterie.registry import short_name
from coterie.report.tables import mean_and_spread
from coterie.runs.experiment import WHAT, Experiment
from coterie.runs.run import Run

# Tiny pictures: inline SVG without axes, in colours that hold on light and on dark ground.
WIDTH, HEIGHT, BELOW = 260, 70, 4
BLUE, ORANGE = "#3b8fd0", "#dd7a1f"
# More bars than this are drawn as the quantiles of all; more points of a curve are thinned out.
MOST_BARS, MOST_POINTS = 65, 130

Curve = tuple[str, tuple[Sequence[float], Sequence[float]]]
"""A colour, and the places and values of points."""

CARD = "font:13px/1.5 system-ui,sans-serif;max-width:60rem;overflow-x:auto"
CELL = "padding:1px 12px 1px 0;text-align:{};vertical-align:top;border:0;background:transparent"
FAINT = "opacity:.68"
# Clients or classes that a card lists one by one.
MOST_LISTED = 12
COLOURS = {"received": BLUE, "trained": ORANGE}


class Html(str):
    """A text that is HTML already."""

    __slots__ = ()


def card(thing: object) -> str:
    """A thing as HTML."""
    try:
        match thing:
            case Run():
                return _of_run(thing)
            case Comparison():
                return _of_comparison(thing)
            case Experiment():
                return _of_experiment(thing)
            case Dataset():
                return _of_data(thing)
            case Partition():
                return _of_partition(thing)
    except CoterieError as error:  # such as a run that is damaged: there is still something to say
        return _card(_title(type(thing).__name__, str(error)))
    return _card(_title(type(thing).__name__, ""))


def _of_run(run: Run) -> str:
    config, about, history = run.config, run.about, run.history
    clients = len(about.participants)
    state = f"{run.status}, round {run.done} of {config['rounds']}; {clients} clients, model {config['model']}"
    title = _title(f"{short_name(config['method'])} on {about.data.name}", f"{state}, seed {config['seed']}")
    better = max if about.data.task.metrics[run.judged_by]["higher_is_better"] else min
    rows: list[list[str]] = []
    lines: list[Curve] = []
    for moment, colour in COLOURS.items():
        tests = history[history["moment"] == moment].dropna(subset=["mean"])
        if len(tests):
            last, means = tests.iloc[-1], tests["mean"].tolist()
            numbers = [last["mean"], better(means), last["worst_decile"], last["std"]]
            name = Html(f'<span style="color:{colour}">■</span> {moment}')
            rows.append([name, *(number_text(float(number)) for number in numbers)])
            lines.append((colour, (tests["round"].tolist(), means)))
    if not rows:
        return _card(title, _line("no round was tested so far"))
    heads = [run.judged_by, "mean, last", "mean, best", "worst tenth", "deviation"]
    final = sorted(run.clients["received"].dropna().tolist())
    pictures = _beside(
        _captioned(curves(lines), f"{run.judged_by} over rounds, mean over clients"),
        _captioned(bars(final, BLUE), "each client as received, last, sorted"),
    )
    cost = f"{spoken_bytes(run.bytes)} moved, {run.seconds:.1f} s of computation"
    return _card(title, _table(heads, rows), pictures, _line(cost))


def _of_comparison(comparison: Comparison) -> str:
    grid, seeds = comparison.grid, ", ".join(map(str, comparison.seeds))
    columns = list(grid.columns.values())
    heads = ["method", *(column.title + (" %" if column.unit == "share" else "") for column in columns)]
    rows = []
    for method in grid.rows:
        cells = [mean_and_spread(grid.number(method, column.key), column) for column in columns]
        won = [grid.winner(column.key) == method for column in columns]
        marked = [Html(f"<b>{cell}&nbsp;*</b>") if best else cell for cell, best in zip(cells, won, strict=True)]
        rows.append([method, *marked])
    title = _title(f"Comparison of {len(grid.rows)} methods", f"{grid.scale.title}, seeds {seeds}")
    return _card(title, _table(heads, rows), _line(grid.note()))


def _of_experiment(experiment: Experiment) -> str:
    rows = [["method", repr(experiment.method)]]
    for name in WHAT:
        value = getattr(experiment, name)
        rows.append([name, value if isinstance(value, str) else _shortened(repr(value))])
    rows += [[name, str(value)] for name, value in experiment.changed().items()]
    return _card(_title("Experiment", "settings that are not listed are the usual ones"), _named(rows))


def _of_data(data: Dataset) -> str:
    rows = [
        ["samples", f"{len(data)}" + (f", {data.train_size} of them to train" if data.train_size < len(data) else "")],
        ["shape", str(data.shape)],
        ["task", data.of_task.name],
    ]
    picture = ""
    if data.classes:
        names = data.class_names or tuple(map(str, range(data.classes)))
        rows.append(["classes", f"{data.classes}: {_listed(names)}"])
        counts = data.class_counts(np.arange(len(data))).tolist()
        picture = _captioned(bars(counts, BLUE), "samples of each class")
    if data.owners is not None:
        rows.append(["owners", f"{len(data.owner_names)}: {_listed(data.owner_names)}"])
    return _card(_title(f"Dataset {data.name}", ""), _beside(_named(rows), picture))


def _of_partition(partition: Partition) -> str:
    sizes = partition.sizes
    samples = f"{sizes.sum()}; a client has {sizes.min()} to {sizes.max()}, half of them at least {np.median(sizes):g}"
    rows = [
        ["clients", f"{partition.clients}" + (f", {len(partition.held_out)} held out" if partition.held_out else "")],
        ["training samples", samples],
        ["test samples", str(sum(map(len, partition.test)))],
    ]
    if held := sum(map(len, partition.validation)):
        rows.append(["validation samples", str(held)])
    drawn = [
        f"{name} = {value}" for name, value in partition.parameters.items() if name not in ("clients", "data_size")
    ]
    if drawn:
        rows.append(["drawn with", ", ".join(drawn)])
    picture = _captioned(bars(sizes.tolist(), BLUE), "training samples of each client")
    notes = [_line(note) for note in partition.notes]
    return _card(_title(f"Partition {partition.rule}", ""), _beside(_named(rows), picture), *notes)


def _card(*parts: str) -> str:
    return f'<div style="{CARD}">{"".join(parts)}</div>'


def _title(text: str, more: str) -> str:
    return f'<div><b>{html.escape(text)}</b> <span style="{FAINT}">{html.escape(more)}</span></div>'


def _line(text: str) -> str:
    return f'<div style="{FAINT};max-width:44rem">{html.escape(text)}</div>'


def _beside(*parts: str) -> str:
    return f'<div style="display:flex;flex-wrap:wrap;gap:20px;margin:4px 0">{"".join(parts)}</div>'


def _captioned(picture: str, caption: str) -> str:
    return f'<div style="margin:4px 0">{picture}<div style="{FAINT};font-size:11px">{html.escape(caption)}</div></div>'


def _named(rows: Sequence[Sequence[str]]) -> str:
    """A table of names and what they are."""
    return _table(
        [], [[Html(f'<span style="{FAINT}">{html.escape(name)}</span>'), text] for name, text in rows], left=2
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table whose first columns stand to the left, the others to the right."""

    def line(kind: str, texts: Sequence[str], look: str = "") -> str:
        aligned = (CELL.format("left" if place < left else "right") for place in range(len(texts)))
        cells = zip(aligned, texts, strict=True)
        inside = "".join(f'<{kind} style="{place}{look}">{_escaped(text)}</{kind}>' for place, text in cells)
        return f'<tr style="background:transparent">{inside}</tr>'

    head = line("th", heads, f";font-weight:normal;{FAINT}") if heads else ""
    body = "".join(line("td", row) for row in rows)
    return (
        f'<table style="font:inherit;color:inherit;border-collapse:collapse;margin:4px 0;border:0">{head}{body}</table>'
    )


def _escaped(text: str) -> str:
    return text if isinstance(text, Html) else html.escape(text)


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:MOST_LISTED])
    return listed if len(names) <= MOST_LISTED else f"{listed}, …"


def _shortened(text: str, most: int = 120) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def curves(lines: Sequence[Curve]) -> str:
    """Curves that share both axes; the smallest and the largest value stand beside them."""
    known = [value for _, (_, values) in lines for value in values if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    spread = high - low or 1.0
    first, last = (pick(place for _, (places, _) in lines for place in places) for pick in (min, max))
    width = last - first or 1.0
    drawn = []
    for colour, (places, values) in lines:
        points = _thinned([(x, y) for x, y in zip(places, values, strict=True) if math.isfinite(y)])
        at = [
            (4 + (WIDTH - 8) * (x - first) / width, HEIGHT - BELOW - (HEIGHT - 8) * (y - low) / spread)
            for x, y in points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        drawn.append(f'<circle cx="{at[-1][0]:.1f}" cy="{at[-1][1]:.1f}" r="2.6" fill="{colour}"/>' if at else "")
    return _svg("".join(drawn), _number(low), _number(high))


def bars(values: Sequence[float], colour: str) -> str:
    """A bar for each value, from zero; where there are very many, for quantiles of them in rising order."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    shown = values if len(values) <= MOST_BARS else np.quantile(known, np.linspace(0, 1, MOST_BARS)).tolist()
    high, low = max(max(known), 0.0), min(min(known), 0.0)
    spread = high - low or 1.0
    step = (WIDTH - 8) / len(shown)
    drawn = []
    for place, value in enumerate(shown):
        if math.isfinite(value):
            top, foot = (
                HEIGHT - BELOW - (HEIGHT - 8) * (edge - low) / spread for edge in (max(value, 0), min(value, 0))
            )
            x, wide = 4 + step * place, max(step * 0.78, 0.8)
            drawn.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{max(foot - top, 0.8):.1f}"/>')
    return _svg(f'<g fill="{colour}">{"".join(drawn)}</g>', _number(low), _number(high))


def _number(value: float) -> str:
    return f"{value:g}" if float(value).is_integer() else number_text(value)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(place)] for place in np.linspace(0, len(points) - 1, MOST_POINTS).tolist()]


def _svg(inside: str, low: str, high: str) -> str:
    ground = f'<path d="M4 {HEIGHT - BELOW + 1}H{WIDTH - 4}" stroke="currentColor" opacity=".3"/>'
    look = f'x="{WIDTH + 2}" font-size="10" fill="currentColor" opacity=".68" font-family="system-ui,sans-serif"'
    ends = f'<text y="11" {look}>{high}</text><text y="{HEIGHT - 4}" {look}>{low}</text>'
    return f'<svg width="{WIDTH + 50}" height="{HEIGHT}" role="img" style="display:block">{ground}{inside}{ends}</svg>'
