"""`python -m tools.pictures_of_w [NAME …]`: draw each method's W, from one small experiment, onto the method's page.

Twenty clients hold two of ten digits each, and three others hold the same two: groups that a method may find. Every
picture is an SVG of a few kilobytes for light and dark pages, in `docs/pictures/w`; what it shows stands below it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import coterie as ct
from coterie.methods import METHODS
from coterie.report.learning import Floats, label_order, learn_differently, learning_matrix, most_personal
from coterie.runs.run import Run

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- picture: written by tools/pictures_of_w.py -->", "<!-- end of picture -->"
CLIENTS, ROUNDS = 20, 8
# Options and settings that let a method come to what is its own within eight rounds.
OPTIONS = {"cfl": {"warm_up": 2, "relative": True, "eps1": 0.9, "eps2": 1.0}, "fedcac": {"beta": 8}}
SETTINGS = {"fedfomo": {"validation": 0.25}}
# Whose clients mix what they download themselves: the value that says how much they took.
AT_CLIENTS = {"apple": "relations", "fedfomo": "preference"}
CELL, SHADES, GAMMA = 9, 8, 0.5
STYLE = """
svg { --cell: #2f5fb3; --ground: #ffffff; --line: #c4cad1; --mark: #57606a; }
@media (prefers-color-scheme: dark) { svg { --cell: #8db4ff; --ground: #12161c; --line: #3d444d; --mark: #9aa4af; } }
.ground { fill: var(--ground); stroke: var(--line); stroke-width: .5; }
.cells path { fill: var(--cell); } .classes path { fill: var(--mark); }
"""


@dataclass(frozen=True, eq=False)
class Drawn:
    """W with its clients in groups, the classes that they hold, and words on what it is."""

    matrix: Floats  # [K, K], rows learn
    holds: Floats  # [K, C], whether a client holds a class
    words: str


def experiment(name: str) -> ct.Experiment:
    """The small experiment with a method."""
    return ct.Experiment(
        METHODS[name](**OPTIONS.get(name, {})),
        data="digits",
        partition=ct.Pathological(clients=CLIENTS, classes_per_client=2),
        test=0.75,
        rounds=ROUNDS,
        lr=0.05,
        engine="stacked",
        threads=1,
        **SETTINGS.get(name, {}),
    )


def drawn(name: str, result: Run) -> Drawn:
    """What there is to draw of a method's run."""
    counts = result.prepared.class_counts
    matrix, words = _weights(name, result)
    order = label_order(counts)
    return Drawn(matrix[np.ix_(order, order)], (counts[order] > 0).astype(float), words)


def _weights(name: str, result: Run) -> tuple[Floats, str]:
    if name in AT_CLIENTS:
        taken = result.federation.values[AT_CLIENTS[name]].double().numpy().clip(min=0)
        sums = taken.sum(1, keepdims=True)
        words = f"`{AT_CLIENTS[name]}` after round {ROUNDS}, negative ones left out: the mix happens at the client"
        return taken / np.where(sums > 0, sums, 1), words
    mixed = [(round, mixes) for round in result.rounds if (mixes := result.mixes(round))]
    if not mixed:
        return np.eye(CLIENTS), "no models are mixed: everybody keeps their own" + (
            "" if name == "local" else ", and what is shared is no model"
        )
    # Some narrow their choice until nobody is left: the middle one of the rounds in which clients chose.
    chose = [one for one in mixed if learn_differently(one[1])]
    round, mixes = chose[len(chose) // 2] if chose else mixed[-1]
    mix = most_personal(mixes)
    where = "" if mix.target == "model" else f", into `{mix.target}`"
    gated = ", under each client's mask" if mix.gated else ""
    return learning_matrix(mixes, CLIENTS), f"`{mix.group}`{where}{gated}, in round {round} of {ROUNDS}"


def svg(name: str, picture: Drawn) -> str:
    """The picture: classes on the left, W on the right; the darker, the more. Cells of one shade are one path."""
    matrix = np.nan_to_num(picture.matrix)
    clients, classes = picture.holds.shape
    apart = matrix[~np.eye(clients, dtype=bool)]
    top = max(float(apart.max()), 1e-9) if apart.max() > 0 else 1.0
    level = np.ceil((matrix / top).clip(0, 1) ** GAMMA * SHADES - 1e-9).astype(int)
    left, narrow = classes * 3 + 6, 3
    side = clients * CELL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {left + side + 2} {side + 2}" '
        f'width="{left + side + 2}" height="{side + 2}" role="img">',
        f"<title>{METHODS[name].__name__}: who learns (rows) from whom (columns)</title><style>{STYLE}</style>",
        f'<rect class="ground" width="{classes * narrow}" height="{side}"/>',
        f'<rect class="ground" x="{left}" width="{side}" height="{side}"/>',
        f'<g class="classes">{_path(picture.holds > 0, 0, narrow, CELL)}</g><g class="cells">',
    ]
    shades = [
        f'<g opacity="{shade / SHADES:g}">{_path(level == shade, left, CELL, CELL)}</g>'
        for shade in range(1, SHADES + 1)
        if (level == shade).any()
    ]
    return "".join([*parts, *shades, "</g></svg>\n"])


def _path(where: np.ndarray, x: int, width: int, height: int) -> str:
    """Cells as one path; neighbours in a row are one piece."""
    pieces = []
    for row, line in enumerate(where):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(int), [0]])))
        for start, stop in edges.reshape(-1, 2):
            pieces.append(f"M{x + start * width} {row * height}h{(stop - start) * width}v{height}H{x + start * width}z")
    return f'<path d="{"".join(pieces)}"/>'


def with_picture(text: str, name: str, words: str) -> str:
    """A method's page with its picture between the two comments."""
    title = text.partition("\n")[0].removeprefix("# ")
    block = (
        f"{BEGIN}\n\n![{title}: who learns (rows) from whom (columns)](../pictures/w/{name}.svg)\n\n"
        f"*W: {words}. Rows learn, columns are learned from; [how it was made](index.md#pictures-of-w).*\n\n{END}"
    )
    if BEGIN in text:
        return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)
    return text.replace("\n## Options\n", f"\n{block}\n\n## Options\n", 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw all methods, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures_of_w", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="methods; all, if none is named")
    names = parser.parse_args(arguments).names
    (DOCS / "pictures" / "w").mkdir(exist_ok=True)
    for name in names or sorted(METHODS):
        print(f"{name} ...", file=sys.stderr, flush=True)
        picture = drawn(name, experiment(name).run())
        (DOCS / "pictures" / "w" / f"{name}.svg").write_text(svg(name, picture), encoding="utf-8")
        page = DOCS / "methods" / f"{name}.md"
        page.write_text(with_picture(page.read_text(encoding="utf-8"), name, picture.words), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
