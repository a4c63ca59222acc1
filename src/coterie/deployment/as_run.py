"""A federation as its server knows it, in the form of a run: whatever opens, draws and reports runs takes it too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from coterie.core.task.base import SAMPLES
from coterie.deployment.agreement import Agreement
from coterie.deployment.server import Report, Server
from coterie.partition import Partition
from coterie.rounds.evaluate import MOMENTS, Evaluation
from coterie.rounds.listeners import Note, RoundReport
from coterie.runs.history import History, as_line, numbers, plain_number, scores_of
from coterie.runs.reader import FEDERATION
from coterie.runs.record import (
    PRESENCE,
    PRIVACY,
    QUARANTINE,
    ClientAbout,
    DataAbout,
    Line,
    ModelAbout,
    PrivacyNote,
    RunAbout,
    Scores,
    Session,
    TaskAbout,
    converted,
)
from coterie.runs.store import ROUNDS
from coterie.runs.summary import summary_of
from coterie.setup.config import Config, complete
from coterie.setup.settings import Settings


class SitesNote(Struct, frozen=True, omit_defaults=True):
    """What the line of a federation's round says of sites, by their names: the note of the part `federation`.

    `sites` are all in the order in which the line numbers them, `set_aside` those whose answers did not count, and why.
    """

    sites: list[str]
    asked: list[str] = []
    answered: list[str] = []
    unanswered: list[str] = []
    refused: dict[str, str] = {}
    lost: list[str] = []
    epsilon: dict[str, float | None] = {}
    set_aside: dict[str, str] = {}


def note_of(line: Line) -> SitesNote:
    """What a line says of sites by their names."""
    return converted(line.parts.get(FEDERATION), SitesNote, f"{ROUNDS} is damaged: round {line.round}: {FEDERATION}")


SumsOf = Mapping[str, Mapping[str, Any]]
"""What sites said of their models, by site: sums of the task's quantities."""


def config_of(agreement: Agreement) -> Config:
    """The agreement as a run's configuration."""
    same = {item.name for item in fields(Settings)} & {item.name for item in fields(agreement)}
    config = complete(Settings(**{name: getattr(agreement, name) for name in same}))
    return {**config, "data": f"given ({agreement.name})", "partition": "given (sites)", "engine": FEDERATION}


def partition_of(server: Server) -> Partition:
    """Who holds how many samples, as the sites said: numbered through, for which they are is nobody's business here."""
    sites = [server.standing.get(name) for name in server.agreement.sites]
    sizes = [(site.samples, site.validation, site.test) if site else (0, 0, 0) for site in sites]
    ends = np.cumsum(np.array(sizes).reshape(-1)).reshape(-1, 3)
    parts = [
        [np.arange(end - size, end) for end, size in zip(ends[:, part], sizes_of_part, strict=True)]
        for part, sizes_of_part in _by_part(sizes)
    ]
    return Partition(
        train=tuple(parts[0]),
        validation=tuple(parts[1]),
        test=tuple(parts[2]),
        rule="sites",
        names=server.agreement.sites,
        keys=np.array(server.agreement.keys),
        notes=("samples are numbered through, site by site: a server knows how many there are, and no more",),
    )


def _by_part(sizes: Sequence[tuple[int, int, int]]) -> list[tuple[int, list[int]]]:
    return [(part, [of_site[part] for of_site in sizes]) for part in range(3)]


def about_of(server: Server, sessions: list[Session]) -> RunAbout:
    """What the server knows of data, model and sites; of a site's classes nothing, unless the method asks for them."""
    agreement, federation = server.agreement, server.federation
    partition, config = partition_of(server), config_of(agreement)
    asked = federation.asks_class_counts
    unknown: list[int | None] = [None] * agreement.classes
    parts = (partition.train, partition.validation, partition.test)
    return RunAbout(
        protocol=None,
        data=DataAbout(
            name=agreement.name,
            samples=sum(len(own) for part in parts for own in part),
            shape=list(agreement.shape),
            whole_numbers=False,
            task=TaskAbout(**agreement.task.described()),
            outputs=agreement.task.outputs,
            class_names=list(agreement.class_names or map(str, range(agreement.classes))),
            fingerprint=None,
        ),
        model=ModelAbout(
            classifier=federation.layout.classifier,
            parameters=federation.layout.columns("parameters").size,
            feature_width=federation.feature_width,
            skip_single_samples=federation.skip_single_samples,
        ),
        clients=[
            ClientAbout(
                name=name,
                takes_part=True,
                train=len(partition.train[client]),
                validation=len(partition.validation[client]),
                test=len(partition.test[client]),
                classes=federation.class_counts[client].tolist() if asked else unknown,
            )
            for client, name in enumerate(agreement.sites)
        ],
        config=config,
        settings=config,
        sessions=sessions,
    )


def lines_with(lines: Sequence[Line], report: Report, agreement: Agreement) -> list[Line]:
    """The lines of all rounds with that of a new one.

    Sites test what they receive when they are asked: what the report says of that is the last round's `received`.
    """
    earlier = [line for line in lines if line.round < report.round]
    if earlier and report.received:
        earlier[-1] = with_received(earlier[-1], report.received, agreement)
    return [*earlier, _line(report, agreement, earlier)]


def with_received(line: Line, sums: SumsOf, agreement: Agreement) -> Line:
    """A round's line with what sites say of the models that they received after it."""
    newest = _evaluation(sums, agreement)
    if line.received is not None:  # from a start of the server before this one
        newest = _carried_on(_evaluated(line.received, newest), newest)
    return replace(line, received=scores_of(newest))


def renumbered(line: Line, agreement: Agreement) -> Line:
    """A round's line as the sites of a later agreement are numbered: without who left, with nothing of who is new."""
    before = note_of(line).sites
    if before == list(agreement.sites):
        return line
    place = {before.index(site): new for new, site in enumerate(agreement.sites) if site in before}

    def numbered(clients: Sequence[int]) -> list[int]:
        return sorted(place[client] for client in clients if client in place)

    moments: dict[str, Any] = {}
    for moment in MOMENTS:
        scores: Scores | None = getattr(line, moment)
        if scores is not None:
            values = {metric.scale.name: np.full(len(agreement.sites), np.nan) for metric in agreement.task.metrics}
            for name, column in values.items():
                column[list(place.values())] = numbers(scores.values[name])[list(place)]
            sizes = np.ones(len(agreement.sites), np.int64)
            moments[moment] = scores_of(Evaluation(agreement.task.primary.scale, values, sizes))
    parts = dict(line.parts)
    for name, key in ((PRESENCE, "missing"), (QUARANTINE, "clients")):
        if name in parts:
            parts[name] = {**parts[name], key: numbered(parts[name][key])}
    parts[FEDERATION] = {**parts[FEDERATION], "sites": list(agreement.sites)}
    clients = {name: numbered(getattr(line, name)) for name in ("cohort", "diverged", "tuning_diverged")}
    return replace(line, **clients, **moments, parts=parts)


def _line(report: Report, agreement: Agreement, earlier: Sequence[Line]) -> Line:
    place = agreement.sites.index
    trained = _evaluation(report.trained, agreement)
    stored = None
    if len(report.trained) < len(agreement.sites) and earlier:
        last = earlier[-1].stored or earlier[-1].trained
        assert last is not None  # every round of a federation has what sites trained
        stored = _carried_on(_evaluated(last, trained), trained)
    waiting = {name: report.seconds.get(name, 0.0) for name in ("tasks", "exchange")}
    whole = report.seconds.get("round", sum(waiting.values()))
    parts: dict[str, Note] = dict(report.parts)
    as_report = RoundReport(
        report.round,
        cohort=[place(name) for name in report.answered],
        trained=trained,
        stored=stored,
        diverged=[place(name) for name in report.diverged],
        missing=[place(name) for name in report.missing],
        seconds={
            "train": max(0.0, whole - sum(waiting.values())),
            "exchange": sum(waiting.values()),
            "evaluate": 0.0,  # sites test as they train
        },
        bytes=report.bytes,
        parts=parts,
    )
    line = as_line(as_report)
    by_name = SitesNote(
        sites=list(agreement.sites),
        asked=report.asked,
        answered=report.answered,
        unanswered=report.missing,
        refused=report.refused,
        lost=report.lost,
        epsilon=report.epsilon,
        set_aside=report.quarantined,
    )
    private = any(part.name == PRIVACY for part in agreement.parts)
    spent = {PRIVACY: to_builtins(_spent(report, earlier))} if private else {}
    return replace(line, parts={**line.parts, **spent, FEDERATION: to_builtins(by_name)})


def _spent(report: Report, earlier: Sequence[Line]) -> PrivacyNote:
    """What the sites that were asked say that they have spent; of who did not answer, what it last said."""
    by_site: dict[str, float | None] = {}
    for epsilon in (*(note_of(line).epsilon for line in earlier), report.epsilon):
        by_site |= epsilon
    bounds = {name: math.inf if value is None else value for name, value in by_site.items()}
    asked = [bounds.get(name, 0.0) for name in (*report.answered, *report.missing)]
    worst = max(bounds.values(), default=0.0)
    return PrivacyNote(plain_number(worst), [plain_number(epsilon) for epsilon in asked])


def _evaluation(sums: SumsOf, agreement: Agreement) -> Evaluation:
    """Every site's metrics; of sites that said nothing there is no number."""
    task = agreement.task
    nothing = {name: 0 for one in sums.values() for name in one} or {SAMPLES: 0}
    return Evaluation.of_sums(task, [dict(sums.get(name, nothing)) for name in agreement.sites])


def _evaluated(scores: Scores, like: Evaluation) -> Evaluation:
    """What a line tells of the sites that another evaluation is of."""
    return Evaluation(like.scale, {name: numbers(scores.values[name]) for name in like.values}, like.sizes)


def _carried_on(before: Evaluation, now: Evaluation) -> Evaluation:
    """What was known, with what is known now in its place."""
    tested = np.flatnonzero(~np.isnan(now.judged))
    return before.updated(tested, now.chosen(tested))


def summary_so_far(server: Server, lines: list[Line]) -> dict[str, Any]:
    """The summary of a run of these rounds."""
    partition = partition_of(server)
    history = History(server.agreement.task, [len(own) for own in partition.test], lines)
    return summary_of(history, partition, range(partition.clients), config_of(server.agreement), {})
