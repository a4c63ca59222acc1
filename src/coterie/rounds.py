"""The server loop: a round trains rows, then mixes them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.engines import Engine, Trained, Work
from coterie.evaluate import Evaluation
from coterie.exchange import Applied, ClientRows, Uploads, apply
from coterie.federation import Federation
from coterie.ledger import declared_bytes, tensor_bytes
from coterie.local import Score
from coterie.methods.method import Method
from coterie.sampling import draw_cohort

# Clients whose downloads are made at one time when everybody is to be tested with what they would receive.
DELIVERY_CHUNK = 64


@dataclass
class RoundReport:
    """What happened in a round."""

    round: int
    cohort: list[int]
    received: Evaluation | None = None
    trained: Evaluation | None = None
    mixes: list[Applied] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)
    tuning_diverged: list[int] = field(default_factory=list)  # tested with the model that was to be tuned
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)


class Rounds:
    """Runs a method on a federation, round by round."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        engine: Engine,
        join: float = 1.0,
        evaluate_every: int = 1,
    ) -> None:
        self.method, self.federation, self.engine = method, federation, engine
        self.join, self.evaluate_every = join, evaluate_every
        # The last evaluation of what everybody received; clients that sit out a round still hold that.
        self.latest: Evaluation | None = None
        self._tuning_diverged: set[int] = set()

    def run_round(self) -> RoundReport:
        """One round: draw the cohort, train, exchange, evaluate at both moments."""
        method, federation = self.method, self.federation
        federation.round += 1
        self._tuning_diverged.clear()
        clock = _Clock()
        cohort = draw_cohort(federation.keys, self.join, federation.seed, federation.round)
        report = RoundReport(federation.round, cohort.tolist())
        wanted = federation.round % self.evaluate_every == 0 or federation.round == federation.rounds

        down = sum(declared_bytes(federation, method.received_by(federation, client)) for client in report.cohort)
        peers = sum(len(method.peers(federation, client)) for client in report.cohort)
        down += peers * declared_bytes(federation, {"model": method.uploads(federation).get("model", "")})
        delivery = Delivery(method, federation, cohort)
        report.mixes += delivery.applied
        clock.lap("exchange")
        work = Work(method.recipe(federation), method.probes(federation), test=wanted)
        trained = self.engine.train(federation, work, cohort)
        clock.lap("train")
        clock.move("train", "evaluate", trained.test_seconds)
        up = declared_bytes(federation, method.uploads(federation))
        up += sum(tensor_bytes(value[0]) for name, value in trained.probes.items() if name not in method.remembers)
        uploads, report.diverged = collect(method, federation, cohort, trained)
        delivery.undo(torch.tensor(report.diverged, dtype=torch.int64))
        clock.lap("exchange")
        if wanted:
            report.trained = self._evaluate_trained(cohort, trained.scores, report.diverged)
            clock.lap("evaluate")

        if len(uploads.cohort):
            report.mixes += apply(method.exchange(uploads), federation, uploads, type(method).__name__)
        report.bytes = {"up": up * len(cohort), "down": down}
        clock.lap("exchange")
        if wanted:
            self.latest = report.received = self.evaluate_received()
            clock.lap("evaluate")
        else:
            self.latest = None
        report.tuning_diverged = sorted(self._tuning_diverged)
        report.seconds = clock.seconds
        return report

    def evaluate_received(self) -> Evaluation:
        """Test everybody with what they would download now."""
        scores = self.scores_received()
        self._notice_tuning(self.federation.everyone, scores)
        return Evaluation.of(scores)

    def _notice_tuning(self, clients: Tensor, scores: list[Score]) -> None:
        """Take note of clients whose tuning diverged."""
        self._tuning_diverged |= {
            client for client, score in zip(clients.tolist(), scores, strict=True) if score.untuned
        }

    def scores_received(self, keep_scores: bool = False) -> list[Score]:
        """Every client's score with what it would download now."""
        everyone = self.federation.everyone
        if not _delivers(self.method):
            return self.engine.test(self.federation, everyone, keep_scores)
        scores: list[Score] = []
        for clients in everyone.split(DELIVERY_CHUNK):
            with as_delivered(self.method, self.federation, clients):
                scores += self.engine.test(self.federation, clients, keep_scores)
        return scores

    def _evaluate_trained(self, cohort: Tensor, scores: list[Score], diverged: list[int]) -> Evaluation:
        """The cohort with its trained models, everybody else (who diverged, too) with the model they hold."""
        if diverged:
            held = dict(zip(diverged, self.engine.test(self.federation, torch.tensor(diverged)), strict=True))
            scores = [held.get(client, score) for client, score in zip(cohort.tolist(), scores, strict=True)]
        self._notice_tuning(cohort, scores)
        newest = Evaluation.of(scores)
        if len(cohort) == self.federation.clients:
            return newest
        # What a client that tunes shows depends on the round, so the last evaluation does not tell.
        if self.latest is None or _delivers(self.method) or self.method.tune(self.federation):
            resting = torch.ones(self.federation.clients, dtype=torch.bool)
            resting[cohort] = False
            others = self.federation.everyone[resting]
            rested = self.engine.test(self.federation, others)
            self._notice_tuning(others, rested)
            by_client = dict(zip(others.tolist(), rested, strict=True))
            by_client |= dict(zip(cohort.tolist(), scores, strict=True))
            return Evaluation.of([by_client[client] for client in range(self.federation.clients)])
        return self.latest.updated(cohort.numpy(), newest)


def collect(
    method: Method,
    federation: Federation,
    cohort: Tensor,
    trained: Trained,
    sent: Mapping[str, Tensor] | None = None,
) -> tuple[Uploads, list[int]]:
    """Keep every client's personal columns with it, and gather what the method declared as uploads.

    A client whose rows are not finite is left out: it keeps its last good row and is named. `sent` are rows
    `[m, |uploaded columns|]` of slots that came by message and count instead of what would follow from training.
    """
    finite = torch.ones(len(cohort), dtype=torch.bool)
    for rows in trained.rows.values():
        finite &= _finite_rows(rows)
    diverged = cohort[~finite].tolist()
    if diverged:
        cohort = cohort[finite]
        trained = Trained(
            {slot: rows[finite] for slot, rows in trained.rows.items()},
            {name: value[finite] for name, value in trained.probes.items()},
        )
    around = ClientRows(federation, cohort, trained.rows)
    kept = {name: keep(around) for name, keep in method.keeps(federation).items()}
    held = {**trained.rows, **kept}
    declared = {name: federation.layout.columns(group) for name, group in method.uploads(federation).items()}
    for name, rows in (sent or {}).items():
        declared[name].within(federation[name].columns).put(held[name], rows)
    for name, rows in held.items():
        slot = federation[name]
        slot.write_own(cohort, slot.own_columns, slot.own_columns.within(slot.columns).take(rows))
    for name in method.remembers if set(method.remembers) <= trained.probes.keys() else ():
        federation.values[name] = federation.values[name].index_copy(0, cohort, trained.probes[name])
    federation.taken_part[cohort] = True
    probes = {name: value for name, value in trained.probes.items() if name not in method.remembers}
    return Uploads(federation, cohort, held, declared, probes), diverged


def _finite_rows(rows: Tensor) -> Tensor:
    """Which rows hold finite numbers only: a sum is finite unless an element is not (or it overflows)."""
    sums = torch.isfinite(rows.sum(1))
    if not bool(sums.all()):
        sums = torch.isfinite(rows).all(1)
    return sums


def _delivers(method: Method) -> bool:
    return type(method).deliver is not Method.deliver


def no_uploads(federation: Federation, clients: Tensor) -> Uploads:
    """What a download is made from: nothing new, just the slots."""
    return Uploads(federation, clients, {}, {})


class Delivery:
    """What `clients` receive beyond what they hold: mixes made at download time, which can be undone."""

    def __init__(self, method: Method, federation: Federation, clients: Tensor) -> None:
        self.federation, self.clients = federation, clients
        mixes = list(method.deliver(federation, clients))
        self._before = {mix.target: federation[mix.target].own[clients] for mix in mixes}
        self.applied = apply(mixes, federation, no_uploads(federation, clients))

    def undo(self, clients: Tensor | None = None) -> None:
        """Give (some of) the clients back what they held before."""
        chosen = (
            torch.ones_like(self.clients, dtype=torch.bool) if clients is None else torch.isin(self.clients, clients)
        )
        for target, rows in self._before.items():
            self.federation[target].own[self.clients[chosen]] = rows[chosen]


@contextmanager
def as_delivered(method: Method, federation: Federation, clients: Tensor) -> Iterator[None]:
    """While inside, `clients` hold what they would download; afterwards what they held before."""
    delivery = Delivery(method, federation, clients)
    try:
        yield
    finally:
        delivery.undo()


class _Clock:
    """Seconds by activity."""

    def __init__(self) -> None:
        self.seconds = {"train": 0.0, "exchange": 0.0, "evaluate": 0.0}
        self._last = time.perf_counter()

    def lap(self, activity: str) -> None:
        now = time.perf_counter()
        self.seconds[activity] += now - self._last
        self._last = now

    def move(self, source: str, target: str, seconds: float) -> None:
        self.seconds[source] -= seconds
        self.seconds[target] += seconds
