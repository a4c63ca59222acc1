"""A round from its delivery to its exchange: what is made for clients at download, and what becomes of their answers.

It is the same in a simulation (`coterie.rounds.round`) and for the server of real sites (`coterie.deployment.server`):
in between, clients train, wherever they are. What a network would carry for it is counted by the `ByteCounter`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from coterie.client.recipe import measures
from coterie.core.applying import apply, more_than_mixes
from coterie.core.downloads import owed_bytes, tensor_bytes
from coterie.core.exchange import ACTIONS, DELIVERED, Applied, Mix, Peers, Uploads, actions_of, authored
from coterie.core.federation import Federation
from coterie.core.tracks import delivery_mark, exchange_mark
from coterie.engines.base import PeersOf, Trained, Work
from coterie.methods.base import Method
from coterie.rounds.collect import Collected, Outgoing, declared_columns, take
from coterie.rounds.listeners import Listener, Note, RoundReport
from coterie.rounds.stages import Coding, Course, Stage, packed


def delivers(method: Method) -> bool:
    """Whether the method makes anything at download."""
    return type(method).deliver is not Method.deliver


def require_mixes_alone(method: Method, federation: Federation) -> None:
    """An error, in the words of the federation's reduction, if others reach a client by other ways than mixes.

    What a method does besides shows when it does it.
    """
    name = type(method).__name__
    for value, kind in federation.kinds.items():
        if kind.held_by == "both":
            raise more_than_mixes(federation, name, f"the value '{value}'")
    for slot, rows in federation.slots.items():
        if rows.held_by == "server" and rows.follows is None:
            raise more_than_mixes(federation, name, f"what follows from its '{slot}'")
    shared, sent = (
        federation.layout.columns(one) for one in (method.shared, method.uploads(federation).get("model", ""))
    )
    if not shared <= sent:
        raise more_than_mixes(federation, name, "shared columns that nobody uploads")


class Delivery:
    """What is made for `clients` at download: mixes, which can be undone, and whose models they download besides.

    It is for the round under way; `after` says that this is over and has had its exchange. So many `threads` mix.
    """

    def __init__(
        self, method: Method, federation: Federation, clients: Tensor, after: bool = False, threads: int = 1
    ) -> None:
        self.federation, self.clients = federation, clients
        view = federation.as_seen_by_server()
        # What weighs learners against each other sees what everybody would download now.
        spans = delivers(method) and federation.reduction is not None and federation.reduction.spans_learners
        learners = federation.everyone if spans else clients
        made = actions_of(method.deliver, view, learners, kinds=DELIVERED) if delivers(method) else []
        mixes = [one for one in made if isinstance(one, Mix)]
        self._chosen = [one for one in made if isinstance(one, Peers)]
        if self._chosen and federation.reduction is not None:
            raise more_than_mixes(federation, type(method).__name__, "other clients' models")
        slots = {mix.target: federation[mix.target] for mix in mixes}
        self._before = {
            name: (slot.own[clients.to(slot.own.device)], slot.tracks.copy()) for name, slot in slots.items()
        }
        mark = delivery_mark(federation.round + after)
        uploads, only = Uploads(view, learners, {}, {}), clients if spans else None
        with authored(method.deliver):
            self.applied = apply(mixes, federation, uploads, mark, type(method).__name__, only, threads)

    def peers(self) -> PeersOf:
        """Whose models each client downloads besides its own."""
        if not self._chosen:
            return {}
        chosen = {
            int(client): [peer for one in self._chosen for peer in one.of(int(client))] for client in self.clients
        }
        return {client: peers for client, peers in chosen.items() if peers}

    def undo(self, clients: Tensor | None = None) -> None:
        """Give (some of) the clients back what they held before."""
        if not self._before:
            return
        chosen = (
            torch.ones_like(self.clients, dtype=torch.bool) if clients is None else torch.isin(self.clients, clients)
        )
        for target, (rows, tracks) in self._before.items():
            slot = self.federation[target]
            slot.write_own(self.clients[chosen], slot.own_columns, rows[chosen.to(rows.device)])
            slot.tracks.put_back(tracks, self.clients[chosen])


@contextmanager
def as_delivered(method: Method, federation: Federation, clients: Tensor, threads: int = 1) -> Iterator[Delivery]:
    """Between rounds: while inside, `clients` hold what they would download; afterwards what they held before."""
    delivery = Delivery(method, federation, clients, after=True, threads=threads)
    try:
        yield delivery
    finally:
        delivery.undo()


class OpenRound:
    """A round under way, in a simulation or of real sites: what is made at download, and what becomes of the answers.

    It begins with the delivery to those that are `asked`. In between they train, wherever they are.
    """

    def __init__(
        self, method: Method, federation: Federation, stages: Sequence[Stage], asked: Tensor, threads: int = 1
    ) -> None:
        self.method, self.federation, self.stages, self.threads = method, federation, stages, threads
        federation.round += 1
        self.deliver(asked)

    def deliver(self, asked: Tensor) -> None:
        """Make what these clients download."""
        self.delivery = Delivery(self.method, self.federation, asked, threads=self.threads)
        self.recipe, self.uploads = self.method.recipe(self.federation), self.method.uploads(self.federation)

    @property
    def asked(self) -> Tensor:
        """The ids of all that were asked: `[·]`."""
        return self.delivery.clients

    def ask_more(self, asked: Tensor) -> None:
        """Ask these clients, those that were asked before among them, who are owed the same as then."""
        self.delivery.undo()
        self.deliver(asked)

    def abandon(self) -> None:
        """Undo what was delivered: the round has not begun."""
        self.delivery.undo()
        self.federation.round -= 1

    def collect(self, sent: Outgoing) -> Collected:
        """Take in what counts of the answers; all others keep what they had."""
        collected = take(self.federation, self.recipe, sent, self.stages)
        self.delivery.undo(self.asked[~torch.isin(self.asked, collected.uploads.cohort)])
        return collected

    def exchange(self, collected: Collected) -> list[Applied]:
        """The server step; the mixes of the round, those at download among them."""
        if not len(collected.uploads.cohort):
            return self.delivery.applied
        name, mark = type(self.method).__name__, exchange_mark(self.federation.round)
        actions = actions_of(self.method.exchange, collected.uploads, kinds=ACTIONS)
        with authored(self.method.exchange):
            mixes = apply(actions, self.federation, collected.uploads, mark, name, threads=self.threads)
        return self.delivery.applied + mixes

    def notes(self, collected: Collected, cohort: Tensor) -> Iterator[tuple[str, Note]]:
        """What stages say of the round in which a cohort answered, by their names."""
        declared = declared_columns(self.federation, self.uploads)
        for stage in self.stages:
            out = collected.set_aside.get(stage.name, {})
            note = stage.note(self.federation, Course(self.recipe, declared, self.asked, cohort, out))
            if note is not None:
                yield stage.name, note


def bytes_down(federation: Federation, clients: Tensor, peers: PeersOf, uploads: Mapping[str, str]) -> int:
    """What the clients download in all: what they are owed, and their peers' models as these upload them."""
    models = sum(map(len, peers.values()))
    model = {"model": uploads["model"]} if "model" in uploads else {}
    return int(owed_bytes(federation, clients).sum()) + models * bytes_of_groups(federation, model)


def bytes_up(
    federation: Federation, uploads: Mapping[str, str], measured: Mapping[str, Tensor], coding: Coding | None = None
) -> int:
    """What one client uploads: groups of slots, and what it measured, `[m, ...]` each (m may be 0: all diverged)."""
    each = [values.new_zeros(values.shape[1:]) for values in measured.values()]
    if coding is None:
        return bytes_of_groups(federation, uploads) + sum(map(tensor_bytes, each))
    rows = [torch.zeros(federation.layout.columns(group).size) for group in uploads.values()]
    return sum(tensor_bytes(packed(coding, values)) for values in (*rows, *each))


def bytes_of_groups(federation: Federation, groups: Mapping[str, str]) -> int:
    """The bytes per client of groups of slots."""
    columns = sum(federation.layout.columns(group).size for group in groups.values())
    return columns * federation.initial.element_size()


class ByteCounter(Listener):
    """Adds to each report what the round would have moved over a network, up and down."""

    def __init__(self, method: Method, federation: Federation, coding: Coding | None = None) -> None:
        self._method, self._federation, self._coding = method, federation, coding

    def delivered(self, report: RoundReport, work: Work) -> None:
        """Count what all who were asked download, before anything of it changes."""
        self._uploads = self._method.uploads(self._federation)
        asked = torch.tensor([*report.cohort, *report.missing], dtype=torch.int64)
        report.bytes["down"] = bytes_down(self._federation, asked, work.peers, self._uploads)
        self._kept = {measure.name for measure in measures(work.recipe) if measure.keep}

    def trained(self, report: RoundReport, trained: Trained) -> None:
        """Count what the cohort uploads."""
        sent = {name: values for name, values in trained.measured.items() if name not in self._kept}
        up = bytes_up(self._federation, self._uploads, sent, self._coding)
        report.bytes = {"up": up * len(report.cohort), **report.bytes}
