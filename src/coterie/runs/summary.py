"""The numbers of a run in one table of plain values, at its end or before: what stands in it, and how it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NotRequired, Required, TypedDict

import torch

from coterie.core.task import Classification, Task
from coterie.core.task.base import LOSS
from coterie.errors import require
from coterie.partition import Partition
from coterie.registry import short_name
from coterie.rounds.evaluate import MOMENTS
from coterie.runs.history import EFFORT, TRAINING, Curves, History, plain_number, training_mean
from coterie.runs.record import PRIVACY, Count, MomentName, Number, TaskAbout, converted
from coterie.setup.config import Config

ByMoment = dict[MomentName, Number]
RoundsByClient = dict[str, list[Count]]


class ClientNumbers(TypedDict, total=False):
    """A client's line: its samples, and what the task is judged by, moment by moment."""

    client: Required[str]
    size: Required[Count]
    received: Number
    trained: Number
    stored: Number


class SecondsSpent(TypedDict):
    """Time in all, and per round by activity."""

    total: float
    per_round: dict[str, float]


class BytesMoved(TypedDict):
    """Bytes in all, and per participating client and round."""

    up: Count
    down: Count
    total: Count
    per_client_round: dict[str, float]


class PartitionFacts(TypedDict):
    """Which partition it was, with and without clients that were held out, and what there is to say of it."""

    hash: str
    whole_hash: str
    notes: list[str]


class Summary(TypedDict):
    """What a summary holds besides a task's metrics, each of which stands under its own name as `Curves`."""

    method: str
    rounds: Count
    seconds: SecondsSpent
    worst_decile: ByMoment
    std: ByMoment
    clients: list[ClientNumbers]
    diverged: RoundsByClient
    tuning_diverged: RoundsByClient
    bytes: BytesMoved
    partition: PartitionFacts
    engine: str
    config: Config
    # Where there is something to say.
    task: NotRequired[TaskAbout]
    stopped: NotRequired[str]
    missing: NotRequired[RoundsByClient]
    quarantined: NotRequired[RoundsByClient]
    hostile: NotRequired[list[str]]
    honest: NotRequired[dict[MomentName, dict[str, Any]]]
    training: NotRequired[dict[str, Number]]
    effort: NotRequired[dict[str, Any]]
    validation: NotRequired[dict[str, Any]]
    newcomers: NotRequired[dict[MomentName, dict[str, Any]]]
    sampled: NotRequired[dict[str, Any]]
    privacy: NotRequired[dict[str, Any]]
    identity: NotRequired[dict[str, Any]]


def require_summary(summary: Mapping[str, Any], where: str) -> None:
    """An error, in one line that names the place, if plain values are no summary."""
    task = converted(summary, Summary, where).get("task")
    judged = Classification().judged_by if task is None else task.judged_by
    require(judged in summary, f"{where} ({judged} is missing)")
    converted({judged: summary[judged]}, dict[str, Curves], where)


def summary_of(
    history: History,
    partition: Partition,
    participants: Sequence[int],
    config: Config,
    quality: Mapping[str, Any],
) -> dict[str, Any]:
    """The summary of the rounds so far; `quality` holds the numbers that there are at the end alone."""
    # A run that was stopped early may not have been evaluated in its last round, or at all.
    newest = {moment: evaluation for moment in MOMENTS if (evaluation := history.newest(moment)) is not None}
    names = [partition.names[client] for client in participants]
    by_row = dict(enumerate(names))
    clients = [
        {
            "client": name,
            "size": int(partition.sizes[client]),
            **{moment: plain_number(float(evaluation.judged[row])) for moment, evaluation in newest.items()},
        }
        for row, (client, name) in enumerate(zip(participants, names, strict=True))
    ]
    return {
        "method": short_name(config["method"]),
        "rounds": len(history.lines),
        "seconds": history.seconds(),
        **_metrics(history, history.task),
        **({"sampled": sampled} if (sampled := history.sampled()) else {}),
        "worst_decile": {moment: plain_number(evaluation.worst_decile) for moment, evaluation in newest.items()},
        "std": {moment: plain_number(evaluation.std) for moment, evaluation in newest.items()},
        **history.honest(names, hostile_rows(config, partition, participants)),
        **quality,
        **_training(history),
        "clients": clients,
        **({"missing": history.diverged(by_row, "missing")} if config.get("presence") else {}),
        "diverged": history.diverged(by_row),
        "tuning_diverged": history.diverged(by_row, "tuning_diverged"),
        **({"quarantined": history.diverged(by_row, "quarantined")} if config.get("quarantine") else {}),
        **_privacy(history, config, names),
        "bytes": history.bytes(),
        **({EFFORT: effort} if (effort := history.effort()) else {}),
        "partition": {
            "hash": partition.hash,
            "whole_hash": partition.whole().hash,
            "notes": list(partition.notes),
        },
        "engine": config["engine"],
        "config": config,
    }


def hostile_rows(config: Mapping[str, Any], partition: Partition, participants: Sequence[int]) -> list[int]:
    """Which of the participants are hostile in the run of a configuration, by their places among them."""
    if not config.get("attack"):
        return []
    from coterie.scenarios.hostile import Hostile

    keys = torch.from_numpy(partition.keys)[list(participants)]
    hostile = Hostile.drawn(str(config["attack"]), keys, int(config["seed"]))
    return [] if hostile is None else hostile.clients.tolist()


def _privacy(history: History, config: Config, names: Sequence[str]) -> dict[str, Any]:
    """What an ε of this run means, the largest, and every client's; none where there is no bound."""
    if not config.get("privacy"):
        return {}
    from coterie.privacy.promise import Privacy

    promise = Privacy(**{item.name: config[item.name] for item in fields(Privacy) if item.name in config})
    epsilons = history.epsilons(len(names))
    worst = None if None in epsilons else max(epsilons, key=lambda epsilon: epsilon or 0.0)
    spent = {
        **promise.described(),
        "delta": promise.delta,
        "epsilon": worst,
        "clients": dict(zip(names, epsilons, strict=True)),
        "accountant": "Rényi divergences, as in Opacus",
    }
    return {PRIVACY: spent}


def _training(history: History) -> dict[str, Any]:
    """How the last cohort did on the samples that it trained on: each metric's mean over its clients."""
    if not history.lines or not history.lines[-1].training:
        return {}
    newest = history.lines[-1]
    return {TRAINING: {metric: plain_number(training_mean(newest, metric)) for metric in newest.training or ()}}


def _metrics(history: History, task: Task) -> dict[str, Any]:
    """The metrics of all rounds, by name; what they are is said unless it is the usual."""
    names = [task.judged_by, *(metric.scale.name for metric in task.metrics if metric.scale.name != LOSS)]
    curves = {name: history.curves(name) for name in names}
    return curves if task.described() == Classification().described() else {"task": task.described(), **curves}
