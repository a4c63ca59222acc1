"""What a report says of one run, as plain values: curves, clients, who learns from whom, costs, what went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.compare.remarks import effort_text
from coterie.core.numbers import Scale
from coterie.core.task.quality import BINS, calibration_errors, fits, recalls, reliability
from coterie.errors import CoterieError, require, said
from coterie.methods import METHODS
from coterie.registry import short_name
from coterie.report.html import Content, rounded
from coterie.report.learning import (
    MOST_CLIENTS,
    Floats,
    agreement,
    by_target,
    influence,
    label_order,
    label_overlap,
    learn_differently,
    learning_matrix,
    whole_numbers,
)
from coterie.report.reading import ReportedRun
from coterie.report.terminal import missing_lines, sampled_lines
from coterie.rounds.evaluate import MOMENTS, mean_over_clients, over_rounds
from coterie.runs.history import ACTIVITIES, numbers
from coterie.runs.reader import FEDERATION
from coterie.runs.record import Session
from coterie.runs.summary import hostile_rows

QUANTILES = {"q10": 0.1, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9}
# Entries of all matrices on a page: some 4 bytes each.
MOST_ENTRIES = 600_000
# With more clients, some stand for all wherever each has a line, a bar or a bubble of its own.
MOST_DRAWN = 500
# Digits of a checksum that are shown: enough to tell two apart.
SHOWN = 16

Counts = Mapping[str, npt.NDArray[Any]]
WIDTHS = {"bin_samples": BINS, "bin_hits": BINS, "bin_confidence": BINS}


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """The training samples of each class at every client that takes part: `counts [K, C]`, and the classes' names."""

    counts: npt.NDArray[np.int64]
    names: list[str]


def class_counts(run: ReportedRun) -> ClassCounts:
    """The class counts of a run, as it wrote them down; an error says why there are none."""
    about = run.record.about()
    names, counts = about.data.class_names, [client.classes for client in about.participants]
    unknown = any(None in classes for classes in counts)
    require(not unknown, "a federation's server is not told which classes its sites have, unless the method needs that")
    require(bool(names), f"data '{about.data.name}' has no classes")
    whole = len(counts) == len(run.names) and all(len(classes) == len(names) for classes in counts)
    require(whole, "what the run says of its classes does not fit its clients")
    return ClassCounts(np.array(counts, np.int64), names)


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
        "options": [[key, _spoken(value)] for key, value in run.config["set"].items()],
        "seed": run.seed,
        "state": run.state,
        "sizes": [run.sizes[client] for client in drawn] if run.sizes else [],
        **_class_content(run, classes, why_no_classes),
        "training": _training_curve(run),
        "final": {moment: rounded(run.last_scores(moment)[drawn]) for moment in MOMENTS if run.rounds(moment)},
        "quality": _quality_content(run, classes.names if classes else ()),
        "learning": learning,
        "why_no_learning": "" if learning else _why_no_learning(run),
        "config": [[key, _spoken(value)] for key, value in run.config.items() if key != "set"],
        "origin": _origin(run),
        "notes": [*(run.partition.notes if run.partition else ()), *_said(run)],
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
        "metric": metric_content(run.scale),
        "clients": [run.names[client] for client in drawn],
        "everybody": len(run.names),
        "hostile": [place for place, client in enumerate(drawn) if client in hostile],
        "curves": _curves(run),
        "cost": _cost(run),
    }


def metric_content(scale: Scale) -> Content:
    """What figures need to know of a metric."""
    return {"name": scale.name, "share": scale.share, "higher": scale.higher_is_better}


def drawn_clients(run: ReportedRun) -> list[int]:
    """The clients that a page shows one by one: all, or as many as a browser can draw, evenly spread."""
    return _spread(range(len(run.names)), MOST_DRAWN)


def _sampled(run: ReportedRun) -> list[str]:
    """That a sample of the clients was tested in each round, if so, and how far off its means may be."""
    sample, drawn = run.history.sampled(), len(drawn_clients(run))
    lines = [" ".join(line.strip() for line in sampled_lines(sample))] if sample else []
    few = f"of {len(run.names):,} clients, {drawn} are drawn one by one, evenly spread; means and curves are of all"
    return [*lines, few] if drawn < len(run.names) else lines


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


def _curves(run: ReportedRun) -> Content:
    """By moment: the rounds, the mean over clients, the worst decile, quantiles over clients, and the best mean."""
    by_moment: Content = {}
    for moment in MOMENTS:
        tests = run.tests(moment)
        if not tests:
            continue
        means = numbers([scores.mean for scores in tests]).tolist()
        bands = zip(*(_quantiles(numbers(scores.values[run.scale.name])) for scores in tests), strict=True)
        by_moment[moment] = {
            "rounds": run.rounds(moment),
            "mean": rounded(means),
            "worst": rounded(numbers([scores.worst_decile for scores in tests])),
            **{name: rounded(values) for name, values in zip(QUANTILES, bands, strict=True)},
            "best": rounded([over_rounds(run.scale, means)["best"]])[0],
        }
    return by_moment


def _training_curve(run: ReportedRun) -> Content | None:
    """The loss on training samples by round: its mean over the clients that trained, its quantiles, the test loss."""
    losses = run.training_losses()
    if not losses:
        return None
    bands = zip(*(_quantiles(trained) for _, trained, _ in losses), strict=True)
    return {
        "rounds": [round for round, _, _ in losses],
        "mean": rounded([mean_over_clients(trained) for _, trained, _ in losses]),
        "tested": rounded([mean_over_clients(tested) for _, _, tested in losses]),
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
        "classes": classes.names,
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
        rounds, matrices = list(self.matrices), list(self.matrices.values())
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
            "influence": rounded(np.mean([influence(matrix) for matrix in matrices], axis=0), 5),
            "agreement": None
            if overlap is None
            else {"rounds": rounds, "values": rounded([agreement(matrix, overlap) for matrix in matrices], 4)},
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
        for (group, target), steps in by_target(mixes).items():
            try:
                matrix = learning_matrix(steps, clients)
            except (IndexError, ValueError):
                problems.append(f"{run.name}: the mixes of round {round} are not of its {clients} clients")
                continue
            track = tracks.setdefault((group, target), _Track(group, target))
            track.matrices[round] = matrix
            track.gated |= any(mix.gated for mix in steps)
            if learn_differently(steps):
                track.chosen.append(round)
    most = max(entries // max(len(tracks) * clients**2, 1), 2)
    return [track.content(overlap, most) for track in sorted(tracks.values(), key=lambda track: not track.chosen)]


def _can_be_drawn(run: ReportedRun) -> bool:
    return len(run.names) <= MOST_CLIENTS


def _why_no_learning(run: ReportedRun) -> str:
    if not _can_be_drawn(run):
        return f"{len(run.names)} clients are too many for a matrix on a page (at most {MOST_CLIENTS})"
    recorded = run.config.get("record_every") != 0
    return "nobody learned from others" if recorded else "it was not recorded (record_every = 0)"


def _spread(rounds: Sequence[int], most: int) -> list[int]:
    """At most so many of the rounds, evenly spread, the first and the last among them.

    >>> _spread([1, 2, 3, 4, 5, 6, 7], 3), _spread([1, 2], 3)
    ([1, 4, 7], [1, 2])
    """
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[round(place)] for place in np.linspace(0, len(rounds) - 1, most).tolist()]


def run_quality(run: ReportedRun) -> Counts:
    """What the run kept of its clients' finished models; an error says why there is nothing, or what cannot be read."""
    kept = {name: values.numpy() for name, values in run.record.quality().items()}
    require(  # a task of one's own may keep other things
        {"hits", "support", "auc", "macro_f1", *WIDTHS} <= kept.keys(),
        "the run kept nothing of its finished models: it has not ended, or its task has no classes",
    )
    classes = (*kept["support"].shape, 0)[1]
    require(fits(kept, len(run.names), classes), "what the run says of its finished models does not fit its clients")
    return kept


def _quality_content(run: ReportedRun, classes: Sequence[str]) -> Content:
    """Per-class recall, AUC and calibration by client; or in words why there is none."""
    try:
        kept = run_quality(run)
    except CoterieError as error:
        return {"why": str(error)}
    each, drawn = _can_be_drawn(run), drawn_clients(run)
    by_client = ({name: kept[name][client] for name in WIDTHS} for client in range(len(run.names)))
    return {
        "why": "",
        "classes": class_titles(classes, kept),
        "recall": [rounded(row, 4) for row in recalls(kept)] if each else None,
        "support": kept["support"].tolist() if each else None,
        "auc": rounded(kept["auc"][drawn], 4),
        "ece": rounded(calibration_errors(kept)[drawn], 4),
        "together": calibration_curve(merged([kept])),
        "clients": [calibration_curve(bins) for bins in by_client] if each else None,
    }


def class_titles(names: Sequence[str], counts: Counts) -> list[str]:
    """The names of the classes that are counted, or their numbers where names are of others."""
    width = counts["support"].shape[-1]
    return list(names) if len(names) == width else [*map(str, range(width))]


def merged(parts: Sequence[Counts]) -> Counts:
    """Counts and sums over all clients of several runs, as if their test samples were one client's.

    >>> bins = {name: np.ones((2, BINS)) for name in WIDTHS}
    >>> kept = {"hits": np.array([[1, 0], [2, 1]]), "support": np.array([[1, 1], [2, 2]]), **bins}
    >>> merged([kept])["hits"]
    array([3, 1])
    """
    return {name: np.sum([part[name].sum(0) for part in parts], axis=0) for name in ("hits", "support", *WIDTHS)}


def calibration_curve(counts: Counts) -> Content:
    """How often a model is right, by how sure it is."""
    confidence, accuracy = reliability(counts)
    return {
        "samples": counts["bin_samples"].tolist(),
        "confidence": rounded(confidence, 4),
        "accuracy": rounded(accuracy, 4),
        "error": rounded([float(calibration_errors(counts))], 4)[0],
    }


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
        return ", ".join(f"{key} = {_spoken(item)}" for key, item in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def _origin(run: ReportedRun) -> list[list[str]]:
    """When and by what the run was made, on which data: a line each with a title; nothing where that cannot be read."""
    try:
        about = run.record.about()
    except CoterieError:
        return []
    data = about.data
    marks = "; ".join(f"{part} {mark[:SHOWN]}…" for part, mark in (data.fingerprint or {}).items())
    lines = [["session", _spoken_session(session)] for session in about.sessions]
    lines.append(["data", f"{data.name}, {data.samples} samples of shape {tuple(data.shape)}; {marks}"])
    lines.append(["model", f"{run.config['model']}, {about.model.parameters} parameters"])
    if about.protocol:
        lines.append(["protocol", about.protocol])
    if run.partition is not None:
        lines.append(["partition", f"{run.config['partition']}; {run.partition.hash[:SHOWN]}…"])
    return lines


def _spoken_session(session: Session) -> str:
    """
    >>> _spoken_session(Session("2026-01-02T03:04:05Z", 0, "1", "2", "3", "P", "AVX2", cores=2, threads=1))
    '2026-01-02 03:04:05 UTC, from the start: Coterie 1, PyTorch 2, Python 3, P (AVX2), 2 cores, 1 thread'
    """
    begun = session.begun.replace("T", " ").replace("Z", " UTC")
    since = f"after round {session.after_round}" if session.after_round else "from the start"
    counts = {"cores": session.cores, "threads": session.threads}
    counted = ", ".join(f"{count} {what if count != 1 else what[:-1]}" for what, count in counts.items())
    made = f"Coterie {session.coterie}, PyTorch {session.torch}, Python {session.python}"
    return f"{begun}, {since}: {made}, {session.processor} ({session.capability}), {counted}"


def _said(run: ReportedRun) -> list[str]:
    """What parts of the last round say of the run in words."""
    notes = run.lines[-1].parts.values() if run.lines else ()
    return [note["says"] for note in notes if isinstance(note.get("says"), str)]
