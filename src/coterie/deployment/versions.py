"""From one version of an agreement to the next: what may change, who follows, and what stays of a federation's state.

Waiting times may change at any time: the agreement's file is looked at again whenever it has changed. More rounds,
other sites and other terms are a new version, which every site accepts, or leaves.

Who stays keeps every row and value. Of who has left nothing is carried over: neither its rows, nor its values, nor what
others' values say about it. What others learned from it is part of their rows, and stays there. A newcomer begins as
one does in a simulation (`coterie.runs.newcomers`): with the newest shared columns and values, with the mean of
what the others upload of their personal columns, and with the first weights in all that nobody uploads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation import Federation, ValueKind
from coterie.core.tracks import delivery_mark, exchange_mark
from coterie.deployment.agreement import Agreement
from coterie.deployment.agreement_terms import LINEAGE
from coterie.errors import CoterieError, require, unknown
from coterie.runs.newcomers import usual_uploads

# What models, splits and messages are made of: with another one it is another federation.
FIXED = (
    "name",
    "shape",
    "scale",
    "classes",
    "class_names",
    "test",
    "validation",
    "method",
    "set",
    "model",
    "classifier",
    "stats",
    "norm",
    "seed",
)
OWN_OPTIONS = {"sites": "--add and --remove", "rounds": "--rounds"}


def extended(
    agreement: Agreement,
    *,
    rounds: int | None = None,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    terms: Mapping[str, Any] | None = None,
) -> Agreement:
    """The next version of an agreement.

    Sites keep their numbers, and with these their splits and random streams, whoever else comes or goes.

    >>> two = Agreement(name="trial", sites=("a", "b"), shape=(4,), classes=2, rounds=3)
    >>> three = extended(two, rounds=5, add=["c"], remove=["a"])
    >>> three.version, three.sites, three.keys, three.former == (two.fingerprint,)
    (2, ('b', 'c'), (1, 2), True)
    """
    for site in remove:
        if site not in agreement.sites:
            raise unknown(f"site of {agreement.name}", site, agreement.sites)
    for site in add:
        require(site not in agreement.sites, f"add = {site}: is one of the sites already")
    given = dict(terms or {})
    for name in given:
        require(name not in OWN_OPTIONS, f"term = {name}: has an option of its own, {OWN_OPTIONS.get(name)}")
        if name in FIXED or name in LINEAGE:
            raise CoterieError(f"term = {name}: cannot change in the course of a federation; begin another one")
    stay = [place for place, site in enumerate(agreement.sites) if site not in remove]
    first = max(agreement.keys) + 1
    changed: dict[str, Any] = {
        "sites": [*(agreement.sites[place] for place in stay), *add],
        "numbers": [*(agreement.keys[place] for place in stay), *range(first, first + len(add))],
        "rounds": agreement.rounds if rounds is None else rounds,
        "version": agreement.version + 1,
        "former": [*agreement.former, agreement.fingerprint],
        **given,
    }
    plain = agreement.plain() | changed
    if "least_sites" not in given and (add or remove):
        # A majority of those who were there becomes one of those who are; a number that was chosen stays.
        usual = replace(agreement, least_sites=0).least_sites
        plain["least_sites"] = (
            0 if agreement.least_sites == usual else min(agreement.least_sites, len(changed["sites"]))
        )
    after = type(agreement).parse(plain)
    require(bool(differences(agreement, after)), "nothing changes; name --rounds, --add, --remove or --term")
    return after


def differences(before: Agreement, after: Agreement) -> list[str]:
    """What a new version changes, a line each.

    >>> two = Agreement(name="trial", sites=("a", "b"), shape=(4,), classes=2, rounds=3)
    >>> differences(two, extended(two, rounds=5, add=["c"]))
    ['c is a new site', 'rounds: 3 becomes 5']
    """
    old, new = before.plain(), after.plain()
    changes = [f"{site} is a new site" for site in after.sites if site not in before.sites]
    changes += [f"{site} is no site any more" for site in before.sites if site not in after.sites]
    terms = [name for name in new.keys() | old.keys() if name not in (*LINEAGE, "sites")]
    return changes + [
        f"{name}: {old.get(name)} becomes {new.get(name)}" for name in sorted(terms) if old.get(name) != new.get(name)
    ]


def accepted_terms(agreement: Agreement, path: str) -> Agreement:
    """At a site: the agreement of an app, with the terms of the site's own copy that may change, if there is one.

    That copy may be of the next version, which the site has accepted and the server not yet begun: the app's terms hold
    then. They are those of an app that the site agreed to, or its relay would not have let it in.
    """
    copy = Agreement.read(Path(path)) if path else agreement
    return copy if copy.fingerprint == agreement.fingerprint else agreement


log = logging.getLogger("coterie")


def with_own_terms(agreement: Agreement, path: str) -> Agreement:
    """The agreement of an app, with the terms of one's own copy that may change; in all else both must be the same."""
    if not path:
        return agreement
    copy = Agreement.read(Path(path))
    require(copy.fingerprint == agreement.fingerprint, f"{path}: was changed after this app was packed; start again")
    return copy


class LiveTerms:
    """An agreement whose waiting times follow its file, if it has one; on what results depend cannot change."""

    def __init__(self, agreement: Agreement, path: Path | None = None) -> None:
        self._agreement, self._path = agreement, path
        self._seen = self._stamp()

    def now(self) -> Agreement:
        """The terms as they are now; a file that cannot be read, or changes more, is named and changes nothing."""
        stamp = self._stamp()
        if stamp == self._seen or self._path is None:
            return self._agreement
        self._seen = stamp
        if stamp is None:
            return self._agreement
        try:
            changed = Agreement.read(self._path)
        except (CoterieError, OSError) as error:
            log.warning("%s has changed and cannot be used, the former terms hold: %s", self._path.name, error)
            return self._agreement
        if self._agreement.fingerprint in changed.former:
            log.info("%s has changed: version %d takes over after this round", self._path.name, changed.version)
            return self._agreement
        if changed.fingerprint != self._agreement.fingerprint:
            log.warning("%s has changed in more than waiting times; the former terms hold", self._path.name)
            return self._agreement
        changes = _differences(self._agreement, changed)
        log.info("%s has changed: %s", self._path.name, changes or "nothing that matters")
        self._agreement = changed
        return changed

    def _stamp(self) -> tuple[int, int] | None:
        try:
            about = None if self._path is None else self._path.stat()
        except OSError:
            return None
        return None if about is None else (about.st_mtime_ns, about.st_size)


def _differences(before: Agreement, after: Agreement) -> str:
    old, new = before.plain(), after.plain()
    return ", ".join(f"{name} = {value} (was {old.get(name)})" for name, value in new.items() if value != old.get(name))


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
    for stage in few.parts:
        stage.begin(federation)
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
        moved, taken = start.clone(), value
        for dim in dims:
            taken = taken.index_select(dim, self.old)
        places = [
            self.new.view(-1, *[1] * (value.ndim - 1 - dim))
            if dim in dims
            else torch.arange(value.shape[dim]).view(-1, *[1] * (value.ndim - 1 - dim))
            for dim in range(value.ndim)
        ]
        moved[tuple(places)] = taken
        return moved


def carry_over(
    state: Mapping[str, Tensor], before: Sequence[str], round: int, agreement: Agreement, federation: Federation
) -> None:
    """Bring a new version's federation to where the former one was after a round, given that one's state and sites.

    `federation.sizes` say what is known of those who stay.
    """
    method, way, dims = agreement.kind, Carried(before, agreement.sites), client_dims(agreement)
    method.init(federation)  # once more, with the sizes
    for stage in agreement.parts:
        stage.begin(federation)
    federation.round = round
    for name in ("rounds_taken", "last_round"):
        counts = getattr(federation, name)
        counts.copy_(way.moved(state[name], torch.zeros_like(counts), [0]))
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
        if f"slot.{name}.shared" in state:  # not of a term that is new
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
    way, dims, carried = Carried(before, agreement.sites), client_dims(agreement), dict(saved)
    for key, start in begin.items():
        if key not in saved:
            carried[key] = start  # of a term that is new
        elif key.startswith("value."):
            name = key.removeprefix("value.")
            site_dims = tuple(dim - 1 for dim in dims[name][1:]) if kinds[name].per_client else dims[name]
            carried[key] = way.moved(saved[key], start, site_dims)
    return carried
