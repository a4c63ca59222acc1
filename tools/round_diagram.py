"""`python tools/round_diagram.py`: draw `docs/pictures/round.svg`, the life of a round. One file for light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "round.svg"
WIDTH, HEIGHT = 980, 600
CELL = 17
HUES = (212, 212, 28, 28, 140, 140)  # six clients in three pairs that resemble each other
COHORT = (0, 2, 3, 5)
EXTRACTOR, CLASSIFIER = 6, 3  # columns
# Whom each client of the cohort learns from: itself most, then whoever resembles it.
W = ((0.7, 0.1, 0.1, 0.1), (0.05, 0.5, 0.4, 0.05), (0.05, 0.4, 0.5, 0.05), (0.1, 0.1, 0.1, 0.7))
STYLE = """
svg { --ink: #1f2328; --soft: #59636e; --line: #b9c0c8; --ground: #ffffff; --lane: #f4f6f8; --box: #ffffff;
      --mean: #8b949e; --accent: #3b5bdb; --light: 62%; --deep: 46%; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6edf3; --soft: #9aa4af; --line: #454c55; --ground: #0d1117; --lane: #161b22; --box: #1f262e;
        --mean: #7d8590; --accent: #8ea8ff; --light: 50%; --deep: 64%; }
}
text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
.soft { fill: var(--soft); font-size: 12.5px; }
.step { font-weight: 600; } .lane { font-weight: 600; fill: var(--soft); }
.code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 12.5px; }
.ground { fill: var(--ground); } .area { fill: var(--lane); } .box { fill: var(--box); stroke: var(--line); }
.arrow { stroke: var(--accent); stroke-width: 2.2; fill: none; } .head { fill: var(--accent); }
.number { fill: var(--accent); }
.digit { fill: var(--ground); font-weight: 700; font-size: 12.5px; text-anchor: middle; }
.mid { text-anchor: middle; } .faint { opacity: .28; }
"""


def rectangle(x: float, y: float, width: float, height: float, **more: object) -> str:
    """A rectangle; `more` are its other attributes."""
    others = "".join(f' {name.rstrip("_")}="{value}"' for name, value in more.items())
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{others}/>'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of text."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{named}>{words}</text>'


def step(x: float, y: float, number: int, words: str) -> str:
    """A numbered heading."""
    return (
        f'<circle cx="{x + 10:g}" cy="{y - 5:g}" r="10" class="number"/>'
        f"{text(x + 10, y - 0.5, str(number), 'digit')}{text(x + 28, y, words, 'step')}"
    )


def colour(client: int, part: str) -> str:
    """A client's colour; classifiers are the deeper ones."""
    shift = 14 * (client % 2)  # clients of a pair resemble each other, and are not equal
    return f"fill: hsl({HUES[client] + shift} 62% var(--{'light' if part == 'extractor' else 'deep'}))"


def row(x: float, y: float, client: int, mean: bool = False, faint: bool = False) -> str:
    """A client's row: columns of the extractor (grey where everybody has the mean), then those of the classifier."""
    cells = []
    for column in range(EXTRACTOR + CLASSIFIER):
        part = "extractor" if column < EXTRACTOR else "classifier"
        fill = "fill: var(--mean)" if mean and part == "extractor" else colour(client, part)
        gap = 4 if part == "classifier" else 0
        cells.append(rectangle(x + column * CELL + gap, y, CELL - 2, CELL - 2, rx=2, style=fill))
    kind = "faint" if faint else "full"
    return f'<g class="{kind}">' + "".join(cells) + "</g>"


def rows(x: float, y: float, clients: Sequence[int], mean: bool = False, faint: Sequence[int] = ()) -> str:
    """Several rows, one under the other."""
    return "".join(row(x, y + place * CELL, client, mean, client in faint) for place, client in enumerate(clients))


def weights(x: float, y: float) -> str:
    """The matrix W: the darker a cell, the more is learned."""
    cells = []
    for place, line in enumerate(W):
        for column, weight in enumerate(line):
            style = f"fill: var(--accent); opacity: {0.12 + weight:.2f}"
            cells.append(rectangle(x + column * CELL, y + place * CELL, CELL - 2, CELL - 2, rx=2, style=style))
    return "".join(cells)


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A straight arrow, level or upright."""
    level = y == to_y
    sign = 1 if (to_x > x if level else to_y > y) else -1
    points = (
        [(to_x, to_y), (to_x - 9 * sign, to_y - 5), (to_x - 9 * sign, to_y + 5)]
        if level
        else [(to_x, to_y), (to_x - 5, to_y - 9 * sign), (to_x + 5, to_y - 9 * sign)]
    )
    end = (to_x - 7 * sign, to_y) if level else (to_x, to_y - 7 * sign)
    corners = " ".join(f"{a:g},{b:g}" for a, b in points)
    return f'<path class="arrow" d="M{x:g},{y:g} L{end[0]:g},{end[1]:g}"/><polygon class="head" points="{corners}"/>'


def box(x: float, y: float, width: float, name: str, first: str, second: str) -> str:
    """A step of the recipe."""
    lines = (
        text(x + 12, y + 24, name, "code") + text(x + 12, y + 46, first, "soft") + text(x + 12, y + 63, second, "soft")
    )
    return rectangle(x, y, width, 78, rx=8, class_="box") + lines


def drawing() -> str:
    """The whole picture."""
    everyone = range(len(HUES))
    resting = [client for client in everyone if client not in COHORT]
    width = (EXTRACTOR + CLASSIFIER) * CELL + 4
    parts = [
        rectangle(0, 0, WIDTH, HEIGHT, class_="ground"),
        rectangle(16, 16, WIDTH - 32, 262, rx=12, class_="area"),
        rectangle(16, 350, WIDTH - 32, 234, rx=12, class_="area"),
        text(34, 44, "server", "lane"),
        text(34, 378, "each client of the cohort", "lane"),
        # The server, before the round.
        step(34, 80, 1, "draw the cohort"),
        rows(50, 106, everyone, faint=resting),
        text(50, 228, "extractor", "soft"),
        text(50 + EXTRACTOR * CELL + 4, 228, "classifier", "soft"),
        text(50, 252, "Θ: a client's model is a row", "soft"),
        # Down.
        arrow(122, 284, 122, 344),
        step(140, 308, 2, "deliver"),
        text(168, 328, "what the server wrote for it since it last took part", "soft"),
        # A client.
        step(34, 412, 3, "train: the recipe, step by step"),
        row(50, 462, 2),
        text(50, 502, "its row, as received", "soft"),
        arrow(214, 470, 244, 470),
        box(250, 432, 150, "Phase", "batches of its own", "samples, loss terms"),
        box(416, 432, 150, "Measure", "masks, class means:", "sent, or kept"),
        box(582, 432, 150, "Keep", "state of its own,", "such as controls"),
        arrow(738, 470, 768, 470),
        row(776, 462, 3),
        text(776, 502, "its row, as trained", "soft"),
        text(
            250, 540, "Samples never leave the client. Neither does anything that the method does not declare.", "soft"
        ),
        text(250, 560, "Everybody is tested here: with the model as received, and as trained.", "soft"),
        # Up.
        arrow(852, 344, 852, 284),
        step(640, 308, 4, "collect"),
        text(668, 328, "the declared uploads", "soft"),
        # The exchange, right to left: uploads, W, new rows.
        step(640, 80, 5, "exchange: new rows = W × uploads"),
        rows(776, 122, COHORT),
        text(776, 212, "this round's uploads", "soft"),
        text(752, 160, "×", "mid"),
        weights(664, 122),
        text(664, 212, "W: who learns", "soft"),
        text(664, 229, "from whom", "soft"),
        arrow(648, 154, 560, 154),
        rows(394, 106, everyone, mean=True),
        text(394, 228, "mean extractor (grey),", "soft"),
        text(394, 245, "classifiers as W says", "soft"),
        arrow(380, 154, 50 + width + 12, 154),
        step(346, 54, 6, "test everybody"),
        step(346, 82, 7, "tell listeners: bytes, scores, W"),
        text(228, 146, "next round", "soft"),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="The life of a round in seven steps"><style>{STYLE}</style>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
    print(PICTURE)
