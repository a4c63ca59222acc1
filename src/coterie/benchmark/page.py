"""The benchmark's page, in Markdown, and its pictures: who leads, whom it harms, what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.benchmark.protocol import BUDGET, CONTESTANTS, NAME, SAME, SEEDS, SETS
from coterie.benchmark.standings import BETTER, Overall, SetEntry, SetStandings, Standings
from coterie.benchmark.statistics import FEWEST_SETS
from coterie.core.numbers import NO_NUMBER, spoken_bytes
from coterie.files import write_whole
from coterie.reproduce.page import as_svg, plain_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKS, HARM = "ranks", "harm"
"""The pictures."""


def points(value: float | None, sign: bool = True) -> str:
    """A score, or a difference of two, in points.

    >>> points(0.0123), points(-0.05), points(0.91, sign=False), points(None)
    ('+1.2', '−5.0', '91.0', '–')
    """
    if value is None or math.isnan(value):
        return NO_NUMBER
    return f"{100 * value:{'+' if sign else ''}.1f}".replace("-", "−")


def page_beside(folder: Path) -> Path:
    """The page of the results in a folder: beside it, as are the pictures."""
    return folder.parent / f"{folder.name}.md"


def write_page(folder: Path) -> Standings:
    """Write page and pictures of all sets in a folder."""
    standings = Standings(folder)
    pictures: dict[str, str] = {}
    for kind, picture in ((RANKS, ranks_picture(standings)), (HARM, harm_picture(standings))):
        if picture is not None:
            pictures[kind] = f"{folder.name}-{kind}.svg"
            write_whole(folder.parent / pictures[kind], picture)
    if standings.sets:
        write_whole(page_beside(folder), ("\n".join(page(standings, pictures)) + "\n").encode())
    return standings


def page(standings: Standings, pictures: Mapping[str, str]) -> Iterator[str]:
    """The page, line by line."""
    yield f"# {NAME}: methods on natural clients"
    yield ""
    yield from progress(standings)
    yield ""
    yield "Owners are clients. Three fifths of each client's rows are for training, a fifth chooses and a fifth tests;"
    yield "a tenth of the clients are newcomers. The split is drawn once: rows that test have no say in any choice."
    yield f"Model `{SAME['model']}`, {SAME['rounds']} rounds of {SAME['steps']} steps. Everybody tries {BUDGET}"
    yield "settings of rate and own options, and 0, 1, 5 or 10 epochs of each client's own training after"
    yield "the last round: the best by all validation samples together runs with the seeds that count. A score is the"
    yield "accuracy in points, of regressions 100 times the share of the target's variance that is explained."
    yield ""
    yield from overall_table(standings)
    for kind, name in pictures.items():
        yield ""
        words = "Mean ranks, with intervals" if kind == RANKS else "Clients that are worse off than alone"
        yield f"![{words}]({name})"
    for one in standings.sets.values():
        yield ""
        yield from set_section(one)
    yield ""
    yield "Made by `coterie benchmark`; numbers by client, seed and setting are in the folder beside this page."


def progress(standings: Standings) -> Iterator[str]:
    """How much of the protocol has run."""
    whole = [one for one in standings.sets if one in SETS and set(standings.sets[one].entries) >= set(CONTESTANTS)]
    seeds = {len(entry.record["runs"]) for one in standings.sets.values() for entry in one.entries.values()}
    ran = sum(name in CONTESTANTS for one in standings.sets.values() for name in one.entries)
    if len(whole) == len(SETS) and seeds == {len(SEEDS)}:
        yield f"Whole: {len(SETS)} sets, {len(CONTESTANTS)} contestants, {len(SEEDS)} seeds."
        return
    yield f"**Not whole.** Of {len(SETS)} sets and {len(CONTESTANTS)} contestants, {ran} of"
    yield f"{len(SETS) * len(CONTESTANTS)} pairs have run, on {len(standings.sets)} sets, {len(whole)} of them with all"
    yield f"contestants; with {' or '.join(map(str, sorted(seeds)))} of {len(SEEDS)} seeds. No order of methods follows"
    yield "from what is missing."


def overall_table(standings: Standings) -> Iterator[str]:
    """Everybody across sets."""
    yield "| " + " | ".join(OVERALL_HEADS) + " |"
    yield "|---|" + "---:|" * (len(OVERALL_HEADS) - 1)
    for row in standings.overall:
        yield "| " + " | ".join(overall_cells(row)) + " |"
    yield ""
    yield "Gains are means over the sets that both have, in points. p: Wilcoxon's signed-rank test over sets, after"
    yield f"Holm's correction for all contestants (from {FEWEST_SETS} sets on). Behind, alike, ahead: how probable each"
    yield "is on a next set, against `fedavg-ft`, by the Bayesian signed-rank test; half a point is alike. Ranks are"
    yield "of contestants that have run on all sets here. Harmed: clients worse off than alone by more than half a"
    yield f"point, mean over sets. *{BETTER}* is one of the two on each set, whichever validation prefers, and takes"
    yield "no rank."


OVERALL_HEADS = (
    "contestant", "sets", "mean rank", "over local", "p", "over fedavg-ft", "p", "behind / alike / ahead", "harmed, %",
)  # fmt: skip


def overall_cells(row: Overall) -> list[str]:
    """A contestant's cells across sets."""
    rank = NO_NUMBER
    if row.rank is not None and row.rank_interval is not None:
        rank = f"{row.rank:.1f} [{row.rank_interval[0]:.1f}, {row.rank_interval[1]:.1f}]"
    belief = NO_NUMBER
    if row.belief is not None:
        belief = f"{row.belief.behind:.2f} / {row.belief.alike:.2f} / {row.belief.ahead:.2f}"
    ps = [NO_NUMBER if p is None else f"{p:.3f}" for p in (row.p_alone, row.p_bar)]
    gains = [points(row.over_alone), points(row.over_bar)]
    return [row.name, str(row.sets), rank, gains[0], ps[0], gains[1], ps[1], belief, points(row.harmed, sign=False)]


def set_section(standings: SetStandings) -> Iterator[str]:
    """One set: what kind of clients these are, and everybody's numbers."""
    yield f"## {standings.name}"
    yield ""
    yield kind_of(standings)
    yield ""
    yield "| " + " | ".join(SET_HEADS) + " |"
    yield "|---|" + "---:|" * (len(SET_HEADS) - 1)
    for entry in standings.entries.values():
        yield "| " + " | ".join(set_cells(entry)) + " |"
    for name, why in standings.failed.items():
        yield f"| {name} | {why} |" + " |" * (len(SET_HEADS) - 2)
    if standings.unfinished:
        yield ""
        yield f"Not yet run: {', '.join(standings.unfinished)}."


SET_HEADS = (
    "contestant", "score", "received", "worst tenth", "gain over alone", "median gain", "harmed, %", "newcomers",
    "after a round", "calibration", "steps", "bytes", "near its best: rounds", "bytes there", "settings",
)  # fmt: skip


def set_cells(entry: SetEntry) -> list[str]:
    """A contestant's cells on a set."""
    record = entry.record
    rounds = entry.over_runs("near_best", "rounds")
    chosen = " ".join(f"{name}={value}" for name, value in record["chosen"].items())
    return [
        entry.name,
        points(entry.mean, sign=False),
        points(entry.over_runs("received"), sign=False),
        points(entry.worst, sign=False),
        with_interval(entry.gain, sign=True),
        points(entry.median_gain),
        with_interval(entry.harmed, sign=False),
        points(entry.over_runs("newcomers", "received"), sign=False),
        points(entry.over_runs("newcomers", "trained"), sign=False),
        points(entry.over_runs("calibration"), sign=False),
        f"{entry.steps:.4g}",
        spoken_bytes(entry.bytes),
        NO_NUMBER if math.isnan(rounds) else f"{rounds:.3g}",
        NO_NUMBER if math.isnan(rounds) else spoken_bytes(entry.over_runs("near_best", "bytes")),
        f"{chosen}; {record['epochs']} epochs",
    ]


def with_interval(number: tuple[float, tuple[float, float]] | None, sign: bool) -> str:
    """A number in points with its interval."""
    if number is None:
        return NO_NUMBER
    value, (low, high) = number
    return f"{points(value, sign)} [{points(low, sign)}, {points(high, sign)}]"


def kind_of(standings: SetStandings) -> str:
    """What kind of clients these are, in a line: by what helps them."""
    about = standings.clients
    train = sorted(int(size) for size in about["train"].split(" | "))
    newcomers = len(about["newcomers"].split(" | ")) if about["newcomers"] else 0
    sizes = f"{len(train)} clients with {train[0]} to {train[-1]} rows for training (median {train[len(train) // 2]})"
    line = f"{sizes}, {newcomers} newcomers; {about['of']['task']}."
    alone, one = (standings.entries.get(name) for name in ("local", "fedavg"))
    if alone is None or one is None:
        return line
    received, own = one.over_runs("received"), alone.mean
    kind = "one model for all is ahead of training alone" if received > own else "training alone is ahead of one model"
    return f"{line} As received, {kind} ({points(received, False)} against {points(own, False)})."


def ranks_picture(standings: Standings) -> bytes | None:
    """Mean ranks with their intervals: a picture, not a test."""
    rows = [row for row in standings.overall if row.rank is not None and row.rank_interval is not None]
    if len(standings.sets) < 2 or len(rows) < 2:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for height, row in enumerate(reversed(rows)):
            assert row.rank is not None
            assert row.rank_interval is not None
            axes.plot(row.rank_interval, [height, height], color="#8a8a8a", linewidth=2)
            axes.plot([row.rank], [height], "o", color="#08306b", markersize=5)
        axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
        axes.set_xlabel(f"mean rank over {len(standings.sets)} sets, 95 % (sets drawn)", fontsize=8)
        plain_axes(axes, "x")

    return as_svg(draw, (6.0, 1.0 + 0.22 * len(rows)), NAME)


def harm_picture(standings: Standings) -> bytes | None:
    """What each contestant gains over training alone, and how many clients lose by it."""
    rows = [row for row in standings.overall if not math.isnan(row.over_alone) and row.name != "local"]
    if not rows:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row in rows:
            axes.plot([100 * row.harmed], [100 * row.over_alone], "o", color="#08306b", markersize=4)
            axes.annotate(
                row.name, (100 * row.harmed, 100 * row.over_alone), (4, 2), textcoords="offset points", size=6
            )
        axes.set_xlabel("clients that are worse off than alone, %", fontsize=8)
        axes.set_ylabel("mean gain over training alone, points", fontsize=8)
        plain_axes(axes, "y")

    return as_svg(draw, (6.5, 5.0), NAME)
