"""The page of pFedSim's table 2: how alike four clients are by five measures, paper beside ours, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.core.numbers import Number
from coterie.files import write_whole
from coterie.reproduce.figure import OURS, PAPER, as_svg, plain_axes
from coterie.reproduce.page import machines_of
from coterie.reproduce.similarities import BATCH, KEY, PAIRS, RATE, READINGS, run_missing
from coterie.reproduce.store import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "pFedSim, table 2: do similar clients have similar classifiers?"
CLAIM = "The more alike their data, the more alike the classifiers of two clients."
BEST = "Classifiers show it better than WDB, MDB and LDB."
MEASURES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "data": ("data similarity", (1.0, 0.53, 0.32, 0.0)),
    "outputs": ("WDB: nearness of layers' outputs", (1.1e-3, 9e-4, 1.5e-3, 1.3e-3)),
    "updates": ("MDB: cosine of updates", (0.24, 0.11, 0.13, 0.08)),
    "losses": ("LDB: gain by the other's model", (8.6e-6, -3.7e-4, -3.3e-4, -4.5e-4)),
    "classifiers": ("classifier similarity", (0.92, 0.53, 0.41, 0.22)),
}
"""What each measure is called, and the paper's numbers of the pairs."""
SCALELESS = frozenset({"outputs", "losses"})
"""Measures whose size depends on how pixels are scaled: only the order of their numbers tells anything."""
PAIR_NAMES = tuple(f"({one}, {other})" for one, other in PAIRS)
COLOURS = {"20 steps": "#6baed6", "20 epochs": OURS}
PANEL, HEIGHT = 2.5, 2.9  # inches


def rebuild(results: Path, seeds: Sequence[int]) -> str:
    """Run what has not been run yet, write `pfedsim-table2.json`, `.md` and `.svg`, and give the page."""
    runs = run_missing(results, seeds)
    picture = drawn(runs)
    if picture is not None:
        write_whole(results / f"{KEY}.svg", picture)
    page = page_in(results, runs)
    write_whole(results / f"{KEY}.md", page.encode())
    return page


def command_of(runs: Mapping[str, Record]) -> str:
    """The command that runs these."""
    return " ".join(["coterie reproduce", KEY, "--seeds", *map(str, sorted({run["seed"] for run in runs.values()}))])


def page_in(folder: Path, runs: Mapping[str, Record]) -> str:
    """The page as it should stand in a folder: with the picture, if there is one."""
    picture = folder / f"{KEY}.svg"
    lines = [
        f"# {TITLE}",
        "",
        "Four clients hold CIFAR-10's labels 0-4, 0-4, 2-6 and 5-9, start with one LeNet5 and train alone. The paper "
        'says "20 iterations", which may mean steps or epochs. Ours are means over seeds, ± their standard deviation.',
        "",
        *([f"![Paper and ours]({picture.name})", ""] if picture.is_file() else []),
        *numbers_of(runs),
        "",
        "The paper gives no formulas for WDB, MDB and LDB but names the methods they come from: f-FedAP (ours: one by "
        "its distance), CFL and FedFomo (ours: on the client's own training samples, the mean of both directions). How "
        "large WDB and LDB are depends on the scale of the pixels: only their order tells anything. "
        f"{BATCH} samples a step and a rate of {RATE} are assumed.",
        "",
        "```console",
        f"$ {command_of(runs)}",
        "```",
        "",
        *(f"- {text}" for text in machines_of(runs.values())),
        "- partitions (SHA-256): " + "; ".join(f"{name}: {run['partition'][:12]}" for name, run in runs.items()),
    ]
    return "\n".join(lines) + "\n"


def numbers_of(runs: Mapping[str, Record]) -> list[str]:
    """The paper's numbers and ours by reading of "20 iterations", and what became of the paper's claims."""
    lines = [
        f"| | measure | {' | '.join(PAIR_NAMES)} | order as in the data |",
        "|---|---|" + "---:|" * (len(PAIR_NAMES) + 1),
    ]
    for title, values in MEASURES.values():
        lines.append(_line("paper", title, [f"{value:g}" for value in values], _order([values])))
    for reading, own in _by_reading(runs).items():
        seeds = f"ours, {reading} ({len(own)} seed{'s' if len(own) > 1 else ''})"
        for name, (title, _) in MEASURES.items():
            shown = [_number(number, name) for number in _of_pairs(own, name)]
            lines.append(_line(seeds, title, shown, _order([run["similarities"][name] for run in own])))
    lines += ["", "| claim | verdict |", "|---|---|"]
    lines += [f"| {CLAIM} | {answer_of(runs)} |", f"| {BEST} | {comparison_of(runs)} |"]
    return lines


def _line(who: str, title: str, values: Sequence[str], order: str) -> str:
    return f"| {who} | {title} | {' | '.join(values)} | {order} |"


def _number(number: Number, measure: str) -> str:
    mean, spread = (".2g", ".1g") if measure in SCALELESS else (".2f", ".2f")
    return f"{number.mean:{mean}}" + ("" if number.std is None else f" ± {number.std:{spread}}")


def _order(found: Sequence[Sequence[float]]) -> str:
    """Whether similarities fall from pair to pair as those of the data do, with every seed."""
    falling = _falling(found)
    return {0: "no", len(found): "yes"}.get(falling, f"with {falling} of {len(found)} seeds")


def _falling(found: Sequence[Sequence[float]]) -> int:
    """With how many seeds."""
    return sum(all(one > other for one, other in pairwise(values)) for values in found)


def answer_of(runs: Mapping[str, Record]) -> str:
    """What became of the claim, by reading: it is seen if every seed shows it.

    >>> run = {"reading": "20 steps", "similarities": {"classifiers": [0.9, 0.5, 0.6, 0.1]}}
    >>> answer_of({"20 steps, seed 0": run})
    'not seen after 20 steps'
    """
    orders = {
        reading: _order([run["similarities"]["classifiers"] for run in own])
        for reading, own in _by_reading(runs).items()
    }
    words = {"yes": "seen", "no": "not seen"}
    return ", ".join(f"{words.get(order, f'seen {order}')} after {reading}" for reading, order in orders.items())


def comparison_of(runs: Mapping[str, Record]) -> str:
    """Whether classifiers are in the data's order with more seeds than any other measure, by reading."""
    told = []
    for reading, own in _by_reading(runs).items():
        seeds = {name: _falling([run["similarities"][name] for run in own]) for name in MEASURES if name != "data"}
        best = seeds.pop("classifiers")
        told.append(f"{'seen' if best > max(seeds.values()) else 'not seen'} after {reading}")
    return ", ".join(told)


def _by_reading(runs: Mapping[str, Record]) -> dict[str, list[Record]]:
    found = {reading: [run for run in runs.values() if run["reading"] == reading] for reading in READINGS}
    return {reading: own for reading, own in found.items() if own}


def _of_pairs(runs: Sequence[Record], measure: str) -> list[Number]:
    """A measure of each pair."""
    return [Number({run["seed"]: run["similarities"][measure][pair] for run in runs}) for pair in range(len(PAIRS))]


def drawn(runs: Mapping[str, Record]) -> bytes | None:
    """The picture as SVG, a panel for each measure; nothing without matplotlib (the extra 'plots')."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(MEASURES))
        for axes, (name, (title, paper)) in zip(panels, MEASURES.items(), strict=True):
            if name not in SCALELESS:
                axes.plot(PAIR_NAMES, paper, "o--", color=PAPER, fillstyle="none", linewidth=1, label="paper")
            for reading, own in _by_reading(runs).items():
                numbers = _of_pairs(own, name)
                means, spreads = [one.mean for one in numbers], [one.std or 0.0 for one in numbers]
                axes.errorbar(PAIR_NAMES, means, spreads, fmt="o-", color=COLOURS[reading], capsize=2, label=reading)
            axes.set_title(title, fontsize=9)
            plain_axes(axes, "y")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        figure.suptitle(TITLE, fontsize=10)

    return as_svg(draw, (PANEL * len(MEASURES), HEIGHT), KEY)
