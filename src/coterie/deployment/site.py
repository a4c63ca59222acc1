"""One site of a federation: trains on its own data, keeps its personal rows, sends what the method declares."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.client.recipe import Measure
from coterie.client.scores import TUNING_DIVERGED, Score
from coterie.client.worker import Worker
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.slots import Follows, HeldBy, Slot
from coterie.core.tracks import Tracks
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.store import Store
from coterie.deployment.wire import Expected, Note, Parcel, RefusedError
from coterie.engines.base import Trained, Work, do_work, tuned_score
from coterie.errors import require
from coterie.rounds.collect import collect

log = logging.getLogger("coterie")


class SiteSlot(Slot):
    """A slot of which only one client's row is here, whatever client is asked for."""

    def rows(self, clients: Tensor, columns: Columns | None = None) -> Tensor:
        """The row of this site, as often as clients are asked for."""
        return super().rows(torch.zeros_like(clients), columns)

    def copy_row(self, client: int, out: Tensor) -> None:
        """Copy this site's row into the slot's columns of `out [P]`."""
        super().copy_row(0, out)

    def write_own(self, clients: Tensor, columns: Columns, values: Tensor) -> None:
        """Write into this site's row."""
        super().write_own(torch.zeros_like(clients), columns, values)


class SiteFederation(Federation):
    """A federation as one site sees it: it knows how many others there are, and holds no row of theirs."""

    def _new_slot(self, initial: Tensor, columns: Columns, shared: Columns, held_by: HeldBy, follows: Follows) -> Slot:
        slot = SiteSlot(initial, 1, columns, shared, held_by)
        slot.tracks = Tracks(slot.shared_columns, slot.own_columns, self.clients)
        return slot


class SiteWorker(Worker):
    """A worker whose peers' models came by message."""

    visitors: Tensor | None = None  # [n, |what peers upload|]

    def _peer_rows(self, columns: Columns) -> Tensor:
        return torch.empty(0, columns.size) if self.visitors is None else self.visitors

    def held(self) -> dict[str, Tensor]:
        """What the worker holds of each slot in use, as it is now: trained or tuned, in the slot's columns."""
        slots = self.federation.slots
        used = sorted(self._present & slots.keys())
        return {name: slots[name].columns.take(self._models[name].row) for name in used}


class Site:
    """What a site does with the messages of its server. `data` is all that it has: nobody else sees it."""

    def __init__(self, agreement: Agreement, name: str, data: Dataset, store: Store) -> None:
        require(name in agreement.sites, f"name = {name}: is not among the sites ({', '.join(agreement.sites)})")
        self.agreement, self.name, self.store = agreement, name, store
        self.client = agreement.sites.index(name)
        blueprint = agreement.build()
        self._first_weights = blueprint.fingerprint
        train, validation, test = own_split(agreement, data, self.client)
        empty = torch.empty(0, dtype=torch.int64)
        count = len(agreement.sites)
        self.problem = Problem(
            module=blueprint.module,
            layout=blueprint.layout,
            inputs=data.inputs,
            labels=data.labels,
            **{
                part: tuple(index if client == self.client else empty for client in range(count))
                for part, index in (("train", train), ("validation", validation), ("test", test))
            },
            training=agreement.training,
            task=agreement.task,
            skip_single_samples=blueprint.skip_single_samples,
        )
        self._counts = torch.bincount(data.labels[train], minlength=agreement.classes)
        self.federation = agreement.federation(blueprint, SiteFederation)
        self.federation.sizes[self.client] = len(train)
        self.federation.class_counts[self.client] = self._counts
        assert self.federation.validation_sizes is not None
        self.federation.validation_sizes[self.client] = len(validation)
        agreement.kind.init(self.federation)
        self._begin = {name: tensor.clone() for name, tensor in self._state().items()}
        self.worker = SiteWorker(self.problem, agreement.kind, agreement.seed)

    def hello(self) -> Note:
        """What the server needs to know before the first round."""
        counts = self._counts.tolist() if self.federation.asks_class_counts else None
        return {
            "site": self.name,
            "fingerprint": self.agreement.fingerprint,
            "first_weights": self._first_weights,
            "torch": torch.__version__,
            "samples": len(self.problem.train[self.client]),
            "validation": len(self.problem.validation[self.client]),
            "test": len(self.problem.test[self.client]),
            "class_counts": counts,
            "snapshots": self.store.rounds(),
        }

    def expected(self, note: Note) -> dict[str, Expected]:
        """What a task with this note must carry: just what it says that this site is owed."""
        self._enter(note)
        federation, layout = self.federation, self.federation.layout
        wanted: dict[str, Expected] = {}
        for name, spans in note["slots"].items():
            columns = columns_of(spans)
            if name not in federation.slots or not columns <= federation[name].columns:
                raise RefusedError(f"columns of slot '{name}' are offered that the method does not have")
            wanted[f"slot.{name}"] = Expected((columns.size,))
        for name in note["values"]:
            if name not in federation.values:
                raise RefusedError(f"value '{name}' is offered, which the method does not have")
            wanted[f"value.{name}"] = Expected.like(federation.value_of(name, self.client))
        if note["peers"]:
            sent = layout.columns(self.agreement.kind.uploads(federation).get("model", ""))
            wanted["peers"] = Expected((len(note["peers"]), sent.size))
        return wanted

    def work(self, task: Parcel) -> Parcel:
        """A round: take what the server sends, train, keep what is personal, and answer with the method's uploads."""
        note, federation, method = task.note, self.federation, self.agreement.kind
        begin, mark = time.perf_counter(), task.digest
        self._enter(note)
        if (kept := self.store.answer(note["round"], mark)) is not None:
            log.info("site %s: round %d is asked again; it is not trained again", self.name, note["round"])
            return Parcel(kept[0], kept[1])
        answer: Note = {"round": note["round"], "diverged": False}
        if not self._take(task):
            return Parcel({}, answer | {"lost": True})
        if note["test"]:
            answer["received"] = self._test()
        # The server says which measurements it wants; those that stay here are this site's own business.
        recipe = tuple(
            step
            for step in method.recipe(federation)
            if not isinstance(step, Measure) or step.keep or step.name in note["measures"]
        )
        work = Work(recipe, bool(note["test"]), {self.client: note["peers"]})
        rows = {slot: torch.empty(1, federation[slot].width) for slot in work.slots}
        filled = [(slot, matrix[0]) for slot, matrix in rows.items()]
        measured, score, _ = do_work(self.worker, federation, self.client, work, filled)
        me = torch.tensor([self.client])
        trained = Trained(rows, {name: value[None] for name, value in measured.items()})
        collected = collect(federation, recipe, note["uploads"], me, trained)
        uploads = collected.uploads
        answer["seconds"] = time.perf_counter() - begin
        if collected.diverged:
            return Parcel({}, answer | {"diverged": True})
        if score is not None:
            answer["trained"] = self._told(score)
        self.store.save(note["round"], self._state(), note["since"], self.agreement.toml(), self.agreement.checkpoints)
        tensors = {
            f"slot.{name}": uploads.rows(federation.layout.columns(group), name)[0]
            for name, group in note["uploads"].items()
        }
        tensors |= {f"measured.{name}": value[0] for name, value in uploads.measured.items()}
        with suppress(OSError):  # it would save time, no more: a full disk must not cost the answer itself
            self.store.keep_answer(note["round"], mark, tensors, answer)
        return Parcel(tensors, answer)

    def finish(self, task: Parcel) -> Parcel:
        """The end: take the last download, keep the finished state, and say how good it is."""
        if not self._take(task):
            log.warning("site %s: what it kept is lost; its finished model begins from what the server sent", self.name)
        result = self._test()
        about = {"round": str(task.note["round"]), "agreement": self.agreement.toml()}
        tested = {f"tested.{name}": row for name, row in self.worker.held().items()}
        self.store.save_final(self._state() | tested, about)
        return Parcel({}, {"round": task.note["round"], "received": result})

    def _enter(self, note: Note) -> None:
        """Put the federation at the task's round."""
        check_task(note, self.agreement, self.client)
        self.federation.round = note["round"]
        declared = dict(self.agreement.kind.uploads(self.federation))
        if note["uploads"] != declared:
            # Whatever else a server asks for, it gets what was agreed to.
            raise RefusedError(f"the task asks for {note['uploads']}; the method uploads {declared}")

    def _take(self, task: Parcel) -> bool:
        """Go on from the snapshot that counts, with what the server sent on top; False if the snapshot is lost."""
        note, federation = task.note, self.federation
        self._enter(note)
        found = self._restore(note["since"])
        federation.rounds_taken[self.client] = note["rounds_taken"]
        for name, spans in note["slots"].items():
            self._write(name, columns_of(spans), task.tensors[f"slot.{name}"])
        for name in note["values"]:
            if federation.kinds[name].per_client:
                federation.values[name][self.client] = task.tensors[f"value.{name}"]
            else:
                federation.values[name] = task.tensors[f"value.{name}"]
        self.worker.visitors = task.tensors.get("peers")
        return found

    def _write(self, name: str, columns: Columns, row: Tensor) -> None:
        slot, me = self.federation[name], torch.tensor([self.client])
        shared, own = columns & slot.shared_columns, columns & slot.own_columns
        slot.write_shared(shared, shared.within(columns).take(row)[None])
        slot.write_own(me, own, own.within(columns).take(row)[None])

    def _restore(self, since: int) -> bool:
        """The state after the round that the server counted last (0: none); False if it is not on the disk."""
        saved = self.store.snapshot(since) if since else None
        state: Mapping[str, Tensor] = self._begin if saved is None else saved
        federation = self.federation
        for name, slot in federation.slots.items():
            slot.shared.copy_(state[f"slot.{name}.shared"])
            slot.own.copy_(state[f"slot.{name}.own"])
        for name, kind in federation.kinds.items():
            if kind.per_client:
                federation.values[name][self.client] = state[f"value.{name}"]
            else:
                federation.values[name] = state[f"value.{name}"].clone()
        return not since or saved is not None

    def _state(self) -> dict[str, Tensor]:
        """What outlives a round here: all slots, and all values as this site has them."""
        federation = self.federation
        rows = {
            f"slot.{name}.{part}": getattr(slot, part)
            for name, slot in federation.slots.items()
            for part in ("shared", "own")
        }
        return rows | {f"value.{name}": federation.value_of(name, self.client) for name in federation.values}

    def _test(self) -> Note:
        self.worker.seat(self.federation, self.client)
        return self._told(tuned_score(self.worker))

    def _told(self, score: Score) -> Note:
        """A score as it is sent; the site's own log says if it is not that of the tuned model."""
        if score.untuned:
            log.warning("site %s: round %d: %s", self.name, self.federation.round, TUNING_DIVERGED)
        return _summed(score)


def own_split(agreement: Agreement, data: Dataset, client: int) -> tuple[Tensor, Tensor, Tensor]:
    """A site's training, validation and test samples: by the file's own test part if it has one, else by chance."""
    split = agreement.split
    if data.train_size < len(data):
        train, validation = split.without_validation(np.arange(data.train_size), agreement.seed, client)
        parts = (train, validation, np.arange(data.train_size, len(data)))
    else:
        require(
            len(data) >= 2, f"data '{data.name}': {len(data)} sample; a site needs at least 2, one of them for testing"
        )
        parts = split(np.arange(len(data)), agreement.seed, client)
    return torch.from_numpy(parts[0]), torch.from_numpy(parts[1]), torch.from_numpy(parts[2])


TASK: dict[str, Any] = {
    "round": int,
    "since": int,
    "rounds_taken": int,
    "client": int,
    "test": bool,
    "slots": dict,
    "values": list,
    "uploads": dict,
    "measures": list,
    "peers": list,
    "fingerprint": str,
}


def columns_of(spans: object) -> Columns:
    """The columns that a task names as `[[start, stop], …]`.

    >>> columns_of([[0, 3], [5, 6]]).size
    4
    """
    ordered = isinstance(spans, list) and all(
        isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span) and 0 <= span[0] < span[1]
        for span in spans
    )
    if not isinstance(spans, list) or not ordered:
        raise RefusedError("the task names columns that are none")
    return Columns.of(*((start, stop) for start, stop in spans))


def check_task(note: Note, agreement: Agreement, client: int) -> None:
    """Refuse a task that is not of this federation and for this client, or not one at all."""
    wrong = [key for key, kind in TASK.items() if type(note.get(key)) is not kind]
    if wrong:
        raise RefusedError(f"the task's {', '.join(wrong)} is missing or of the wrong kind")
    if note["fingerprint"] != agreement.fingerprint:
        raise RefusedError("the task is of another agreement than this site's")
    if note["client"] != client:
        raise RefusedError(f"the task is for client {note['client']}; this site is {client}")
    if not 0 <= note["since"] <= note["round"] <= agreement.rounds or not 0 <= note["rounds_taken"] <= note["round"]:
        raise RefusedError("the task is of a round that there is not")
    known = range(len(agreement.sites))
    if not all(type(peer) is int and peer in known for peer in note["peers"]):
        raise RefusedError("the task names peers that are none")
    if not all(isinstance(name, str) for name in (*note["values"], *note["measures"])):
        raise RefusedError("the task names values or measurements that are none")


def _summed(score: Score) -> Note:
    """The sums of what the task measures; none for what is not finite."""
    return {name: total if math.isfinite(total) else None for name, total in score.sums().items()}
