"""What a report says of one run, as plain values: curves, clients, who learns from whom, costs, what went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.compare.remarks import effort_text
from coterie.core.exchange import Applied
from coterie.errors import CoterieError, said
from coterie.methods import METHODS
from coterie.registry import short_name
from coterie.report.classes import ClassCounts, class_counts
from coterie.report.learning import Floats, influence, label_order, learn_differently, learning_matrix
from coterie.report.origin import origin
from coterie.report.quality import quality_content
from coterie.report.reading import ReportedRun
from coterie.report.resemblance import agreement, label_overlap
from coterie.report.rounding import Content, rounded
from coterie.report.terminal import missing_lines, sampled_lines
from coterie.rounds.evaluate import MOMENTS, mean_over_clients, over_rounds
from coterie.runs.history import ACTIVITIES
from coterie.runs.reader import FEDERATION
from coterie.runs.summary import hostile_rows

QUANTILES = {"q10": 0.1, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9}
# Weights are whole numbers of this many parts, which halves the page; who took no part is ABSENT.
PARTS, ABSENT = 10_000, -1
# Entries of all matrices on a page: some 4 bytes each.
MOST_ENTRIES = 600_000
# With more clients, a browser would be busy with cells that nobody can see.
MOST_CLIENTS = 200
# With more clients, some stand for all wherever each has a line, a bar or a bubble of its own.
MOST_DRAWN = 500


def run_content(run: ReportedRun, entries: int = MOST_ENTRIES) -> Content:
    """The content of a run's part of the page, with at most so many entries of matrices; none are read for 0."""
    problems = [*run.skipped]
    try:
        classes, why_no_classes = class_counts(run), ""
    except CoterieError as error:
        classes, why_no_classes = None, str(error)
    learning = _learning(run, classes, entries, problems) if entries else []
    drawn = drawn_clients(run)
    return {
        **basic_content(run),
        "options": [[key, _spoken(value)] for key, value in run.config.get("set", {}).items()],
        "seed": run.config["seed"],
        "state": run.state,
        "sizes": [run.sizes[client] for client in drawn] if run.sizes else [],
        **_class_content(run, classes, why_no_classes),
        "training": training_curve(run),
        "final": {moment: rounded(run.last_scores(moment)[drawn]) for moment in MOMENTS if run.rounds(moment)},
        "quality": quality_content(run, classes.names if classes else None, MOST_CLIENTS, drawn),
        "learning": learning,
        "why_no_learning": "" if learning else _why_no_learning(run),
        "config": [[key, _spoken(value)] for key, value in run.config.items() if key != "set"],
        "origin": origin(run),
        "notes": list(run.partition.notes) if run.partition else [],
        "tested": _sampled(run),
        "wrong": [*problems, *_went_wrong(run)],
    }


def basic_content(run: ReportedRun) -> Content:
    """The part of it that takes no time, however many clients there are: names, curves, costs."""
    drawn, hostile = drawn_clients(run), set(_hostile(run))
    return {
        "name": run.name,
        "method": spoken_method(run),
        "data": short_name(str(run.config["data"])),
        "metric": {"name": run.scale.name, "share": run.scale.share, "higher": run.scale.higher_is_better},
        "clients": [run.names[client] for client in drawn],
        "everybody": len(run.names),
        "hostile": [place for place, client in enumerate(drawn) if client in hostile],
        "curves": curves(run),
        "cost": _cost(run),
    }


def drawn_clients(run: ReportedRun) -> list[int]:
    """The clients that a page shows one by one: all, or as many as a browser can draw, evenly spread."""
    return _spread(range(len(run.names)), MOST_DRAWN)


def _sampled(run: ReportedRun) -> list[str]:
    """That a sample of the clients was tested in each round, if so, and how far off its means may be."""
    told, drawn = run.history.sampled(), len(drawn_clients(run))
    few = f"of {len(run.names):,} clients, {drawn} are drawn one by one, evenly spread; means and curves are of all"
    said = [" ".join(line.strip() for line in sampled_lines(told))] if told else []
    return [*said, few] if drawn < len(run.names) else said


def _hostile(run: ReportedRun) -> list[int]:
    """The hostile clients, if the run has some and what it says of them can be read."""
    try:
        return hostile_rows(run.config, run.partition, run.participants) if run.partition is not None else []
    except CoterieError:  # an attack of somebody's own that is not here
        return []


def spoken_method(run: ReportedRun) -> str:
    """The method's name as its paper writes it, if it is a known one."""
    name = str(run.config["method"])
    return METHODS[name].__name__ if name in METHODS else short_name(name)


def curves(run: ReportedRun) -> Content:
    """By moment: the rounds, the mean over clients, the worst decile, quantiles over clients, and the best mean."""
    found: Content = {}
    for moment in MOMENTS:
        tests = run.evaluations(moment)
        if not tests:
            continue
        means = [test.mean for test in tests]
        bands = zip(*(_quantiles(test.judged) for test in tests), strict=True)
        found[moment] = {
            "rounds": run.rounds(moment),
            "mean": rounded(means),
            "worst": rounded([test.worst_decile for test in tests]),
            **{name: rounded(values) for name, values in zip(QUANTILES, bands, strict=True)},
            "best": rounded([over_rounds(run.scale, means)["best"]])[0],
        }
    return found


def training_curve(run: ReportedRun) -> Content | None:
    """The loss on training samples by round: its mean over the clients that trained, its quantiles, the test loss."""
    found = run.training_losses()
    if not found:
        return None
    bands = zip(*(_quantiles(values) for _, values, _ in found), strict=True)
    return {
        "rounds": [round for round, _, _ in found],
        "mean": rounded([mean_over_clients(values) for _, values, _ in found]),
        "tested": rounded([mean_over_clients(tested) for _, _, tested in found]),
        **{name: rounded(values) for name, values in zip(QUANTILES, bands, strict=True)},
    }


def _quantiles(values: Floats) -> list[float]:
    known = values[~np.isnan(values)]
    return np.quantile(known, list(QUANTILES.values())).tolist() if len(known) else [math.nan] * len(QUANTILES)


def _class_content(run: ReportedRun, classes: ClassCounts | None, why_not: str) -> Content:
    drawn = drawn_clients(run)
    if classes is None:
        return {"classes": None, "counts": None, "overlap": None, "order": [*range(len(drawn))], "why": why_not}
    return {
        "classes": list(classes.names),
        "counts": classes.counts[drawn].tolist(),
        "overlap": [rounded(row, 4) for row in label_overlap(classes.counts)] if _can_be_drawn(run) else None,
        "order": label_order(classes.counts[drawn]),
        "why": "",
    }


@dataclass
class _Track:
    """The matrices of one group and target over the rounds."""

    group: str
    target: str
    gated: bool = False
    matrices: dict[int, Floats] = field(default_factory=dict)
    chosen: list[int] = field(default_factory=list)

    def content(self, overlap: Floats | None, most: int) -> Content:
        rounds = list(self.matrices)
        # The last round in which clients chose whom to learn from; else the last.
        first_shown = (self.chosen or rounds)[-1]
        shown = sorted({*_spread(rounds, most), first_shown})
        return {
            "group": self.group,
            "target": self.target,
            "gated": self.gated,
            "chosen": bool(self.chosen),
            "rounds": shown,
            "recorded": len(rounds),
            "start": shown.index(first_shown),
            "weights": [whole_numbers(self.matrices[round]) for round in shown],
            "influence": rounded(np.mean([influence(one) for one in self.matrices.values()], axis=0), 5),
            "agreement": None
            if overlap is None
            else {"rounds": rounds, "values": rounded([agreement(one, overlap) for one in self.matrices.values()], 4)},
        }


def _learning(run: ReportedRun, classes: ClassCounts | None, entries: int, problems: list[str]) -> list[Content]:
    """Who learns from whom, for each group and target; those in which clients choose come first."""
    clients = len(run.names)
    if not _can_be_drawn(run):
        return []
    overlap = label_overlap(classes.counts) if classes is not None else None
    tracks: dict[tuple[str, str], _Track] = {}
    for round, mixes in run.mixes():
        if isinstance(mixes, str):
            problems.append(mixes)
            continue
        for (group, target), own in _by_target(mixes).items():
            try:
                matrix = learning_matrix(own, clients)
            except (IndexError, ValueError):
                problems.append(f"{run.name}: the mixes of round {round} are not of its {clients} clients")
                continue
            track = tracks.setdefault((group, target), _Track(group, target))
            track.matrices[round] = matrix
            track.gated |= any(mix.gated for mix in own)
            if learn_differently(own):
                track.chosen.append(round)
    most = max(entries // max(len(tracks) * clients**2, 1), 2)
    found = sorted(tracks.values(), key=lambda track: not track.chosen)
    return [track.content(overlap, most) for track in found]


def _can_be_drawn(run: ReportedRun) -> bool:
    return len(run.names) <= MOST_CLIENTS


def _why_no_learning(run: ReportedRun) -> str:
    if not _can_be_drawn(run):
        return f"{len(run.names)} clients are too many for a matrix on a page (at most {MOST_CLIENTS})"
    recorded = run.config.get("record_every") != 0
    return "nobody learned from others" if recorded else "it was not recorded (record_every = 0)"


def _by_target(mixes: Sequence[Applied]) -> dict[tuple[str, str], list[Applied]]:
    found: dict[tuple[str, str], list[Applied]] = {}
    for mix in mixes:
        found.setdefault((mix.group, mix.target), []).append(mix)
    return found


def _spread(rounds: Sequence[int], most: int) -> list[int]:
    """At most so many of the rounds, evenly spread, the first and the last among them.

    >>> _spread([1, 2, 3, 4, 5, 6, 7], 3), _spread([1, 2], 3)
    ([1, 4, 7], [1, 2])
    """
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[round(place)] for place in np.linspace(0, len(rounds) - 1, most).tolist()]


def whole_numbers(matrix: Floats) -> list[int]:
    """A matrix row by row, in PARTS; one row alone where all are alike."""
    parts = np.where(np.isnan(matrix), ABSENT, np.round(np.nan_to_num(matrix) * PARTS)).astype(int)
    alike = len(parts) > 1 and bool((parts == parts[:1]).all())
    found: list[int] = (parts[0] if alike else parts.reshape(-1)).tolist()
    return found


def _cost(run: ReportedRun) -> Content:
    lines = run.lines
    return {
        "rounds": [line.round for line in lines],
        "bytes": {way: [getattr(line.bytes, way) for line in lines] for way in ("up", "down")},
        "seconds": {name: rounded([getattr(line.seconds, name) for line in lines], 4) for name in ACTIVITIES},
        "total_bytes": run.history.bytes()["total"],
        "effort": effort_text(effort) if (effort := run.history.effort()) else "",
        "total_seconds": round(run.history.seconds()["total"], 2),
    }


def _went_wrong(run: ReportedRun) -> Iterator[str]:
    names, done = dict(enumerate(run.names)), len(run.lines)
    if not done:
        yield f"{run.name}: no round is recorded; there are no curves"
    if not run.record.finished:
        federated = run.config.get("engine") == FEDERATION
        way_on = "'coterie federation server'" if federated else said("coterie", "resume", run.record.path)
        yield f"{run.name} is {run.state}; {way_on} carries it on"
    yield from missing_lines(run.history.diverged(names, "missing"), done)
    for client, rounds in run.history.diverged(names).items():
        yield f"client {client} diverged in {len(rounds)} of {done} rounds ({_spoken_rounds(rounds)})"
    for client, rounds in run.history.diverged(names, "quarantined").items():
        yield f"client {client} was in quarantine in {len(rounds)} of {done} rounds ({_spoken_rounds(rounds)})"
    for client, rounds in run.history.diverged(names, "tuning_diverged").items():
        yield f"client {client} was tested untuned in {len(rounds)} of {done} rounds: its tuning diverged"
    yield from run.warnings()


def _spoken_rounds(rounds: Sequence[int]) -> str:
    """Some rounds in words.

    >>> _spoken_rounds([3]), _spoken_rounds([1, 2, 5, 6, 9])
    ('round 3', 'rounds 1, 2, 5, … 9')
    """
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    shown = ", ".join(map(str, rounds[:3])) + (f", … {rounds[-1]}" if len(rounds) > 4 else "")
    return f"rounds {', '.join(map(str, rounds)) if len(rounds) <= 4 else shown}"


def _spoken(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_spoken(one)}" for key, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'
