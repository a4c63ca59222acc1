"""One site of a federation: trains on its own data, keeps its personal rows, sends what the method declares."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from coterie.client.recipe import Measure, Recipe
from coterie.client.scores import TUNING_DIVERGED, Score
from coterie.core.columns import Columns
from coterie.core.pixels import whole
from coterie.data import Dataset
from coterie.data.scaling import AgreedScale, require_columns
from coterie.deployment.agreement import SCALING, Agreement
from coterie.deployment.assessment import Assessment
from coterie.deployment.claims import facts_of, told_moments, unsaid
from coterie.deployment.journal import Journal
from coterie.deployment.messages import Note, RefusedError, one_line
from coterie.deployment.site_data import OwnData, require_scaled
from coterie.deployment.slowed import slowed
from coterie.deployment.store import Store
from coterie.deployment.versions import carried_snapshot
from coterie.deployment.wire import Expected, Parcel
from coterie.deployment.workplace import workplace
from coterie.devices import PROCESSOR
from coterie.engines.base import Trained, Work, do_work, empty_rows, tuned_score
from coterie.errors import CoterieError, require
from coterie.rounds.collect import declared_columns, send, take
from coterie.rounds.stages import Account, coding_of, packed

log = logging.getLogger("coterie")


class Site:
    """What a site does with the messages of its server. `data` is all that it has: nobody else sees it.

    It trains on a `device` of its own choice, which is nobody else's business.
    """

    def __init__(self, agreement: Agreement, name: str, data: Dataset, store: Store, device: str = PROCESSOR) -> None:
        require(name in agreement.sites, f"name = {name}: is not among the sites ({', '.join(agreement.sites)})")
        self.agreement, self.name, self.store = agreement, name, store
        self.client = agreement.sites.index(name)
        self._stages = agreement.parts
        self._hides_results = any(stage.hides_results for stage in self._stages)
        self._accounts: list[Account] = []
        self._data = data  # as it is; what is worked on is brought to the scale that was agreed on, once that is known
        if agreement.scale:
            data = replace(data, inputs=require_columns(data.inputs, agreement.scale, f"data '{data.name}'").clone())
        self._place = workplace(agreement, self.client, data, self._told_size, device)
        self._facts = facts_of(data)
        self._moments = told_moments(whole(data.inputs)[self._place.train]) if agreement.scale else None
        self._scaled_by = torch.empty(0)
        self.problem, self.federation, self.worker = self._place.problem, self._place.federation, self._place.worker
        self._coding = coding_of(self._stages)
        self._begin = {name: tensor.clone() for name, tensor in self._state().items()}
        self._kept: Mapping[str, Tensor] | None = None  # what the open round goes on from
        self._rescued: dict[str, Tensor] | None = None  # what to go on from where that is lost
        self.assessment = Assessment(self._place, data, Journal(store.path), device)

    def _told_size(self, samples: int) -> int:
        """What this site tells of its number of training samples: if it keeps an account of that, what stands there."""
        agreements, begun = (self.agreement.fingerprint, *self.agreement.former), bool(self.store.rounds())
        for stage in self._stages:
            if (account := stage.account(self.store.path, agreements, samples, begun)) is not None:
                self._accounts.append(account)
                samples = account.size
        return samples

    def hello(self) -> Note:
        """What the server needs to know before the first round; where privacy is promised, no exact numbers."""
        counts = self.federation.class_counts[self.client].tolist() if self.federation.asks_class_counts else None
        moments = {"moments": self._moments} if self.agreement.scale else {}
        return moments | {
            "site": self.name,
            "fingerprint": self.agreement.fingerprint,
            "first_weights": self._place.first_weights,
            "torch": torch.__version__,
            "samples": int(self.federation.sizes[self.client]),
            "validation": len(self.problem.validation[self.client]),
            "test": 0 if self._hides_results else len(self.problem.test[self.client]),
            "class_counts": counts,
            "facts": unsaid(self._facts, self.agreement.classes) if self._hides_results else self._facts,
            "snapshots": self.store.rounds(),
        }

    def expected(self, note: Note) -> dict[str, Expected]:
        """What a task with this note must carry: just what it says that this site is owed."""
        self._enter(note)
        federation, layout = self.federation, self.federation.layout
        expected: dict[str, Expected] = {}
        for name, spans in note["slots"].items():
            columns = columns_of(spans)
            if name not in federation.slots or not columns <= federation[name].columns:
                raise RefusedError(f"columns of slot '{name}' are offered that the method does not have")
            if not columns <= self._writable(name, note["since"]):
                raise RefusedError(f"columns of slot '{name}' are offered that this site alone has")
            expected[f"slot.{name}"] = Expected((columns.size,))
        for name in note["values"]:
            if name not in federation.values:
                raise RefusedError(f"value '{name}' is offered, which the method does not have")
            if federation.kinds[name].held_by != "both":
                raise RefusedError(f"value '{name}' is offered, which this site alone has")
            expected[f"value.{name}"] = Expected.like(federation.value_of(name, self.client))
        if note["peers"]:
            sent = layout.columns(self.agreement.kind.uploads(federation).get("model", ""))
            expected["peers"] = Expected((len(note["peers"]), sent.size))
        return expected

    def _writable(self, name: str, since: int) -> Columns:
        """The columns of a slot that a server may write here: none of what sites keep for themselves.

        Of the models that sites train and are judged by, that is what all have in common, what sites upload or have
        uploaded; whoever has not taken part yet may be given a whole one to begin from. All else that travels (whom to
        learn from, what to stay close to) is the server's to say.
        """
        federation, method = self.federation, self.agreement.kind
        slot = federation[name]
        if slot.held_by != "both":
            return Columns()
        if name not in ("model", method.tested) or (name != "model" and not since):
            return slot.columns
        now, columns, seen = federation.round, slot.shared_columns, set[str]()
        for federation.round in range(1, now + 1):
            group = method.uploads(federation).get(name)
            if group is not None and group not in seen:
                seen.add(group)
                columns |= federation.layout.columns(group)
        federation.round = now
        return columns

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
        received = self._test() if note["test"] else None
        if received is not None and not self._hides_results:
            answer["received"] = self._told(received)
        self.assessment.begin(note["round"], note["since"], self._kept, received)
        # The server says which measurements it wants; those that stay here are this site's own business.
        recipe = tuple(
            step
            for step in method.recipe(federation)
            if not isinstance(step, Measure) or step.keep or step.name in note["measures"]
        )
        for account in self._accounts:
            answer["epsilon"] = self._counted(account, note, recipe)
        work = Work(recipe, bool(note["test"]), {self.client: note["peers"]})
        rows = empty_rows(federation, work, 1)
        filled = [(slot, matrix[0]) for slot, matrix in rows.items()]
        measured, score, _ = do_work(self.worker, federation, self.client, work, filled)
        me = torch.tensor([self.client])
        score = None if score is None else score.on_processor()
        trained = Trained(rows, {name: value[None].cpu() for name, value in measured.items()})
        sent = send(federation, recipe, note["uploads"], me, trained, stages=self._stages)
        uploads = take(federation, recipe, sent).uploads
        seconds = time.perf_counter() - begin
        if not self._hides_results:  # it tells how many steps were taken
            answer["seconds"] = seconds
        if sent.diverged:
            self.assessment.diverge()
            return Parcel({}, answer | {"diverged": True})
        if score is not None and not self._hides_results:
            answer["trained"] = self._told(score)
        state = self._state() | self.assessment.train(seconds, note["rounds_taken"])
        self.store.save(
            note["round"],
            state,
            note["since"],
            self.agreement.toml(),
            self.agreement.checkpoints,
            self._data.feature_names,
        )
        self._rescued = None
        tensors = {
            f"slot.{name}": uploads.rows(federation.layout.columns(group), name)[0]
            for name, group in note["uploads"].items()
        }
        tensors |= {f"measured.{name}": value[0] for name, value in uploads.measured.items()}
        tensors = {name: packed(self._coding, tensor) for name, tensor in tensors.items()}
        with suppress(OSError):  # it would save time, no more: a full disk must not cost the answer itself
            self.store.keep_answer(note["round"], mark, tensors, answer)
        reply = Parcel(tensors, answer)
        self.assessment.end(task.bytes, reply.bytes, score)
        return reply

    def finish(self, task: Parcel) -> Parcel:
        """The end: take the last download, keep the finished state, and say how good it is."""
        if not self._take(task):
            log.warning("site %s: what it kept is lost; its finished model begins from what the server sent", self.name)
        result = self._test()
        self.assessment.begin(task.note["round"], task.note["since"], self._kept, result)
        self.assessment.finish(task.bytes)
        about = {"round": str(task.note["round"]), "agreement": self.agreement.toml(), "trained_on": self._trained_on}
        about["feature_names"] = json.dumps(self._data.feature_names)
        tested = {f"tested.{name}": row for name, row in self.worker.held().items()}
        self.store.save_final(self._state() | tested, about)
        sums = None if self._hides_results else self._told(result)
        return Parcel({}, {"round": task.note["round"], "received": sums})

    def _counted(self, account: Account, note: Note, recipe: Recipe) -> float | None:
        """Count a task that keeps to the agreement; the ε with it, none if it is infinite."""
        uploads = dict(self.agreement.kind.uploads(self.federation))
        if note["uploads"] != uploads or note["since"] >= note["round"]:
            raise RefusedError("the task asks for what the method does not send in this round")
        try:
            epsilon = account.count(self.federation, recipe, declared_columns(self.federation, uploads))
        except CoterieError as error:
            raise RefusedError(str(error)) from None
        return epsilon if math.isfinite(epsilon) else None

    @cached_property
    def _trained_on(self) -> str:
        return json.dumps(OwnData.of(self.agreement, self.client, self._data).plain())

    def _enter(self, note: Note) -> None:
        """Put the federation at the task's round."""
        check_task(note, self.agreement)
        self.federation.round = note["round"]
        training = slowed(self.agreement.training, note["halvings"])
        if training != self.federation.training:
            self.federation.training = training
            self.worker.problem = replace(self.worker.problem, training=training)
        # Whoever holds the server could ask for more; what leaves is what the method declares.
        declared = dict(self.agreement.kind.uploads(self.federation))
        if note["uploads"] != declared:
            raise RefusedError(f"the task asks for {one_line(note['uploads'])}; what the method sends is {declared}")

    def _take(self, task: Parcel) -> bool:
        """Go on from the snapshot that counts, with what the server sent on top; False if the snapshot is lost."""
        note, federation = task.note, self.federation
        self._enter(note)
        kept_all = self._restore(note["since"])
        federation.rounds_taken[self.client] = note["rounds_taken"]
        for name, spans in note["slots"].items():
            self._write(name, columns_of(spans), task.tensors[f"slot.{name}"])
        for name in note["values"]:
            if federation.kinds[name].per_client:
                federation.values[name][self.client] = task.tensors[f"value.{name}"]
            else:
                federation.values[name] = task.tensors[f"value.{name}"]
        self.worker.visitors = task.tensors.get("peers")
        if self.agreement.scale:
            self._scale(federation.values[SCALING])
        return kept_all

    def _scale(self, told: Tensor) -> None:
        """Bring the samples to a scale, `[2, n]`: those of the data, whatever was done to them before."""
        if torch.equal(told, self._scaled_by):
            return
        scaling = AgreedScale(*told)
        if not bool(torch.isfinite(told).all()) or not bool((scaling.divisor > 0).all()):
            raise RefusedError("the task does not say how columns are scaled")
        inputs = scaling(whole(self._data.inputs))
        require_scaled(inputs, self.agreement.largest_input, self._data.name)
        self._place.put_inputs(inputs)
        self.assessment.put_inputs(inputs)
        self._scaled_by = told.clone()

    def _write(self, name: str, columns: Columns, row: Tensor) -> None:
        slot, me = self.federation[name], torch.tensor([self.client])
        shared, personal = columns & slot.shared_columns, columns & slot.own_columns
        slot.write_shared(shared, shared.within(columns).take(row)[None])
        slot.write_own(me, personal, personal.within(columns).take(row)[None])

    def _restore(self, since: int) -> bool:
        """The state after the round that the server counted last (0: none); False if it is not on the disk."""
        saved = self.store.snapshot(since) if since else self._rescued
        if since and saved is None:  # the server is going to send anew all that it has; the rest comes from before
            self._rescued = self.store.newest(since)
        if since and saved is not None and (before := self.store.former_sites(since)) is not None:
            saved = carried_snapshot(saved, self._begin, before, self.agreement, self.federation.kinds)
        self._kept = saved
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

    def _test(self) -> Score:
        self.worker.seat(self.federation, self.client)
        return tuned_score(self.worker, keep_scores=True).on_processor()

    def _told(self, score: Score) -> Note:
        """A score as it is sent; the site's own log says if it is not that of the tuned model."""
        if score.untuned:
            log.warning("site %s: round %d: %s", self.name, self.federation.round, TUNING_DIVERGED)
        return _summed(score)


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
    "halvings": int,
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


def check_task(note: Note, agreement: Agreement) -> None:
    """Refuse a task that is not of this federation, or not one at all."""
    wrong = [key for key, kind in TASK.items() if type(note.get(key)) is not kind]
    if wrong:
        raise RefusedError(f"the task's {', '.join(wrong)} is missing or of the wrong kind")
    if note["fingerprint"] != agreement.fingerprint:
        raise RefusedError("the task is of another agreement than this site's")
    words = [*note["values"], *note["measures"], *note["uploads"].values()]
    peers = all(type(peer) is int and 0 <= peer < len(agreement.sites) for peer in note["peers"])
    if not peers or not all(isinstance(word, str) for word in words):
        raise RefusedError("the task names values, measurements, uploads or peers that are none")
    if not 0 <= note["halvings"] <= agreement.halvings:
        raise RefusedError(f"the task halves all rates {note['halvings']} times; agreed are {agreement.halvings}")
    if not 0 <= note["since"] <= note["round"] <= agreement.rounds or note["rounds_taken"] < 0:
        raise RefusedError(f"the task is of round {note['round']} after {note['since']}, of {agreement.rounds}")


def _summed(score: Score) -> Note:
    """The sums of what the task measures; none for what is not finite."""
    return {name: total if math.isfinite(total) else None for name, total in score.sums().items()}
