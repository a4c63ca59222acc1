"""One site of a federation: trains on its own data, keeps its personal rows, sends what the method declares."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.client.scores import Score
from coterie.client.trainer import train
from coterie.client.worker import Worker
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.slots import Slot
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.store import Store
from coterie.deployment.wire import Expected, Note, Parcel, RefusedError
from coterie.engines.base import Trained, Work, do_work
from coterie.errors import require
from coterie.rounds.collect import collect

log = logging.getLogger("coterie")


class SiteSlot(Slot):
    """A slot of which only one client's row is here, whatever client is asked for."""

    def __init__(self, initial: Tensor, columns: Columns, shared: Columns) -> None:
        super().__init__(initial, 1, columns, shared)

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

    def add_slot(
        self, name: str, columns: str | Columns = "all", shared: str | Columns = "", fill: float | None = None
    ) -> Slot:
        """Create a slot with one row."""
        initial = self.initial if fill is None else torch.full_like(self.initial, fill)
        self.slots[name] = SiteSlot(initial, self.layout.columns(columns), self.layout.columns(shared))
        return self.slots[name]


@dataclass
class _Visit:
    """Other clients' models that came with a task."""

    peers: list[int]
    rows: Tensor | None = None


class SiteWorker(Worker):
    """A worker whose peers' models came by message."""

    visit = _Visit([])

    def peers(self) -> tuple[list[int], Tensor]:
        """The other clients whose models came with this round's task, and their rows `[n, P]`."""
        rows = self.received()[None].repeat(len(self.visit.peers), 1)
        if self.visit.rows is not None:
            sent = self.problem.layout.columns(self.method.uploads(self.federation).get("model", ""))
            sent.put(rows, self.visit.rows)
        return self.visit.peers, rows

    def rows(self) -> dict[str, Tensor]:
        """What the seat holds of each slot in use, as it is now: trained or tuned, in the slot's columns."""
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
        counts = self._counts.tolist() if self.agreement.kind.counts_classes else None
        return {
            "site": self.name,
            "fingerprint": self.agreement.fingerprint,
            "first_weights": self._first_weights,
            "torch": torch.__version__,
            "samples": len(self.problem.train[self.client]),
            "validation": len(self.problem.validation[self.client]),
            "test": len(self.problem.test[self.client]),
            "class_counts": counts,
        }

    def expected(self, note: Note) -> dict[str, Expected]:
        """What a task with this note must carry: just what the method downloads."""
        self._enter(note)
        federation, layout = self.federation, self.federation.layout
        wanted: dict[str, Expected] = {}
        for name, group in note["downloads"].items():
            if name in federation.slots:
                columns = layout.columns(group)
                if not columns <= federation[name].columns:
                    raise RefusedError(f"'{group}' of slot '{name}' is offered, which the slot does not hold")
                wanted[f"slot.{name}"] = Expected((columns.size,))
            elif name in federation.values:
                wanted[f"value.{name}"] = Expected.like(federation.values[name][0])
            else:
                raise RefusedError(f"'{name}' is offered, which the method does not have")
        if note["peers"]:
            sent = layout.columns(self.agreement.kind.uploads(federation).get("model", ""))
            wanted["peers"] = Expected((len(note["peers"]), sent.size))
        return wanted

    def work(self, task: Parcel) -> Parcel:
        """A round: take what the server sends, train, keep what is personal, and answer with the method's uploads."""
        note, federation, method = task.note, self.federation, self.agreement.kind
        begin = time.perf_counter()
        self._take(task)
        answer: Note = {"round": note["round"], "diverged": False}
        if note["test"]:
            answer["received"] = self._test()
        wanted = set(note["probes"])
        probes = tuple(
            probe for probe in method.probes(federation) if probe.name in wanted or probe.name in method.remembers
        )
        work = Work(method.recipe(federation), probes, test=bool(note["test"]))
        rows = {slot: torch.empty(1, federation[slot].width) for slot in work.slots}
        filled = [(slot, matrix[0]) for slot, matrix in rows.items()]
        measured, score, _ = do_work(self.worker, federation, self.client, work, filled)
        me = torch.tensor([self.client])
        trained = Trained(rows, {name: value[None] for name, value in measured.items()})
        uploads, diverged = collect(method, federation, me, trained)
        answer["seconds"] = time.perf_counter() - begin
        if diverged:
            return Parcel({}, answer | {"diverged": True})
        if score is not None:
            answer["trained"] = _summed(score)
        self.store.save(note["round"], self._state() | self._values(), note["since"], self.agreement.toml())
        tensors = {
            f"slot.{name}": uploads.rows(federation.layout.columns(group), name)[0]
            for name, group in note["uploads"].items()
        }
        tensors |= {f"probe.{name}": value[0] for name, value in uploads.probes.items()}
        return Parcel(tensors, answer)

    def finish(self, task: Parcel) -> Parcel:
        """The end: take the last download, keep the finished state, and say how good it is."""
        self._take(task)
        result = self._test()
        about = {"round": str(task.note["round"]), "agreement": self.agreement.toml()}
        tested = {f"tested.{name}": row for name, row in self.worker.rows().items()}
        self.store.save_final(self._state() | self._values() | tested, about)
        return Parcel({}, {"round": task.note["round"], "received": result})

    def _enter(self, note: Note) -> None:
        """Put the federation at the task's round."""
        check_task(note, self.agreement)
        self.federation.round = note["round"]

    def _take(self, task: Parcel) -> None:
        """Go on from the snapshot that counts, with what the server sent on top."""
        note, federation = task.note, self.federation
        self._enter(note)
        self._restore(note["since"])
        federation.taken_part[self.client] = note["since"] > 0
        if note["sizes"]:
            federation.sizes.copy_(torch.tensor(note["sizes"]))
        for name, row in note["values"].items():
            kept = federation.values[name]
            kept[self.client] = torch.tensor(row, dtype=kept.dtype).reshape(kept[self.client].shape)
        for name, group in note["downloads"].items():
            if name in federation.slots:
                self._write(name, federation.layout.columns(group), task.tensors[f"slot.{name}"])
            else:
                value = federation.values[name]
                row = task.tensors[f"value.{name}"]
                value[0 if len(value) == 1 else self.client] = row
        self.worker.visit = _Visit(list(note["peers"]), task.tensors.get("peers"))

    def _write(self, name: str, columns: Columns, row: Tensor) -> None:
        slot, me = self.federation[name], torch.tensor([self.client])
        shared, own = columns & slot.shared_columns, columns & slot.own_columns
        slot.write_shared(shared, shared.within(columns).take(row)[None])
        slot.write_own(me, own, own.within(columns).take(row)[None])

    def _restore(self, since: int) -> None:
        """The rows after the round that the server counted last (0: none)."""
        saved = self.store.snapshot(since) if since else None
        if since and saved is None:
            log.warning("site %s: its rows after round %d are not on its disk; it begins anew", self.name, since)
        state: Mapping[str, Tensor] = self._begin if saved is None else saved
        for name, tensor in self._state().items():
            tensor.copy_(state[name])

    def _state(self) -> dict[str, Tensor]:
        """What outlives a round here: all slots, and the values that never leave."""
        federation = self.federation
        rows = {
            f"slot.{name}.{part}": getattr(slot, part)
            for name, slot in federation.slots.items()
            for part in ("shared", "own")
        }
        remembered = {f"value.{name}": federation.values[name][self.client] for name in self.agreement.kind.remembers}
        return rows | remembered

    def _values(self) -> dict[str, Tensor]:
        """The server's values as this site has them, for whoever predicts with the finished model."""
        values = self.federation.values
        return {f"value.{name}": value[0 if len(value) == 1 else self.client] for name, value in values.items()}

    def _test(self) -> Note:
        self.worker.seat(self.federation, self.client)
        train(self.worker, self.agreement.kind.tune(self.federation))
        return _summed(self.worker.test(self.problem.test[self.client]))


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
    "client": int,
    "test": bool,
    "downloads": dict,
    "uploads": dict,
    "probes": list,
    "peers": list,
    "sizes": list,
    "values": dict,
    "fingerprint": str,
}


def check_task(note: Note, agreement: Agreement) -> None:
    """Refuse a task that is not of this federation, or not one at all."""
    wrong = [key for key, kind in TASK.items() if type(note.get(key)) is not kind]
    if wrong:
        raise RefusedError(f"the task's {', '.join(wrong)} is missing or of the wrong kind")
    if note["fingerprint"] != agreement.fingerprint:
        raise RefusedError("the task is of another agreement than this site's")


def _summed(score: Score) -> Note:
    """The sums of what the task measures; none for what is not finite."""
    return {name: total if math.isfinite(total) else None for name, total in score.sums().items()}
