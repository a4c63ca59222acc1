"""After training: what clients keep, what they send, and what the server remembers of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.client.measures import sound
from coterie.client.recipe import Recipe, keeps, measures
from coterie.core.columns import Columns
from coterie.core.exchange import ClientRows, Uploads
from coterie.core.federation import Federation
from coterie.engines.base import Trained
from coterie.rounds.stages import Incoming, Stage

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Outgoing:
    """What clients send once all client halves have seen it, and the clients that diverged."""

    incoming: Incoming
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # what was measured and stays: name -> [cohort, ...]
    cohort: Tensor | None = None  # whose rows of `kept` these are
    diverged: Sequence[int] = ()


@dataclass(frozen=True)
class Collected:
    """What counts of a round, and whose does not: clients that diverged, and those that stages set aside, and why."""

    uploads: Uploads
    diverged: list[int] = field(default_factory=list)
    set_aside: dict[str, dict[int, str]] = field(default_factory=dict)  # by the stage's name

    @property
    def left_out(self) -> list[int]:
        """The clients that keep their last good rows."""
        return [*self.diverged, *(client for clients in self.set_aside.values() for client in clients)]


def collect(
    federation: Federation,
    recipe: Recipe,
    uploads: Mapping[str, str],
    cohort: Tensor,
    trained: Trained,
    losses: Sequence[float | None] = (),
    stages: Sequence[Stage] = (),
) -> Collected:
    """Both sides of an upload: clients keep what is personal, the server takes what they send.

    A client whose rows or measurements are not finite is left out: it keeps its last good row and is named. So is one
    that a stage sets aside; `losses` are the cohort's after training, for stages that look at them.
    """
    return take(federation, recipe, send(federation, recipe, uploads, cohort, trained, losses, stages), stages)


def send(
    federation: Federation,
    recipe: Recipe,
    uploads: Mapping[str, str],
    cohort: Tensor,
    trained: Trained,
    losses: Sequence[float | None] = (),
    stages: Sequence[Stage] = (),
) -> Outgoing:
    """The clients' side: what follows from their rows is made, and all that they send goes through the stages."""
    declared = declared_columns(federation, uploads)
    if not len(cohort):
        return Outgoing(Incoming(cohort, {}, declared, {}))
    kept = {measure.name for measure in measures(recipe) if measure.keep}
    incoming = Incoming(cohort, dict(trained.rows), declared, dict(trained.measured), losses)
    for stage in stages:
        incoming = stage.trained(federation, incoming)
    incoming, diverged = _without_diverged(federation, recipe, incoming)
    sent = {name: values for name, values in incoming.measured.items() if name not in kept}
    incoming = replace(incoming, measured=sent)
    around = ClientRows(federation, incoming.cohort, incoming.held)
    if made := {keep.slot: keep.rows(around) for keep in keeps(recipe)}:
        made = {**incoming.held, **made}
        incoming, broken = _without_diverged(federation, recipe, replace(incoming, held=made))
        diverged += broken
    for stage in stages:
        incoming = stage.client(federation, incoming)
    return Outgoing(incoming, {name: trained.measured[name] for name in kept}, cohort, diverged)


def take(federation: Federation, recipe: Recipe, sent: Outgoing, stages: Sequence[Stage] = ()) -> Collected:
    """The server's side: what came in goes through the stages, and what counts of it is taken in."""
    incoming, diverged, set_aside = sent.incoming, list(sent.diverged), dict[str, dict[int, str]]()
    if stages:  # what clients saw to themselves may have changed since
        incoming, broken = _without_diverged(federation.as_seen_by_server(), recipe, incoming, sent=True)
        diverged += broken
    for stage in reversed(stages):
        incoming, out = stage.server(federation, incoming)
        if out:
            set_aside[stage.name] = out
    if not incoming.held and not len(incoming.cohort):  # nobody answered
        return Collected(Uploads(federation.as_seen_by_server(), incoming.cohort, {}, {}))
    for name, values in sent.kept.items():
        assert sent.cohort is not None
        federation.keep_value(name, incoming.cohort, values[torch.isin(sent.cohort, incoming.cohort)])
    return Collected(receive(federation, incoming), sorted(diverged), set_aside)


def _without_diverged(
    federation: Federation, recipe: Recipe, incoming: Incoming, sent: bool = False
) -> tuple[Incoming, list[int]]:
    """What came in without the clients whose rows or measurements are not finite, and those; of rows all that clients
    hold is looked at, or only what was `sent`.
    """
    finite = torch.ones(len(incoming.cohort), dtype=torch.bool)
    for slot, rows in incoming.held.items():
        if sent:
            columns = incoming.declared.get(slot, Columns())
            rows = columns.within(federation[slot].columns).take(rows)
        finite &= _finite_rows(rows).cpu()
    for name, good in sound_measurements(federation, recipe, incoming.cohort, incoming.measured).items():
        if count := int((finite & ~good).sum()):
            log.warning(
                "round %d: the measurement '%s' of %s is not finite, or not NaN just for the classes without training "
                "samples (which is for measurements that say of_classes = True)",
                federation.round,
                name,
                f"{count} clients" if count > 1 else "one client",
            )
        finite &= good
    return incoming.only(finite), incoming.cohort[~finite].tolist()


def sound_measurements(
    federation: Federation, recipe: Recipe, cohort: Tensor, measured: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Of every measurement at hand, by name, which of the cohort's clients measured what it can be: `[m]`.

    Which classes they have is known where class counts are: to a client itself, and to a server that asked for them.
    """
    found = {}
    for measure in measures(recipe):
        if measure.name in measured:
            known = measure.of_classes and federation.knows_class_counts
            counts = federation.class_counts[cohort] if known else None
            found[measure.name] = sound(measure, measured[measure.name], counts)
    return found


def declared_columns(federation: Federation, uploads: Mapping[str, str]) -> dict[str, Columns]:
    """The columns of each slot that travel."""
    return {name: federation.layout.columns(group) for name, group in uploads.items()}


def receive(federation: Federation, incoming: Incoming) -> Uploads:
    """Take in what the cohort holds now: what was sent of it, the server knows."""
    cohort, held, declared = incoming.cohort, incoming.held, incoming.declared
    around = ClientRows(federation, cohort, held)
    remembered = {
        name: (slot.follows(around) if callable(slot.follows) else around.after(slot.follows, slot.columns))
        for name, slot in federation.slots.items()
        if slot.follows is not None
    }
    for name, rows in (*held.items(), *remembered.items()):
        slot = federation[name]
        slot.write_own(cohort, slot.own_columns, slot.own_columns.within(slot.columns).take(rows))
        if name not in remembered:
            slot.tracks.trained(cohort, declared.get(name, Columns()))
    federation.rounds_taken[cohort] += 1
    federation.last_round[cohort] = federation.round
    return Uploads(federation.as_seen_by_server(), cohort, held, declared, incoming.measured)


def _finite_rows(rows: Tensor) -> Tensor:
    """Which rows hold finite numbers only: a sum is finite unless an element is not (or it overflows)."""
    sums = torch.isfinite(rows.sum(1))
    if not bool(sums.all()):
        sums = torch.isfinite(rows).all(1)
    return sums
