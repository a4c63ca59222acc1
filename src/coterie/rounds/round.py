"""The server loop: a round trains rows, then mixes them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.client.scores import Score
from coterie.core.exchange import Applied, apply
from coterie.core.federation import Federation
from coterie.engines import Engine, Work
from coterie.methods.base import Method
from coterie.rounds.collect import collect
from coterie.rounds.delivery import Delivery, as_delivered, delivers
from coterie.rounds.evaluate import Evaluation
from coterie.rounds.ledger import declared_bytes, tensor_bytes
from coterie.rounds.sampling import draw_cohort

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

    def run_round(self) -> RoundReport:
        """One round: draw the cohort, train, exchange, evaluate at both moments."""
        method, federation = self.method, self.federation
        federation.round += 1
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
            report.mixes += apply(method.exchange(uploads), federation, uploads)
        report.bytes = {"up": up * len(cohort), "down": down}
        clock.lap("exchange")
        if wanted:
            self.latest = report.received = self.evaluate_received()
            clock.lap("evaluate")
        else:
            self.latest = None
        report.seconds = clock.seconds
        return report

    def evaluate_received(self) -> Evaluation:
        """Test everybody with what they would download now."""
        return Evaluation.of(self.federation.task, self.scores_received())

    def scores_received(self, keep_scores: bool = False) -> list[Score]:
        """Every client's score with what it would download now."""
        everyone = self.federation.everyone
        if not delivers(self.method):
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
        newest = Evaluation.of(self.federation.task, scores)
        if len(cohort) == self.federation.clients:
            return newest
        # What a client that tunes shows depends on the round, so the last evaluation does not tell.
        if self.latest is None or delivers(self.method) or self.method.tune(self.federation):
            resting = torch.ones(self.federation.clients, dtype=torch.bool)
            resting[cohort] = False
            others = self.federation.everyone[resting]
            by_client = dict(zip(others.tolist(), self.engine.test(self.federation, others), strict=True))
            by_client |= dict(zip(cohort.tolist(), scores, strict=True))
            everybody = [by_client[client] for client in range(self.federation.clients)]
            return Evaluation.of(self.federation.task, everybody)
        return self.latest.updated(cohort.numpy(), newest)


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
