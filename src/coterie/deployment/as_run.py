"""A federation as its server knows it, in the form of a run: whatever opens, draws and reports runs takes it too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from coterie.core.task.base import SAMPLES
from coterie.deployment.agreement import Agreement
from coterie.deployment.server import Report, Server
from coterie.partition import Partition
from coterie.privacy.stage import Spent
from coterie.rounds.evaluate import MOMENTS, Evaluation
from coterie.rounds.report import Note, RoundReport
from coterie.runs.about import FORMAT, About
from coterie.runs.history import History, Line, as_line, numbers
from coterie.runs.kept import FEDERATION
from coterie.runs.summary import summary_of
from coterie.setup.config import Config, complete
from coterie.setup.settings import Settings

UNANSWERED = "unanswered"
BY_NAME = {
    "asked": "asked",
    "answered": "answered",
    "missing": UNANSWERED,
    "refused": "refused",
    "lost": "lost",
    "epsilon": "epsilon",
}
"""What a report knows by the sites' names, and what a line calls it."""
SET_ASIDE = "set_aside"
"""Whose answers were set aside in a round, and why."""

NUMBERED = "sites"
"""The sites in the order in which a line numbers them."""

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
    sizes = [(one.samples, one.validation, one.test) if one else (0, 0, 0) for one in sites]
    ends = np.cumsum(np.array(sizes).reshape(-1)).reshape(-1, 3)
    parts = [
        [np.arange(end - size, end) for end, size in zip(ends[:, part], own, strict=True)]
        for part, own in _by_part(sizes)
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
    return [(part, [own[part] for own in sizes]) for part in range(3)]


def about_of(server: Server, sessions: list[About]) -> About:
    """What the server knows of data, model and sites; of a site's classes nothing, unless the method asks for them."""
    agreement, federation = server.agreement, server.federation
    partition = partition_of(server)
    asked = federation.asks_class_counts
    unknown = [None] * agreement.classes
    return {
        "format": FORMAT,
        "protocol": None,
        "data": {
            "name": agreement.name,
            "samples": int(
                sum(len(own) for part in (partition.train, partition.validation, partition.test) for own in part)
            ),
            "shape": list(agreement.shape),
            "whole_numbers": False,
            "task": agreement.task.described(),
            "outputs": agreement.task.outputs,
            "class_names": list(agreement.class_names or map(str, range(agreement.classes))),
            "fingerprint": None,
        },
        "model": {
            "classifier": federation.layout.classifier,
            "parameters": federation.layout.columns("parameters").size,
            "feature_width": federation.feature_width,
            "skip_single_samples": federation.skip_single_samples,
        },
        "clients": [
            {
                "name": name,
                "takes_part": True,
                "train": len(partition.train[client]),
                "validation": len(partition.validation[client]),
                "test": len(partition.test[client]),
                "classes": federation.class_counts[client].tolist() if asked else unknown,
            }
            for client, name in enumerate(agreement.sites)
        ],
        "settings": config_of(agreement),
        "sessions": sessions,
    }


def lines_with(lines: Sequence[Line], report: Report, agreement: Agreement) -> list[Line]:
    """The lines of all rounds with that of a new one.

    Sites test what they receive when they are asked: what the report says of that is the last round's `received`.
    """
    earlier = [line for line in lines if line["round"] < report.round]
    if earlier and report.received:
        earlier[-1] = with_received(earlier[-1], report.received, agreement)
    return [*earlier, _line(report, agreement, earlier)]


def with_received(line: Line, sums: SumsOf, agreement: Agreement) -> Line:
    """A round's line with what sites say of the models that they received after it."""
    known = line.get("received", {})
    told = _evaluation(sums, agreement)
    if known:  # from a start of the server before this one
        before = Evaluation(told.scale, {name: numbers(known[name]) for name in told.values}, told.sizes)
        told = _carried_on(before, told)
    found = as_line(RoundReport(line["round"], [], received=told))
    return {**line, "received": found["received"]}


def renumbered(line: Line, agreement: Agreement) -> Line:
    """A round's line as the sites of a later agreement are numbered: without who left, with nothing of who is new."""
    before: list[str] = line[NUMBERED]
    if before == list(agreement.sites):
        return line
    place = {before.index(site): new for new, site in enumerate(agreement.sites) if site in before}
    found = {**line, NUMBERED: list(agreement.sites)}
    for what in ("cohort", "diverged", "quarantined", "missing", "tuning_diverged"):
        if what in line:
            found[what] = sorted(place[client] for client in line[what] if client in place)
    scale = agreement.task.primary.scale
    report = RoundReport(line["round"], [])
    for moment in (moment for moment in MOMENTS if moment in line):
        values = {metric.scale.name: np.full(len(agreement.sites), np.nan) for metric in agreement.task.metrics}
        for name, own in values.items():
            own[list(place.values())] = numbers(line[moment][name])[list(place)]
        setattr(report, moment, Evaluation(scale, values, np.ones(len(agreement.sites), np.int64)))
    told = as_line(report)
    return {**found, **{moment: told[moment] for moment in MOMENTS if moment in line}}


def _line(report: Report, agreement: Agreement, earlier: Sequence[Line]) -> Line:
    place = agreement.sites.index
    trained = _evaluation(report.trained, agreement)
    stored = None
    if len(report.trained) < len(agreement.sites) and earlier:
        last = earlier[-1].get("stored") or earlier[-1]["trained"]
        held = Evaluation(trained.scale, {name: numbers(last[name]) for name in trained.values}, trained.sizes)
        stored = _carried_on(held, trained)
    waiting = {name: report.seconds.get(name, 0.0) for name in ("tasks", "exchange")}
    whole = report.seconds.get("round", sum(waiting.values()))
    parts: dict[str, Note] = dict(report.parts)
    if agreement.promise.privacy is not None:
        parts["privacy"] = _spent(report, earlier)
    found = RoundReport(
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
    told = {word: getattr(report, name) for name, word in BY_NAME.items()} | {SET_ASIDE: report.quarantined}
    named = {name: value for name, value in told.items() if value}
    return {**as_line(found), **named, NUMBERED: list(agreement.sites)}


def _spent(report: Report, earlier: Sequence[Line]) -> Spent:
    """What the sites that were asked say that they have spent; of who did not answer, what it last said."""
    told: dict[str, float | None] = {}
    for epsilon in (*(line.get("epsilon", {}) for line in earlier), report.epsilon):
        told |= epsilon
    bounds = {name: math.inf if value is None else value for name, value in told.items()}
    asked = [bounds.get(name, 0.0) for name in (*report.answered, *report.missing)]
    return Spent.of(max(bounds.values(), default=0.0), asked)


def _evaluation(sums: SumsOf, agreement: Agreement) -> Evaluation:
    """Every site's metrics; of sites that said nothing there is no number."""
    task = agreement.task
    nothing = {name: 0 for one in sums.values() for name in one} or {SAMPLES: 0}
    return Evaluation.of_sums(task, [dict(sums.get(name, nothing)) for name in agreement.sites])


def _carried_on(before: Evaluation, now: Evaluation) -> Evaluation:
    """What was known, with what is known now in its place."""
    told = np.flatnonzero(~np.isnan(now.judged))
    return before.updated(told, now.chosen(told))


def summary_so_far(server: Server, lines: list[Line]) -> dict[str, Any]:
    """The summary of a run of these rounds."""
    partition = partition_of(server)
    history = History(server.agreement.task, [len(own) for own in partition.test], lines)
    return summary_of(history, partition, range(partition.clients), config_of(server.agreement), {})
