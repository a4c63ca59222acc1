"""From one version of an agreement to the next: what stays of a federation's state when sites come and go.

Who stays keeps every row and value. Of who has left nothing is carried over: neither its rows, nor its values, nor what
others' values say about it. What others learned from it is part of their rows, and stays there. A newcomer begins as
one does in a simulation (`coterie.runs.newcomers`): with the newest shared columns and values, with the mean of
what the others upload of their personal columns, and with the first weights in all that nobody uploads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.federation import Federation, ValueKind
from coterie.core.tracks import delivery_mark, exchange_mark
from coterie.deployment.agreement import Agreement
from coterie.rounds.defences import set_up_defences
from coterie.runs.newcomers import usual_uploads

ClientDims = Mapping[str, tuple[int, ...]]


def client_dims(agreement: Agreement) -> ClientDims:
    """Along which dimensions a method's values have a place for each site: those that grow with the number of sites.

    >>> client_dims(Agreement(name="trial", sites=("a", "b"), shape=(4,), classes=2, method="pfedsim"))
    {'similarity': (0, 1)}
    """
    small, large = (_values_of(agreement, count) for count in (2, 3))
    return {
        name: tuple(dim for dim, (one, other) in enumerate(zip(small[name], large[name], strict=True)) if one != other)
        for name in small
    }


def _values_of(agreement: Agreement, count: int) -> dict[str, torch.Size]:
    sites = tuple(f"site-{number}" for number in range(count))
    few = replace(agreement, sites=sites, numbers=(), version=1, former=(), least_sites=1, share_limit=1.0)
    federation = few.federation()
    federation.sizes.fill_(1)
    few.kind.init(federation)
    set_up_defences(few.kind, federation)
    return {name: value.shape for name, value in federation.values.items()}


class Carried:
    """The way of sites from one list to another, by name."""

    def __init__(self, before: Sequence[str], after: Sequence[str]) -> None:
        stay = [site for site in after if site in before]
        self.old = torch.tensor([before.index(site) for site in stay], dtype=torch.int64)
        self.new = torch.tensor([after.index(site) for site in stay], dtype=torch.int64)
        self.come = torch.tensor([place for place, site in enumerate(after) if site not in before], dtype=torch.int64)

    def moved(self, value: Tensor, start: Tensor, dims: Sequence[int]) -> Tensor:
        """`value` with the sites' new places along some dimensions; who is new has what `start` has there.

        >>> Carried(["a", "b", "c"], ["a", "c", "d"]).moved(torch.tensor([1, 2, 3]), torch.zeros(3).long(), [0])
        tensor([1, 3, 0])
        """
        if not dims:
            return value.clone()
        found, taken = start.clone(), value
        for dim in dims:
            taken = taken.index_select(dim, self.old)
        places = [
            self.new.view(-1, *[1] * (value.ndim - 1 - dim))
            if dim in dims
            else torch.arange(value.shape[dim]).view(-1, *[1] * (value.ndim - 1 - dim))
            for dim in range(value.ndim)
        ]
        found[tuple(places)] = taken
        return found


def carry_over(
    state: Mapping[str, Tensor], before: Sequence[str], round: int, agreement: Agreement, federation: Federation
) -> None:
    """Bring a new version's federation to where the former one was after a round, given that one's state and sites.

    `federation.sizes` say what is known of those who stay.
    """
    method, way, dims = agreement.kind, Carried(before, agreement.sites), client_dims(agreement)
    method.init(federation)  # once more, with the sizes
    set_up_defences(method, federation)
    federation.round = round
    for name in ("rounds_taken", "last_round"):
        own = getattr(federation, name)
        own.copy_(way.moved(state[name], torch.zeros_like(own), [0]))
    for name, value in federation.values.items():
        marks = federation.value_marks[name]
        if f"value.{name}" not in state:
            continue  # of a term that is new
        if federation.kinds[name].told:
            marks.fill_(delivery_mark(round + 1))  # about all sites together, who are others now
            continue
        federation.values[name] = way.moved(state[f"value.{name}"], value, dims[name])
        former = state[f"marks.{name}"]
        marks.copy_(way.moved(former, torch.zeros_like(marks), [0]))
        if 0 not in dims[name]:
            marks[way.come] = former.max()
    for name in federation.slots:
        _carry_slot(federation, name, state, way)
    _greet(federation, way, method.uploads(federation))


def _carry_slot(federation: Federation, name: str, state: Mapping[str, Tensor], way: Carried) -> None:
    slot, clients = federation[name], federation.clients
    slot.shared.copy_(state[f"slot.{name}.shared"])
    slot.own.copy_(way.moved(state[f"slot.{name}.own"], slot.own, [0]))
    slot.dropped = bool(state[f"dropped.{name}"])
    marks, known = state[f"tracks.{name}.marks"], state[f"tracks.{name}.known"]
    # Initial rows are known to all.
    slot.tracks.restore(
        state[f"tracks.{name}.spans"],
        way.moved(marks, torch.zeros(len(marks), clients, dtype=marks.dtype), [1]),
        way.moved(known, torch.ones(len(known), clients, dtype=known.dtype), [1]),
    )
    for stretch, former in zip(slot.tracks.stretches, marks, strict=True):
        if stretch.columns <= slot.shared_columns:
            stretch.marks[way.come] = former.max()  # what all have in common is written for all at once


def _greet(federation: Federation, way: Carried, uploads: Mapping[str, str]) -> None:
    """Give newcomers what the others usually upload of their personal columns."""
    if not len(way.come):
        return
    for name, (columns, row) in usual_uploads(federation, uploads).items():
        slot = federation[name]
        slot.write_own(way.come, columns, row.expand(len(way.come), -1))
        slot.tracks.wrote(columns, way.come, exchange_mark(federation.round))


def carried_snapshot(
    saved: Mapping[str, Tensor],
    begin: Mapping[str, Tensor],
    before: Sequence[str],
    agreement: Agreement,
    kinds: Mapping[str, ValueKind],
) -> dict[str, Tensor]:
    """A site's own snapshot of a former version, as the present one reads it; `begin` is what a site begins with.

    Of a value with a part for each site, a site holds its own part alone.
    """
    way, dims, found = Carried(before, agreement.sites), client_dims(agreement), dict(saved)
    for key, start in begin.items():
        if key not in saved:
            found[key] = start  # of a term that is new
        elif key.startswith("value."):
            name = key.removeprefix("value.")
            own = tuple(dim - 1 for dim in dims[name][1:]) if kinds[name].per_client else dims[name]
            found[key] = way.moved(saved[key], start, own)
    return found
