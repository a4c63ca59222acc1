"""A server step carried out: every mix is read, computed and written block by block, and what is written is marked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from coterie.core.attached import ServerStep
from coterie.core.columns import Columns
from coterie.core.exchange import Action, Applied, Drop, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import for_each
from coterie.core.slots import Slot, require_known
from coterie.errors import CoterieError, require

log = logging.getLogger("coterie")

# Elements mixed at a time: bounds the memory of an exchange to a few such blocks, however many clients and columns.
BLOCK = 1 << 22
EXACT = 1e-9  # what sums of shares may be off by


def block_width(rows: int) -> int:
    """How many columns of so many rows make a block.

    >>> block_width(1024)
    4096
    """
    return max(1, BLOCK // max(rows, 1))


def check_weights(weights: Tensor) -> None:
    """Every W is finite, non-negative, and its rows sum to one.

    >>> check_weights(torch.tensor([[0.5, 0.5]]))
    """
    if weights.ndim != 2:
        raise CoterieError(f"mixing weights must be a matrix; these have the shape {tuple(weights.shape)}")
    if not bool(torch.isfinite(weights).all()):
        raise CoterieError("mixing weights are not finite")
    if bool((weights < 0).any()):
        raise CoterieError(f"mixing weights must be non-negative; the smallest is {float(weights.min()):.3g}")
    worst = float((weights.double().sum(1) - 1).abs().max())
    if worst > 1e-6:
        raise CoterieError(f"each row of mixing weights must sum to 1; one is off by {worst:.3g}")


def apply(
    actions: Iterable[Action],
    federation: Federation,
    uploads: Uploads,
    mark: int,
    method: str = "the method",
    only: Tensor | None = None,
    threads: int = 1,
) -> list[Applied]:
    """Carry out an exchange and return its mixes as applied. Every source is read before any slot is written.

    `method` is who the log names as the origin of what cannot be written. With `only` (ids `[r]`), a reduction sees
    whole mixes, of which just these clients' rows are then made and written. With several `threads`, each mixes blocks
    of columns of its own, the very products that one would compute: whoever does them, the bits are the same.

    Mixes act on each column alone, so they run block of columns by block of columns: within a block all
    products are computed first and written afterwards, in order. What is written is marked: it is owed to whom it
    was written for.
    """
    listed = list(actions)
    if federation.reduction is not None:
        _require_mixes(listed, federation, method)
    if federation.server_step is not None:
        _require_no_steps(listed, federation.server_step, method)
    mixes = [_BoundMix(action, federation, uploads, only) for action in listed if isinstance(action, Mix)]
    bound = [mix for mix in mixes if mix.holds]
    for mix in mixes:
        if not mix.holds:
            assert federation.reduction is not None
            log.warning(
                "round %d: a mix of %s is left out, and what was there stays: so few contributors cannot keep %s",
                federation.round,
                mix.group,
                federation.reduction.spoken,
            )
    union = Columns()
    for mix in bound:
        union = union | mix.columns

    def carry_out(block: Columns) -> None:
        results = [(mix, part, mix.product(part)) for mix in bound if (part := mix.columns & block)]
        for mix, part, values in results:
            mix.write(part, values)

    blocks = union.blocks(block_width(max((len(mix.weights.T) for mix in bound), default=1)))
    # What a reduction counts up from block to block, it counts in their order.
    for_each(carry_out, list(blocks), threads if federation.reduction is None else 1)
    for mix in bound:
        mix.target.dropped = False  # whatever was said before, it is of use again
        mix.target.tracks.wrote(mix.columns, mix.receivers, mark)
    for action in listed:
        if isinstance(action, Drop):
            federation[action.slot].dropped = True
            federation[action.slot].tracks.forget_marks()
        elif isinstance(action, Put) and action.group is None:
            federation.write_value(action.name, action.value, mark)
        elif isinstance(action, Put) and action.group is not None:
            _put(action.name, action.group, action.value, federation, mark, method)
    return [mix.applied() for mix in bound]


def _require_mixes(actions: Iterable[Action], federation: Federation, method: str) -> None:
    """An error if clients would be sent what the server computed itself."""
    for action in actions:
        if isinstance(action, Put) and (action.group is not None or federation.kinds[action.name].held_by != "server"):
            raise more_than_mixes(federation, method, f"what it puts into '{action.name}'")
        if isinstance(action, Mix) and action.source_gate is not None:
            raise more_than_mixes(federation, method, f"means of '{action.group}' in which not every element counts")


def _require_no_steps(actions: Iterable[Action], server: ServerStep, method: str) -> None:
    """An error if a method moves shared rows itself: which step is to be taken is not defined."""
    for action in actions:
        if isinstance(action, Put) and action.group is not None:
            raise server.refusal(f"{method} has a step of its own, which writes '{action.name}'")


def more_than_mixes(federation: Federation, method: str, what: str) -> CoterieError:
    """The refusal of a method in which others reach a client by other ways than mixes."""
    reduction = federation.reduction
    asked, lacking = ("", "") if reduction is None else (reduction.spoken, reduction.lacking)
    return CoterieError(f"{asked}: {method} gives clients more than mixes ({what}), {lacking}")


def _put(slot: str, group: str | Columns, value: Tensor, federation: Federation, mark: int, method: str) -> None:
    """Write what the server computed into shared columns: everybody would train on from there, so finite rows only."""
    if bool(torch.isfinite(value).all()):
        columns = federation.layout.columns(group)
        federation[slot].write_shared(columns, value)
        federation[slot].tracks.wrote(columns, None, mark)
        return
    log.warning(
        "round %d: the server step of %s gave numbers that are not finite for %s of slot '%s'; the old ones stay. "
        "A smaller lr (or server_lr, where the method has one) may help.",
        federation.round,
        method,
        f"'{group}'" if isinstance(group, str) else "columns",
        slot,
    )


def _remedy(mix: Mix, to_shared: bool, clients: int, sources: int) -> str:
    """What to do about weights that do not fit the columns into which they go."""
    if to_shared:
        return (
            f"what is shared is one row for all: give one row of weights [1, {sources}], or make '{mix.group}' "
            "personal (the class's shared names a group without it, such as 'extractor')"
        )
    return f"give a row of weights for each client [{clients}, {sources}], or one for all [1, {sources}]"


def _read(mix: Mix, cohort: Tensor, everyone: Tensor) -> Tensor:
    """The clients whose rows a mix is made of, a column of weights each."""
    if mix.source == "upload":
        return cohort
    return everyone if mix.sources is None else mix.sources


def _written(to: Literal["cohort", "everyone"] | Tensor, cohort: Tensor, everyone: Tensor) -> Tensor:
    """The clients that a mix is written for."""
    if isinstance(to, Tensor):
        return to
    return cohort if to == "cohort" else everyone


class _BoundMix:
    """A mix together with the rows it reads and writes."""

    def __init__(self, mix: Mix, federation: Federation, uploads: Uploads, only: Tensor | None = None) -> None:
        mix = replace(mix, weights=mix.weights.cpu())
        check_weights(mix.weights)
        named = mix.source == "upload" and mix.sources is not None
        require(not named, f"mix of '{mix.group}': uploads are the cohort's; leave sources out")
        self.reduction, self.holds = federation.reduction, True
        self.weights = mix.weights.float()
        self.gate = None if mix.gate is None else mix.gate.to(federation.initial.device)
        self.group = mix.group if isinstance(mix.group, str) else "columns"
        self.columns = federation.layout.columns(mix.group)
        self.target: Slot = federation[mix.target]
        self.from_upload = mix.source == "upload"
        self.source: Slot = federation[mix.of if self.from_upload else mix.source]
        if self.from_upload:
            uploads.rows(self.columns, mix.of)  # refuses columns that were not uploaded
            self.uploaded = uploads.trained[mix.of]
        elif not self.columns <= self.source.columns:
            raise CoterieError(f"mix of '{mix.group}': slot '{mix.source}' does not hold all of its columns")
        rows, sources = mix.weights.shape
        learned_from = _read(mix, uploads.cohort, federation.everyone)
        if sources != len(learned_from):
            many = len(learned_from)
            raise CoterieError(
                f"mix of '{mix.group}': {sources} weights a row for {many} source rows; make it one weight each, "
                f"such as torch.full((1, {many}), 1 / {many}) or by_size(uploads)"
            )
        self.to_shared = self.columns <= self.target.shared_columns
        self.clients = _written(mix.to, uploads.cohort, federation.everyone)
        fits = rows in (1, len(self.clients)) and self.columns <= self.target.own_columns
        if not (fits or (rows == 1 and self.to_shared)):
            raise CoterieError(
                f"mix of '{mix.group}' into slot '{mix.target}': weights {rows} × {sources} do not fit "
                f"{'shared' if self.to_shared else 'personal'} columns of {len(self.clients)} clients; "
                + _remedy(mix, self.to_shared, len(self.clients), sources)
            )
        self.slots, self.step = federation.slots, federation.server_step if self.from_upload else None
        if self.step is not None and not (self.to_shared and self.gate is None):
            raise self.step.refusal(f"the mix of '{self.group}' into '{mix.target}' is no mean that all share")
        self.learned_from = learned_from
        self._bound(mix.weights, f"round {federation.round}: ")
        if only is not None and not self.to_shared:
            self._restrict(only)
        self.counts = torch.ones(len(learned_from), dtype=torch.bool)
        if not self.from_upload:
            self.counts = (self.weights != 0).any(0)
            self.read = learned_from[self.counts]
            require_known(mix.source, self.source, self.read, self.columns)
        # The one thing that a mix brings to the rows, if they lie on a device.
        used = self.weights if bool(self.counts.all()) else self.weights[:, self.counts]
        self.used_weights = used.to(federation.initial.device)
        gated = (1 if self.to_shared else len(self.clients), self.columns.size)
        if self.gate is not None and self.gate.shape != gated:
            raise CoterieError(f"mix of '{mix.group}': its gate is {tuple(self.gate.shape)}, but {gated} are written")
        self.source_gate = None if mix.source_gate is None else mix.source_gate.to(federation.initial.device)
        if self.source_gate is not None:
            self._count_elements(mix.group)
        # Whom the result is for: everybody who shares it, or those of whom anything is written.
        self.receivers = None if self.to_shared else self.clients[self._changes()]
        self.target_name = mix.target

    def applied(self) -> Applied:
        """The mix as it was carried out: of whom each learner learned, over all columns."""
        weights = self.weights
        if self.counted is not None:  # in some columns somebody counts, in others not
            weights = torch.zeros_like(self.weights)
            weights[:, self.counts] = (self.counted / self.columns.size).float()
        return Applied(
            weights=weights,
            group=self.group,
            target=self.target_name,
            gated=self.gate is not None,
            rows=self.clients[:0] if self.to_shared else self.clients,
            columns=self.learned_from,
        )

    def _bound(self, weights: Tensor, when: str) -> None:
        """Let the run's reduction have its say about the weights."""
        self.counted: Tensor | None = None  # [r, m]: what sources counted for, summed over columns
        self.stays: Tensor | None = None  # [r, 1]: the share of each result that stays what was there
        if self.reduction is None:
            return
        learners = None if self.to_shared else self.clients
        what = f"{when}{self.reduction.spoken}: the mix of '{self.group}'"
        reduced = self.reduction.weights(weights, learners, self.learned_from, self._blocks, what)
        if reduced is None:
            self.holds = False
        elif reduced is not weights:
            total = reduced.double().sum(1, keepdim=True)
            if bool((total < 1 - EXACT).any()):
                self.stays = (1 - total).float()
                reduced = reduced / total.where(total > 0, 1)
            self.weights = reduced.float()

    def _count_elements(self, group: str | Columns) -> None:
        """What each source counts for, if it does so in some elements alone: over the columns in which any does."""
        assert self.source_gate is not None
        gated, weights = (len(self.learned_from), self.columns.size), self.used_weights
        if self.source_gate.shape != gated:
            shape = tuple(self.source_gate.shape)
            raise CoterieError(f"mix of '{group}': its source_gate is {shape}, but its sources have {gated}")
        self.source_gate = self.source_gate[self.counts.to(self.source_gate.device)]
        counted, covered = torch.zeros_like(weights), weights.new_zeros(len(weights), 1)
        for part in self.columns.blocks(block_width(len(self.learned_from))):
            given = part.within(self.columns).take(self.source_gate).to(weights.dtype)
            total = weights @ given
            counted += weights * (torch.where(total > 0, 1 / total, 0.0) @ given.T)
            covered += (total > 0).sum(1, keepdim=True)
        self.counted = (counted * self.columns.size / covered.clamp(min=1)).cpu()

    def _restrict(self, only: Tensor) -> None:
        """Keep what is for some of the clients that it was made for."""
        chosen = torch.isin(self.clients, only)
        if len(self.weights) == len(self.clients):
            self.weights = self.weights[chosen]
            self.stays = None if self.stays is None else self.stays[chosen]
        self.gate = None if self.gate is None else self.gate[chosen]
        self.clients = self.clients[chosen]

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Some columns at a time: the sources' rows, and what stands where the result goes."""
        for part in self.columns.blocks(block_width(len(self.learned_from))):
            yield self._sources(part), self._there(part)

    def _sources(self, part: Columns) -> Tensor:
        """Columns of all sources' rows: `[m, |part|]`; zeros for those that the server does not know."""
        if self.from_upload:
            return part.within(self.source.columns).take(self.uploaded)
        rows = torch.zeros(len(self.learned_from), part.size)
        known = self.source.tracks.all_known(part)[self.learned_from]
        rows[known] = self.source.rows(self.learned_from[known], part)
        return rows

    def _there(self, part: Columns) -> Tensor:
        """Columns of what stands where the result goes: `[1, |part|]` if it is shared, else a row per client."""
        if self.to_shared:
            return part.within(self.target.shared_columns).take(self.target.shared)
        return self.target.rows(self.clients, part)

    def _changes(self) -> Tensor:
        """Of which clients anything is written: not of those whose own row is all of their mix, where it lies."""
        changes = torch.ones(len(self.clients), dtype=torch.bool)
        if self.gate is not None:
            changes &= self.gate.any(1).cpu()
        if not self.from_upload and self.source is self.target:
            is_itself = self.clients[:, None] == self.learned_from  # which column is the learner itself
            alone = (self.weights.expand(len(self.clients), -1) == is_itself).all(1) & is_itself.any(1)
            changes &= ~alone
        return changes

    def product(self, part: Columns) -> Tensor:
        """What the source comes to for some of the columns, by default `weights @ source`: `[rows, |part|]`."""
        rows = self._sources(part) if self.from_upload else self.source.rows(self.read, part)
        if self.source_gate is not None:
            given = part.within(self.columns).take(self.source_gate)
            total = self.used_weights @ given.to(rows.dtype)
            return torch.where(total > 0, self.used_weights @ torch.where(given, rows, 0.0) / total, self._there(part))
        if self.reduction is None:
            return self.used_weights @ rows
        values, counted = self.reduction.reduce(self.used_weights, rows)
        if counted is not None:
            self.counted = counted + (0 if self.counted is None else self.counted)
        if self.stays is None:
            return values
        return (1 - self.stays) * values + self.stays * self._there(part)

    def write(self, part: Columns, values: Tensor) -> None:
        """Write the product of some of the columns, where the gate allows it; what all share may step towards it."""
        if self.step is not None:
            values = self.step.moved(self.slots, self.target_name, part, self._there(part), values)
        if self.gate is not None:
            values = torch.where(part.within(self.columns).take(self.gate), values, self._there(part))
        if self.to_shared:
            self.target.write_shared(part, values)
        else:
            self.target.write_own(self.clients, part, values)
