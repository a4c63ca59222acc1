"""The server of a federation: the same exchange as in a simulation, fed by messages from named sites.

Nothing here knows how messages travel. Tasks go out as parcels, answers come back as packed parcels, each is checked
before it counts, and the federation stands on disk after every round.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.client.recipe import keeps, measures, trained_slots
from coterie.core.downloads import begin_anew, owed
from coterie.core.exchange import Applied
from coterie.core.federation import Federation
from coterie.core.tracks import delivery_mark
from coterie.data.scaling import AgreedScale, Moments
from coterie.deployment.agreement import SCALING, Agreement
from coterie.deployment.bounds import bounded_sizes, check_numbers, check_sums
from coterie.deployment.claims import (
    FEWEST_SAMPLES,
    DataFacts,
    Standing,
    check_answer,
    fault_of,
    other_columns,
    said_counts,
    said_moments,
    said_name,
    said_snapshots,
    said_standing,
    says_why,
    unlike,
)
from coterie.deployment.messages import Note, Packed, RefusedError, read_text
from coterie.deployment.slowed import slowed
from coterie.deployment.wire import Expected, Parcel, unpack
from coterie.deployment.workplace import measured_shapes
from coterie.errors import CoterieError
from coterie.rounds.collect import Outgoing, declared_columns, sound_measurements
from coterie.rounds.delivery import Delivery, OpenRound, as_delivered
from coterie.rounds.evaluate import mean_loss
from coterie.rounds.listeners import Note as PartNote
from coterie.rounds.stages import Incoming, coding_of, packed, unpacked

log = logging.getLogger("coterie")


@dataclass
class Report:
    """What happened in a round."""

    round: int
    asked: list[str]
    answered: list[str] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)  # whose answers were set aside, and why
    lost: list[str] = field(default_factory=list)  # sites that had lost what they kept
    refused: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    received: dict[str, Note] = field(default_factory=dict)  # of the round before
    trained: dict[str, Note] = field(default_factory=dict)
    epsilon: dict[str, float | None] = field(default_factory=dict)  # sites' accounts of privacy; none: no bound
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    seconds: dict[str, float] = field(default_factory=dict)
    mixes: list[Applied] = field(default_factory=list)
    parts: dict[str, PartNote] = field(default_factory=dict)  # notes of stages, by their names


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
        self.stages, self._drawing = agreement.parts, agreement.drawing
        self._coding = coding_of(self.stages)
        self._hides_results = any(stage.hides_results for stage in self.stages)
        for stage in self.stages:
            stage.begin(self.federation)
            stage.check(agreement.kind, self.federation)
        self.standing: dict[str, Standing] = {}
        self.halvings = 0  # of all rates, since training diverged at too many sites
        self.finals: dict[str, Note] = {}  # every site's result with its finished model
        self._moments: dict[str, Moments] = {}  # of sites' columns, where a scale is agreed on
        self._begins_anew = False
        self._shapes: dict[str, Expected] = {}  # of what sites measure
        self._open: _Answers | None = None

    @property
    def finished(self) -> bool:
        """Whether the last round is over."""
        return self.federation.round >= self.agreement.rounds

    def halve_rates(self, times: int = 1) -> None:
        """Train with half the rates from now on."""
        self.halvings += times
        self.federation.training = slowed(self.agreement.training, self.halvings)

    @property
    def period(self) -> str:
        """In which of its periods the federation is: within one, sites go on with the data that they began with."""
        every = self.agreement.fresh_data
        return f"{self.agreement.version}.{self.federation.round // every if every else 0}"

    def admit(self, hello: Note, registered: str = "") -> str:
        """Let a site in that says who it is and what it has; the name of the site.

        `registered` is the name that belongs to its key, if it has one. Whoever is refused changes nothing.
        """
        name = said_name(hello, self.agreement, registered, self._blueprint.fingerprint)
        said = said_standing(name, hello, self.agreement, self.period)
        self._require_plausible(name, said.samples)
        counts = said_counts(name, hello, self.agreement, said.samples) if self.federation.asks_class_counts else None
        moments = said_moments(name, hello, self.agreement, said.samples) if self.agreement.scale else None
        self._require_like_others(name, said.facts)
        self._require_snapshot(name, said_snapshots(name, hello))
        self._learn(name, said, counts)
        if moments is not None:
            self._moments[name] = moments
        return name

    def _require_plausible(self, name: str, samples: int) -> None:
        """What a site weighs is agreed on beforehand, and cannot grow in the middle: it decides others' models."""
        most, known = self.agreement.most_samples, self.standing.get(name)
        if samples > most:
            raise RefusedError(f"site {name} says it has {samples:,} training samples; most_samples is {most:,}")
        took_part = bool(self.federation.taken_part[self.agreement.sites.index(name)])
        same = known is not None and known.period == self.period and took_part
        if same and known is not None and samples != known.samples:
            raise RefusedError(
                f"site {name} said it has {known.samples:,} training samples and now says {samples:,}; it must go on "
                "with the data that it began with"
            )

    def _require_like_others(self, name: str, facts: DataFacts) -> None:
        """Who comes when others have trained must have the columns that they have; before, all are compared at once."""
        index = self.agreement.sites.index
        took_part = [site for site in self.standing if site != name and bool(self.federation.taken_part[index(site)])]
        known = {site: self.standing[site].facts for site in took_part if self.standing[site].facts}
        if problem := other_columns({**known, name: facts}):
            raise RefusedError(problem)

    def compare_data(self) -> list[str]:
        """What is odd about sites' data before the first round, a line each; an error if it does not go together."""
        facts = {name: known.facts for name, known in self.standing.items() if known.facts}
        if problem := other_columns(facts):
            raise CoterieError(
                f"{problem}; bring them into one order ('coterie federation client --dry-run' shows a site its own), "
                "then start the server again"
            )
        return unlike(facts)

    def _require_snapshot(self, name: str, kept: list[int]) -> None:
        """A site that lost its disk says so: it is sent everything anew."""
        last = int(self.federation.last_round[self.agreement.sites.index(name)])
        if last and last not in kept:
            self._begin_anew(name)

    def _begin_anew(self, name: str) -> None:
        log.warning("site %s has lost what it kept: it begins anew, and is sent all that there is of it here", name)
        begin_anew(self.federation, self.agreement.sites.index(name))

    def _learn(self, name: str, said: Standing, counts: Tensor | None) -> None:
        """Take a site's data sizes into the federation, and what a method derives from them for its first round."""
        federation, client = self.federation, self.agreement.sites.index(name)
        assert federation.validation_sizes is not None
        federation.validation_sizes[client] = said.validation
        if counts is not None:
            federation.class_counts[client] = counts
        # As long as nobody has trained, methods may begin anew with what is known now; unless those who did have left.
        taken_over = federation.round > 0 and bool(self.agreement.former)
        self._begins_anew = not taken_over and not bool(federation.taken_part.any())
        self.standing[name] = said
        samples = torch.tensor([self.standing.get(site, Standing()).samples for site in self.agreement.sites])
        federation.sizes = bounded_sizes(samples, self.agreement.most_weight)
        if (weight := int(federation.sizes[client])) < said.samples:
            log.warning("site %s says it has %d training samples; it weighs like %d", name, said.samples, weight)

    def open_round(self, present: list[str]) -> dict[str, Parcel]:
        """Begin the next round with some of the sites that are present; their tasks by name."""
        federation, method = self.federation, self.agreement.kind
        if self._begins_anew:
            method.init(federation)
            self._begins_anew = False
        if self.agreement.scale and not bool(federation.values[SCALING].any()):
            self._fix_scale()
        here = torch.tensor(sorted(self.agreement.sites.index(name) for name in present))
        asked = self._drawing.asked(federation, here, federation.round + 1)
        begin = time.perf_counter()
        opened = OpenRound(method, federation, self.stages, asked)
        self._open = _Answers(opened, Report(federation.round, self._names(asked)))
        tasks = self._tasks(opened.delivery)
        self._open.report.bytes["down"] = sum(task.bytes for task in tasks.values())
        self._open.report.seconds["tasks"] = time.perf_counter() - begin
        return tasks

    def _fix_scale(self) -> None:
        """Settle for good what is done to columns, from what all sites that are known have told of theirs.

        A site counts as many samples as it weighs. At least two must have told: of one the others would learn its own.
        """
        sites, sizes, merged = self.agreement.sites, self.federation.sizes.tolist(), None
        for name, told in self._moments.items():
            size = sizes[sites.index(name)]
            own = Moments(size, told.means, told.squares * (size / told.count))
            merged = own if merged is None else merged.merged(own)
        if merged is None or len(self._moments) < min(2, len(sites)):
            raise CoterieError(
                f"scale = {self.agreement.scale}: {len(self._moments)} of {len(sites)} sites have the "
                f"{FEWEST_SAMPLES} training samples of which a site tells its means; at least 2 must: wait for more "
                "sites (least_sites), or leave scale out"
            )
        self.put_scale(AgreedScale.standard(merged))
        log.info("columns are scaled by what %s told of theirs", ", ".join(self._moments))

    def put_scale(self, scaling: AgreedScale) -> None:
        """Let every site bring its columns to this scale, before its first round."""
        self.federation.write_value(SCALING, torch.stack([scaling.shift, scaling.divisor]), delivery_mark(1))

    def ask_more(self, names: list[str]) -> dict[str, Parcel]:
        """The tasks of further sites in the open round, or once more of those that were asked: too few have answered.

        Whoever was asked before is owed the same as then.
        """
        round = self._opened()
        new = sorted(self.agreement.sites.index(name) for name in names if name not in round.report.asked)
        if new:
            round.opened.ask_more(torch.cat([round.opened.asked, torch.tensor(new)]).sort().values)
            round.report.asked = self._names(round.opened.asked)
        found = self._tasks(round.opened.delivery, names)
        round.report.bytes["down"] += sum(task.bytes for task in found.values())
        return found

    def _names(self, clients: Tensor) -> list[str]:
        return [self.agreement.sites[client] for client in clients.tolist()]

    def _tasks(self, delivery: Delivery, names: list[str] | None = None) -> dict[str, Parcel]:
        """What the delivery's clients (or some) are to do, and all that they are owed for it."""
        peers = delivery.peers()
        named = {self.agreement.sites[client]: client for client in delivery.clients.tolist()}
        return {
            name: self._task(client, list(peers.get(client, ())))
            for name, client in named.items()
            if names is None or name in names
        }

    def _task(self, client: int, peers: list[int]) -> Parcel:
        federation, method = self.federation, self.agreement.kind
        uploads, me, due = dict(method.uploads(federation)), torch.tensor([client]), owed(federation, client)
        tensors = {f"slot.{name}": federation[name].rows(me, columns)[0] for name, columns in due.slots.items()}
        tensors |= {f"value.{name}": federation.value_of(name, client) for name in due.values}
        if peers:
            sent = federation.layout.columns(uploads.get("model", ""))
            tensors["peers"] = federation["model"].rows(torch.tensor(peers), sent)
        since = int(federation.last_round[client])
        note: Note = {
            "round": federation.round,
            "since": since,
            "rounds_taken": int(federation.rounds_taken[client]) if since else 0,
            "client": client,
            "test": True,
            "slots": {name: [list(span) for span in columns.spans] for name, columns in due.slots.items()},
            "values": list(due.values),
            "uploads": uploads,
            "measures": [measure.name for measure in measures(method.recipe(federation))],
            "peers": peers,
            "halvings": self.halvings,
            "fingerprint": self.agreement.fingerprint,
        }
        return Parcel(tensors, note)

    def receive(self, name: str, message: Packed) -> None:
        """Take a site's answer to its task; one that is not as agreed is refused and named."""
        round = self._opened()
        if name not in round.report.asked or name in round.answers:
            raise RefusedError(f"site {name} was not asked")
        try:
            bare = not message.buffers and says_why(read_text(message.text)["note"])
            answer = unpack(message, {} if bare else self.expected_answer())
            check_answer(answer.note, round.report.round, self.agreement.task)
            answer = self._decoded(answer)
            self._check_bounds(name, answer)
            self._check_measured(name, answer)
        except Exception as error:  # whatever a message does to us is its sender's fault, and nobody else's
            round.report.refused[name] = reason = fault_of(error)
            log.warning("round %d: site %s is refused: %s", round.report.round, name, reason)
            return
        if answer.note.get("lost"):
            round.report.lost.append(name)
            self._begin_anew(name)
            return
        if answer.note["diverged"]:
            round.report.diverged.append(name)
            log.warning("round %d: site %s diverged; it keeps its last good model", round.report.round, name)
            return
        round.answers[name] = answer
        round.report.refused.pop(name, None)
        round.report.bytes["up"] += message.bytes
        if self._hides_results:
            round.report.epsilon[name] = answer.note.get("epsilon")
        for moment in ("received", "trained"):
            if answer.note.get(moment):
                getattr(round.report, moment)[name] = answer.note[moment]

    def _decoded(self, answer: Parcel) -> Parcel:
        """An answer whose numbers are as they were before they were coded for their way."""
        if self._coding is None or not answer.tensors:
            return answer
        tensors = dict(answer.tensors)
        for name, plain in self._plain_answer().items():
            if plain.dtype == torch.float32:
                tensors[name] = unpacked(self._coding, tensors[name], plain.shape)
                if not plain.accepts(tensors[name]):
                    raise RefusedError(f"tensor '{name}' holds NaN or infinite values")
        return Parcel(tensors, answer.note)

    def _check_bounds(self, name: str, answer: Parcel) -> None:
        """Refuse numbers that nobody could compute with, and more samples than the site said that it has."""
        check_numbers(answer)
        known = self.standing.get(name, Standing())
        for moment in ("received", "trained"):
            check_sums(answer.note.get(moment), known.test)

    def _check_measured(self, name: str, answer: Parcel) -> None:
        """Refuse what a site cannot have measured, by what it has said of its classes."""
        view, client = self.federation.as_seen_by_server(), torch.tensor([self.agreement.sites.index(name)])
        recipe = self.agreement.kind.recipe(self.federation)
        for measurement, good in sound_measurements(view, recipe, client, _measured([answer])).items():
            if not bool(good.all()):
                raise RefusedError(f"its measurement '{measurement}' is not finite, or not of the classes that it has")

    def expected_answer(self) -> dict[str, Expected]:
        """What an answer of the open round must hold, as it travels."""
        return {
            name: Expected.like(packed(self._coding, torch.zeros(plain.shape, dtype=plain.dtype)), plain.finite)
            if self._coding is not None
            else plain
            for name, plain in self._plain_answer().items()
        }

    def _plain_answer(self) -> dict[str, Expected]:
        """The same before it is coded for its way."""
        federation, method, round = self.federation, self.agreement.kind, self._opened()
        if round.expected is None:
            uploads = method.uploads(federation)
            round.expected = {
                f"slot.{slot}": Expected((federation.layout.columns(group).size,)) for slot, group in uploads.items()
            }
            names = [measure.name for measure in measures(method.recipe(federation)) if not measure.keep]
            if not self._shapes.keys() >= set(names):
                self._shapes |= measured_shapes(self.agreement, self._blueprint, federation.round)
            round.expected |= {f"measured.{name}": self._shapes[name] for name in names}
        return round.expected

    @property
    def asked(self) -> list[str]:
        """The sites that were asked in the open round."""
        return list(self._opened().report.asked)

    @property
    def answered(self) -> list[str]:
        """The sites whose answers of the open round count so far."""
        return list(self._opened().answers)

    @property
    def settled(self) -> list[str]:
        """The sites that have nothing more to say in the open round: they answered, or diverged."""
        return [*self.answered, *self._opened().report.diverged]

    @property
    def quarantined(self) -> list[str]:
        """The sites whose answers do not count for now."""
        return self._names(torch.tensor([c for stage in self.stages for c in stage.out(self.federation)]))

    def close_round(self) -> Report:
        """Mix what has come in. Sites that were asked and have not answered keep what they had."""
        round = self._opened()
        begin = time.perf_counter()
        report = round.report
        report.answered = [name for name in report.asked if name in round.answers]
        handled = {*report.answered, *report.diverged, *report.lost, *report.refused, *report.quarantined}
        report.missing = [name for name in report.asked if name not in handled]
        answered = torch.tensor([self.agreement.sites.index(name) for name in report.answered], dtype=torch.int64)
        incoming = self._incoming(answered, [round.answers[name] for name in report.answered])
        collected = round.opened.collect(Outgoing(incoming))
        for client, reason in (both for out in collected.set_aside.values() for both in out.items()):
            site = self.agreement.sites[client]
            report.quarantined[site] = reason
            report.trained.pop(site, None)
            log.warning("round %d: the answer of site %s is set aside: %s", report.round, site, reason)
        report.diverged += self._names(torch.tensor(collected.diverged, dtype=torch.int64))
        report.answered = self._names(collected.uploads.cohort)
        report.mixes += round.opened.exchange(collected)
        report.parts |= dict(round.opened.notes(collected, answered))
        report.seconds["exchange"] = time.perf_counter() - begin
        self._open = None
        return report

    def _incoming(self, cohort: Tensor, answers: list[Parcel]) -> Incoming:
        """The answers as a simulation collects them: the uploaded columns are new, all others as they were."""
        federation, method = self.federation, self.agreement.kind
        recipe, uploads = method.recipe(federation), method.uploads(federation)
        declared = declared_columns(federation, uploads)
        if not answers:
            return Incoming(cohort, {}, declared, {})
        changed = {*trained_slots(recipe), *(keep.slot for keep in keeps(recipe)), *uploads}
        held = {slot: federation[slot].rows(cohort) for slot in sorted(changed)}
        for slot, columns in declared.items():
            sent = torch.stack([answer.tensors[f"slot.{slot}"] for answer in answers])
            columns.within(federation[slot].columns).put(held[slot], sent)
        losses = [mean_loss(answer.note.get("trained") or {}) for answer in answers]
        return Incoming(cohort, held, declared, _measured(answers), losses)

    def abandon_round(self) -> Report:
        """Undo a round that too few answered."""
        round = self._opened()
        round.opened.abandon()
        self._open = None
        return round.report

    def farewells(self, present: list[str]) -> dict[str, Parcel]:
        """The last download of every present site that ever took part or could."""
        clients = torch.tensor([self.agreement.sites.index(name) for name in present])
        with as_delivered(self.agreement.kind, self.federation, clients) as delivery:
            return self._tasks(delivery)

    def part(self, name: str, packed: Packed) -> None:
        """Take note of how good a site's finished model is."""
        try:
            note = unpack(packed, {}).note
            # Where privacy is promised, nobody is told how good a model is.
            told = not self._hides_results
            if told and not self.agreement.task.accepts(note.get("received")):
                raise RefusedError("its result is malformed")
            if told:
                check_sums(note["received"], self.standing.get(name, Standing()).test)
        except Exception as error:
            log.warning("the farewell of site %s is refused: %s", name, fault_of(error))
            return
        self.finals[name] = note["received"] if told else {}

    def _opened(self) -> _Answers:
        assert self._open is not None, "no round is open"
        return self._open


def _measured(answers: list[Parcel]) -> dict[str, Tensor]:
    """What sites measured, by name: `[m, ...]`."""
    names = [name for name in answers[0].tensors if name.startswith("measured.")]
    return {name.removeprefix("measured."): torch.stack([one.tensors[name] for one in answers]) for name in names}


@dataclass
class _Answers:
    """A round under way, with what has come in so far."""

    opened: OpenRound
    report: Report
    answers: dict[str, Parcel] = field(default_factory=dict)
    expected: dict[str, Expected] | None = None
