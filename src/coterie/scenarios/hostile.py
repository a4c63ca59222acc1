"""Who is hostile in a run, and how what they send takes the place of what they trained.

A hostile client goes on from its own honest row, not from what it sent: where the server has not overwritten it since,
its row is put back before it trains. So a factor of ten is ten in every round, and not a power of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.task import Task
from coterie.core.tracks import delivery_mark
from coterie.errors import require
from coterie.options import made
from coterie.rng import numpy_stream, torch_stream
from coterie.rounds.stages import Clients, Incoming, Stage
from coterie.scenarios.attacks import ATTACKS, Attack, Sending

TRUE = "hostile."  # value [h, ·] of a slot: the hostile clients' own rows, where they sent others


def hostile_clients(share: float, keys: Tensor, seed: int) -> Tensor:
    """The ids of round(share · K) clients, at least one and not all, in ascending order: `[h]`.

    The draw is over keys, so relabelled clients are as hostile as before.

    >>> len(hostile_clients(0.25, torch.arange(8), seed=0))
    2
    """
    count = max(1, round(share * len(keys)))
    by_key = torch.argsort(keys)
    drawn = numpy_stream(seed, "hostile").choice(len(keys), count, replace=False)
    return by_key[torch.from_numpy(drawn)].sort().values


@dataclass(frozen=True)
class Hostile(Stage):
    """The hostile clients of a run and what they do."""

    attack: Attack
    clients: Tensor  # [h] ids
    name: ClassVar[str] = "attack"
    of_certain_clients: ClassVar[bool] = True

    @classmethod
    def of(cls, settings: Any, clients: Clients) -> Hostile | None:
        """Those of a run, if it is under attack."""
        return cls.drawn(settings.attack, clients.keys, settings.seed)

    @classmethod
    def things(cls, settings: Any) -> tuple[object, ...]:
        """The attack that is named."""
        return (made(ATTACKS, settings.attack),)

    @classmethod
    def drawn(cls, text: str, keys: Tensor, seed: int) -> Hostile | None:
        """Those that an `attack` draws, which says `NAME:SHARE` and perhaps more; nobody if it says nothing."""
        if not text:
            return None
        attack = made(ATTACKS, text)
        clients = hostile_clients(attack.share, keys, seed)
        require(
            len(clients) < len(keys),
            f"attack = '{text}': {len(clients)} of {len(keys)} clients would be hostile; leave at least one honest",
        )
        return cls(attack, clients)

    @property
    def spoils(self) -> bool:
        """Whether anything else is sent than what was trained and measured."""
        kind = type(self.attack)
        return kind.rows is not Attack.rows or kind.measured is not Attack.measured

    def problem(self, problem: Problem) -> Problem:
        """The same with the labels that the hostile clients train on as they take them."""
        if type(self.attack).labels is Attack.labels:
            return problem
        chosen = set(self.clients.tolist())
        theirs = torch.cat([problem.train[client] for client in sorted(chosen)])
        honest = [index for client, index in enumerate(problem.train) if client not in chosen]
        require(
            not bool(torch.isin(theirs, torch.cat([*honest, *problem.validation, *problem.test])).any()),
            "attack: hostile clients train on samples that others hold too, whose labels would change with theirs; use "
            "a partition without overlaps",
        )
        taken = problem.labels.clone()
        taken[theirs] = self.attack.labels(taken[theirs], problem.task)
        return replace(problem, labels=taken)

    def simulate(self, federation: Federation) -> None:
        """Class counts are those that clients tell."""
        if federation.knows_class_counts:
            federation.class_counts = self.class_counts(federation.class_counts, federation.task)

    def begin(self, federation: Federation) -> None:
        """Make room for the hostile clients' own rows, if they send others."""
        if not self.spoils:
            return
        for name, slot in federation.slots.items():
            if slot.own_columns and slot.held_by != "server":
                federation.add_value(TRUE + name, slot.own[self.clients].clone(), held_by="client")

    def about(self, client: int) -> dict[str, Any]:
        """Whether a client is hostile."""
        return {"hostile": client in self.clients.tolist()}

    def class_counts(self, counts: Tensor, task: Task) -> Tensor:
        """Training samples per client and class, `[K, C]`, as the hostile clients count theirs."""
        told, classes = counts.clone(), torch.arange(counts.shape[1])
        if type(self.attack).labels is not Attack.labels:
            for client in self.clients.tolist():
                taken = self.attack.labels(classes.repeat_interleave(counts[client]), task)
                told[client] = torch.bincount(taken, minlength=counts.shape[1])
        return told

    def before_training(self, federation: Federation, cohort: Tensor) -> None:
        """Those of the cohort hold their own rows again, where the server wrote nothing since."""
        for name, slot in federation.slots.items():
            if (value := TRUE + name) not in federation.values:
                continue
            for place, client in enumerate(self.clients.tolist()):
                last = int(federation.last_round[client])
                if last == 0 or client not in cohort:
                    continue  # it has sent nothing yet, or does not train
                kept = slot.own_columns - slot.tracks.owed(client, since=delivery_mark(last))
                rows = kept.within(slot.own_columns).take(federation.values[value][place][None])
                slot.write_own(torch.tensor([client]), kept, rows)

    def client(self, federation: Federation, incoming: Incoming) -> Incoming:
        """What the hostile ones send in place of what they hold and have measured."""
        held = self.rows_sent(federation, incoming.cohort, incoming.held, incoming.declared)
        measured = self.told(federation, incoming.cohort, incoming.measured)
        return replace(incoming, held=held, measured=measured)

    def rows_sent(
        self,
        federation: Federation,
        cohort: Tensor,
        held: Mapping[str, Tensor],
        declared: Mapping[str, Columns],
    ) -> Mapping[str, Tensor]:
        """The rows that clients hold after training, slot -> `[m, slot width]`, with what the hostile ones send."""
        here = torch.isin(cohort, self.clients)
        if not self.spoils or not bool(here.any()):
            return held
        honest = federation.everyone[~torch.isin(federation.everyone, self.clients)]
        spoilt = dict(held)
        self._remember(federation, cohort[here], {name: rows[here] for name, rows in held.items()})
        for name, columns in declared.items():
            if name not in held:
                continue  # the method's mistake, which its exchange will be told of
            slot = federation[name]
            within = columns.within(slot.columns)
            sending = Sending(
                federation,
                name,
                columns,
                hostile=cohort[here],
                before=slot.rows(cohort[here], columns),
                trained=within.take(held[name][here]),
                honest=honest,
                sent_by=dict(zip(cohort.tolist(), held[name], strict=True)),
            )
            rows = held[name][here]
            within.put(rows, self.attack.rows(sending))
            spoilt[name] = held[name].index_copy(0, here.nonzero()[:, 0], rows)
        return spoilt

    def told(self, federation: Federation, cohort: Tensor, measured: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Measurements, name -> `[m, ...]`, with what the hostile clients say instead; masks and counts stay."""
        here = torch.isin(cohort, self.clients).nonzero()[:, 0].tolist()
        if type(self.attack).measured is Attack.measured or not here:
            return measured
        spoilt = dict(measured)
        for name, values in measured.items():
            if values.is_floating_point():
                spoilt[name] = values.clone()
                for place in here:
                    key = int(federation.keys[cohort[place]])
                    stream = torch_stream(federation.seed, f"attack:{name}", federation.round, key)
                    spoilt[name][place] = self.attack.measured(values[place], stream)
        return spoilt

    def _remember(self, federation: Federation, clients: Tensor, held: Mapping[str, Tensor]) -> None:
        """Keep the own columns of what hostile clients hold, slot -> `[h, slot width]`, before they send others."""
        places = torch.searchsorted(self.clients, clients)
        for name, rows in held.items():
            slot, value = federation[name], TRUE + name
            if value in federation.values:
                own = slot.own_columns.within(slot.columns).take(rows)
                federation.values[value] = federation.values[value].index_copy(0, places, own)
