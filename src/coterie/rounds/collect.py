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
from coterie.rounds.hostile import Hostile
from coterie.rounds.privacy import noisy_uploads, without_divergence
from coterie.rounds.quarantine import Incoming, set_aside

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Collected:
    """What counts of a round, and whose does not: clients that diverged, and those in quarantine with the reason."""

    uploads: Uploads
    diverged: list[int] = field(default_factory=list)
    quarantined: dict[int, str] = field(default_factory=dict)

    @property
    def left_out(self) -> list[int]:
        """The clients that keep their last good rows."""
        return [*self.diverged, *self.quarantined]


def collect(
    federation: Federation,
    recipe: Recipe,
    uploads: Mapping[str, str],
    cohort: Tensor,
    trained: Trained,
    losses: Sequence[float | None] = (),
    hostile: Hostile | None = None,
) -> Collected:
    """Both sides of an upload: clients keep what is personal, the server takes what they send.

    A client whose rows or measurements are not finite is left out: it keeps its last good row and is named. So is one
    whose upload jumps, where the run watches that; `losses` are the cohort's after training. What hostile clients send
    is not what they hold.
    """
    kept = {measure.name for measure in measures(recipe) if measure.keep}
    sent = {name: values for name, values in trained.measured.items() if name not in kept}
    rows = without_divergence(federation, cohort, trained.rows)
    incoming = Incoming(cohort, dict(rows), declared_columns(federation, uploads), dict(trained.measured), losses)
    incoming, diverged = _without_diverged(federation, recipe, incoming)
    incoming = replace(incoming, measured={name: incoming.measured[name] for name in sent})
    around = ClientRows(federation, incoming.cohort, incoming.held)
    if made := {keep.slot: keep.rows(around) for keep in keeps(recipe)}:
        made = {**incoming.held, **made}
        incoming, broken = _without_diverged(federation, recipe, replace(incoming, held=made))
        diverged += broken
    noisy = noisy_uploads(federation, incoming.cohort, dict(incoming.held), incoming.declared)
    incoming = replace(incoming, held=noisy)
    if hostile is not None:
        held = hostile.send(federation, incoming.cohort, dict(incoming.held), uploads)
        told = hostile.tell(federation, incoming.cohort, dict(incoming.measured))
        view = federation.as_seen_by_server()
        incoming, broken = _without_diverged(view, recipe, replace(incoming, held=held, measured=told))
        diverged += broken
    incoming, quarantined = screened(federation, incoming)
    for name in kept:
        counts = torch.isin(cohort, incoming.cohort)
        federation.keep_value(name, incoming.cohort, trained.measured[name][counts])
    return Collected(receive(federation, incoming), sorted(diverged), quarantined)


def nothing_collected(federation: Federation) -> Collected:
    """What a round comes to in which nobody answers."""
    return Collected(Uploads(federation.as_seen_by_server(), federation.everyone[:0], {}, {}))


def _without_diverged(federation: Federation, recipe: Recipe, incoming: Incoming) -> tuple[Incoming, list[int]]:
    """What came in without the clients whose rows or measurements are not finite, and those."""
    finite = torch.ones(len(incoming.cohort), dtype=torch.bool)
    for rows in incoming.held.values():
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
    if bool(finite.all()):
        return incoming, []
    zipped = zip(incoming.losses, finite.tolist(), strict=bool(incoming.losses))
    left = Incoming(
        incoming.cohort[finite],
        _some(incoming.held, finite),
        incoming.declared,
        _some(incoming.measured, finite),
        [loss for loss, good in zipped if good],
    )
    return left, incoming.cohort[~finite].tolist()


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


def screened(federation: Federation, incoming: Incoming) -> tuple[Incoming, dict[int, str]]:
    """What counts of all that came in, and whose does not, with the reason."""
    out = set_aside(federation, incoming)
    if not out:
        return incoming, out
    counts = ~torch.isin(incoming.cohort, torch.tensor(list(out)))
    held, measured = _some(incoming.held, counts), _some(incoming.measured, counts)
    return Incoming(incoming.cohort[counts], held, incoming.declared, measured), out


def _some(rows: Mapping[str, Tensor], chosen: Tensor) -> dict[str, Tensor]:
    return {name: values[chosen.to(values.device)] for name, values in rows.items()}


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
