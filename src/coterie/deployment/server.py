"""The server of a federation: the same exchange as in a simulation, fed by messages from named sites.

Nothing here knows how messages travel. Tasks go out as parcels, answers come back as packed parcels, each is checked
before it counts, and the federation stands on disk after every round.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.core.exchange import Applied, apply
from coterie.core.federation import Federation
from coterie.core.task import Task
from coterie.deployment.agreement import Agreement
from coterie.deployment.rehearsal import probe_shapes
from coterie.deployment.wire import Expected, Note, Packed, Parcel, RefusedError, unpack
from coterie.engines.base import Trained, Work
from coterie.methods.base import Method
from coterie.rounds.collect import collect
from coterie.rounds.delivery import Delivery, as_delivered
from coterie.rounds.sampling import draw_cohort

log = logging.getLogger("coterie")


@dataclass
class Standing:
    """What the server knows of a site."""

    samples: int = 0
    validation: int = 0
    test: int = 0
    since: int = 0  # the last round in which its answer counted


@dataclass
class Report:
    """What happened in a round."""

    round: int
    asked: list[str]
    answered: list[str] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    received: dict[str, Note] = field(default_factory=dict)  # of the round before
    trained: dict[str, Note] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    seconds: dict[str, float] = field(default_factory=dict)
    mixes: list[Applied] = field(default_factory=list)


class Server:
    """A federation and its sites' standing. Rounds are opened, answered and closed (or given up)."""

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self._blueprint = agreement.build()
        self.federation: Federation = agreement.federation(self._blueprint)
        assert self.federation.validation_sizes is not None
        # Nobody has said yet what it has; a method only wants to know whether anything is set aside.
        self.federation.validation_sizes.fill_(int(agreement.validation > 0))
        agreement.kind.check(self.federation)
        self.federation.validation_sizes.zero_()
        agreement.kind.init(self.federation)
        self.standing: dict[str, Standing] = {}
        self.finals: dict[str, Note] = {}  # every site's result with its finished model
        self._begins_anew = False
        self._shapes: dict[str, Expected] = {}  # of what sites measure
        self._open: _OpenRound | None = None

    @property
    def finished(self) -> bool:
        """Whether the last round is over."""
        return self.federation.round >= self.agreement.rounds

    def admit(self, hello: Note) -> str:
        """Let a site in that says who it is and what it has; the name of the site."""
        name, agreement = hello.get("site"), self.agreement
        if not isinstance(name, str) or name not in agreement.sites:
            raise RefusedError(f"'{name}' is not among the federation's sites")
        if hello.get("fingerprint") != agreement.fingerprint:
            raise RefusedError(f"site {name} has another agreement; give it the server's federation.toml")
        if hello.get("first_weights") != self._blueprint.fingerprint:
            raise RefusedError(
                f"site {name} begins with other weights (its PyTorch is {hello.get('torch')}, here it is "
                f"{torch.__version__}); install the same release"
            )
        sizes = [hello.get(key) for key in ("samples", "validation", "test")]
        if not all(type(size) is int and 0 <= size < 1 << 40 for size in sizes) or not sizes[0]:
            raise RefusedError(f"site {name} says it has {sizes} samples")
        samples, validation, test = (int(size or 0) for size in sizes)
        self._learn(name, samples, validation, self._counted(name, hello, samples))
        known = self.standing.get(name, Standing())
        self.standing[name] = Standing(samples, validation, test, known.since)
        return name

    def _counted(self, name: str, hello: Note, samples: int) -> Tensor | None:
        """How many samples of each class the site has, where the method needs that."""
        if not self.agreement.kind.counts_classes:
            return None
        counts = hello.get("class_counts")
        whole = isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts)
        if not whole or len(counts or ()) != self.agreement.classes or sum(counts or ()) != samples:
            raise RefusedError(f"site {name} does not say how many samples of each class it has")
        return torch.tensor(counts)

    def _learn(self, name: str, samples: int, validation: int, counts: Tensor | None) -> None:
        """Take a site's data sizes into the federation, and what a method derives from them for its first round."""
        federation, client = self.federation, self.agreement.sites.index(name)
        federation.sizes[client] = samples
        assert federation.validation_sizes is not None
        federation.validation_sizes[client] = validation
        if counts is not None:
            federation.class_counts[client] = counts
        # As long as nobody has trained, methods may begin anew with what is known now.
        self._begins_anew = not bool(federation.taken_part.any())

    def open_round(self, present: list[str]) -> dict[str, Parcel]:
        """Begin the next round with some of the sites that are present; their tasks by name."""
        federation, method = self.federation, self.agreement.kind
        if self._begins_anew:
            method.init(federation)
            self._begins_anew = False
        federation.round += 1
        here = torch.tensor(sorted(self.agreement.sites.index(name) for name in present))
        drawn = draw_cohort(federation.keys[here], self.agreement.join, federation.seed, federation.round)
        cohort = here[drawn]
        names = [self.agreement.sites[client] for client in cohort.tolist()]
        begin = time.perf_counter()
        self._open = _OpenRound(cohort, Delivery(method, federation, cohort), Report(federation.round, names))
        tasks = {name: self._task(client) for name, client in zip(names, cohort.tolist(), strict=True)}
        self._open.report.bytes["down"] = sum(task.bytes for task in tasks.values())
        self._open.report.seconds["tasks"] = time.perf_counter() - begin
        return tasks

    def _task(self, client: int) -> Parcel:
        federation, method = self.federation, self.agreement.kind
        name = self.agreement.sites[client]
        downloads, uploads = method.received_by(federation, client), dict(method.uploads(federation))
        me = torch.tensor([client])
        tensors: dict[str, Tensor] = {}
        for source, group in downloads.items():
            if source in federation.slots:
                tensors[f"slot.{source}"] = federation[source].rows(me, federation.layout.columns(group))[0]
            else:
                value = federation.values[source]
                tensors[f"value.{source}"] = value[0 if len(value) == 1 else client]
        peers = list(method.peers(federation, client))
        if peers:
            sent = federation.layout.columns(uploads.get("model", ""))
            tensors["peers"] = federation["model"].rows(torch.tensor(peers), sent)
        since = self.standing[name].since
        note: Note = {
            "round": federation.round,
            "since": since,
            "client": client,
            "test": True,
            "downloads": downloads,
            "uploads": uploads,
            "probes": [probe.name for probe in method.probes(federation)],
            "peers": peers,
            "sizes": federation.sizes.tolist() if type(method).peers is not Method.peers else [],
            "values": self._small_values(client, downloads, first=since == 0),
            "fingerprint": self.agreement.fingerprint,
        }
        return Parcel(tensors, note)

    def _small_values(self, client: int, downloads: dict[str, str], first: bool) -> dict[str, Any]:
        """The client's number in values that hold one for each client; in its first round, what it is to remember."""
        federation, method = self.federation, self.agreement.kind
        found = {}
        for name, value in federation.values.items():
            for_each = len(value) == federation.clients and name not in downloads
            if for_each and (value[client].numel() == 1 if name not in method.remembers else first):
                found[name] = value[client].tolist()
        return found

    def receive(self, name: str, packed: Packed) -> None:
        """Take a site's answer to its task; one that is not as agreed is refused and named."""
        round = self._opened()
        if name not in round.report.asked or name in round.answers:
            raise RefusedError(f"site {name} was not asked")
        try:
            answer = unpack(packed, {} if _says_diverged(packed) else self.expected_answer())
            _check_answer(answer.note, round.report.round, self.agreement.task)
        except RefusedError as error:
            round.report.refused[name] = str(error)
            log.warning("round %d: site %s is refused: %s", round.report.round, name, error)
            return
        if answer.note["diverged"]:
            round.report.diverged.append(name)
            log.warning("round %d: site %s diverged; it keeps its last good model", round.report.round, name)
            return
        round.answers[name] = answer
        round.report.bytes["up"] += packed.bytes
        for moment in ("received", "trained"):
            if answer.note.get(moment):
                getattr(round.report, moment)[name] = answer.note[moment]

    def expected_answer(self) -> dict[str, Expected]:
        """What an answer of the open round must hold."""
        federation, method, round = self.federation, self.agreement.kind, self._opened()
        if round.expected is None:
            uploads = method.uploads(federation)
            round.expected = {
                f"slot.{slot}": Expected((federation.layout.columns(group).size,)) for slot, group in uploads.items()
            }
            names = [probe.name for probe in method.probes(federation) if probe.name not in method.remembers]
            if not self._shapes.keys() >= set(names):
                self._shapes |= probe_shapes(self.agreement, self._blueprint, federation.round)
            round.expected |= {f"probe.{name}": self._shapes[name] for name in names}
        return round.expected

    @property
    def answered(self) -> int:
        """How many answers of the open round count so far."""
        return len(self._opened().answers)

    def close_round(self) -> Report:
        """Mix what has come in. Sites that were asked and have not answered keep what they had."""
        federation, method, round = self.federation, self.agreement.kind, self._opened()
        begin = time.perf_counter()
        report = round.report
        report.answered = [name for name in report.asked if name in round.answers]
        handled = {*report.answered, *report.diverged, *report.refused}
        report.missing = [name for name in report.asked if name not in handled]
        counted = torch.tensor([self.agreement.sites.index(name) for name in report.answered], dtype=torch.int64)
        round.delivery.undo(round.cohort[~torch.isin(round.cohort, counted)])
        report.mixes += round.delivery.applied
        if report.answered:
            trained, sent = self._gathered(counted, [round.answers[name] for name in report.answered])
            uploads, _ = collect(method, federation, counted, trained, sent)
            report.mixes += apply(method.exchange(uploads), federation, uploads)
        for name in report.answered:
            self.standing[name].since = report.round
        report.seconds["exchange"] = time.perf_counter() - begin
        self._open = None
        return report

    def _gathered(self, cohort: Tensor, answers: list[Parcel]) -> tuple[Trained, dict[str, Tensor]]:
        """The answers as a simulation's training gives them: the uploaded columns are new, all others as they were."""
        federation, method = self.federation, self.agreement.kind
        work = Work(method.recipe(federation))
        rows = {slot: federation[slot].rows(cohort) for slot in work.slots}
        sent = {}
        for slot, group in method.uploads(federation).items():
            uploaded = torch.stack([answer.tensors[f"slot.{slot}"] for answer in answers])
            if slot in rows:
                federation.layout.columns(group).within(federation[slot].columns).put(rows[slot], uploaded)
            else:
                sent[slot] = uploaded
        names = [name for name in answers[0].tensors if name.startswith("probe.")]
        probes = {
            name.removeprefix("probe."): torch.stack([answer.tensors[name] for answer in answers]) for name in names
        }
        return Trained(rows, probes), sent

    def abandon_round(self) -> Report:
        """Undo a round that too few answered."""
        round = self._opened()
        round.delivery.undo()
        self.federation.round -= 1
        self._open = None
        return round.report

    def farewells(self, present: list[str]) -> dict[str, Parcel]:
        """The last download of every present site that ever took part or could."""
        clients = torch.tensor([self.agreement.sites.index(name) for name in present])
        with as_delivered(self.agreement.kind, self.federation, clients):
            return {name: self._task(client) for name, client in zip(present, clients.tolist(), strict=True)}

    def part(self, name: str, packed: Packed) -> None:
        """Take note of how good a site's finished model is."""
        try:
            note = unpack(packed, {}).note
            if not self.agreement.task.accepts(note.get("received")):
                raise RefusedError("its result is malformed")
        except RefusedError as error:
            log.warning("the farewell of site %s is refused: %s", name, error)
            return
        self.finals[name] = note["received"]

    def _opened(self) -> _OpenRound:
        assert self._open is not None, "no round is open"
        return self._open


@dataclass
class _OpenRound:
    cohort: Tensor
    delivery: Delivery
    report: Report
    answers: dict[str, Parcel] = field(default_factory=dict)
    expected: dict[str, Expected] | None = None


def _says_diverged(packed: Packed) -> bool:
    """Whether an answer only says that training diverged, and so carries no tensors."""
    return not packed.buffers and '"diverged": true' in packed.text


def _check_answer(note: Note, round: int, task: Task) -> None:
    """Refuse an answer whose note is malformed or of another round."""
    if note.get("round") != round or type(note.get("diverged")) is not bool:
        raise RefusedError(f"it answers round {note.get('round')}, not {round}")
    for moment in ("received", "trained"):
        score = note.get(moment)
        if score is not None and not task.accepts(score):
            raise RefusedError(f"its result '{moment}' is malformed")
