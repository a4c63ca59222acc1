"""The server loop: a round trains rows, then mixes them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from coterie.client.scores import Score
from coterie.core.applying import apply
from coterie.core.exchange import ACTIONS, actions_of
from coterie.core.federation import Federation
from coterie.core.tracks import exchange_mark
from coterie.engines import Engine, Trained, Work
from coterie.methods.base import Method
from coterie.processes import interrupts_wait
from coterie.rounds.collect import collect, nothing_collected
from coterie.rounds.delivery import Delivery, as_delivered, delivers
from coterie.rounds.evaluate import Evaluation
from coterie.rounds.hostile import Hostile
from coterie.rounds.ledger import ByteCounter
from coterie.rounds.listeners import Listener, Listeners
from coterie.rounds.presence import ALWAYS, Attendance
from coterie.rounds.privacy import PrivacyAccount
from coterie.rounds.quarantine import mean_loss
from coterie.rounds.report import RoundReport
from coterie.rounds.sampling import draw_cohort, draw_tested

# Clients whose downloads are made at one time when everybody is to be tested with what they would receive: at least so
# many, more of small models. Every time, the rows that they are made of are read anew.
DELIVERY_CHUNK, DELIVERED_NUMBERS = 64, 1 << 24
# Seconds that an interrupt waits for a round whose rows are trained: mixed half, it could only be thrown away, and with
# it all rounds since the last checkpoint.
GRACE = 3.0


class Rounds:
    """Runs a method on a federation, round by round.

    `validated` says that the engine scores each client's validation samples after those of its test
    (`Problem.scored_with_validation`). `hostile` clients send what their attack says; `attendance`
    says who is there and who answers. With `evaluate_clients` so many are tested each time in place of everybody, drawn
    anew; as received in the last round, everybody is.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        engine: Engine,
        join: float = 1.0,
        evaluate_every: int = 1,
        listeners: Sequence[Listener] = (),
        validated: bool = False,
        hostile: Hostile | None = None,
        attendance: Attendance = ALWAYS,
        evaluate_clients: int = 0,
    ) -> None:
        self.method, self.federation, self.engine = method, federation, engine
        self.hostile, self.attendance = hostile, attendance
        self.join, self.evaluate_every = join, evaluate_every
        self.evaluate_clients = evaluate_clients if evaluate_clients < federation.clients else 0
        # Bytes and privacy are counted first, so that everybody finds them in the report.
        self.listeners = Listeners((ByteCounter(method, federation), PrivacyAccount(method, federation), *listeners))
        # The last evaluation of what everybody received; clients that sit out a round still hold that.
        self.latest: Evaluation | None = None
        # Everybody's score right after their own last training; of who has not trained yet, with the first model.
        self.stored: Evaluation | None = None
        self._tuning_diverged: set[int] = set()
        self._tuning: list[int] = []  # gradients of each test of this round in which a client tuned
        self._kept: list[Score] | None = None  # everybody's after the last round
        self._validation = [0] * federation.clients
        if validated:
            assert federation.validation_sizes is not None
            self._validation = federation.validation_sizes.tolist()

    def run(self) -> str | None:
        """Round after round until all are done, or a listener stops the run: its reason is given then."""
        while self.federation.round < self.federation.rounds:
            report = self.run_round()
            if report.stopped is not None and self.federation.round < self.federation.rounds:
                return report.stopped
        return None

    def run_round(self) -> RoundReport:
        """One round: draw the cohort, deliver, train, collect, exchange, evaluate, tell."""
        method, federation, tell = self.method, self.federation, self.listeners
        asked, cohort = self._who(federation.round + 1)
        # Where clients rest, each is tested when it has trained: that is what it stores until its next turn.
        partial = len(cohort) < federation.clients or bool(self.attendance.parts)
        if partial and self.stored is None:
            self.stored = self.first_stored()
        federation.round += 1
        self._tuning_diverged.clear()
        self._tuning.clear()
        clock = _Clock()
        missing = asked[:0] if asked is cohort else asked[~torch.isin(asked, cohort)]
        private = federation.privacy.privacy is not None
        report = RoundReport(federation.round, cohort.tolist(), missing=missing.tolist(), private=private)
        last = federation.round == federation.rounds
        wanted = federation.round % self.evaluate_every == 0 or last
        chosen = draw_tested(federation.keys, self.evaluate_clients, federation.seed, federation.round)

        delivery = Delivery(method, federation, asked, threads=self.engine.mixing_threads)
        report.mixes += delivery.applied
        clock.lap("exchange")
        # Where uploads are watched, so are the losses that they were made with.
        tested = wanted or partial or federation.defence.watches
        work = Work(method.recipe(federation), tested, delivery.peers())
        self.engine.on_client = lambda done: tell.clients_done(report.round, done, len(cohort))
        with self._taken_back(delivery):
            tell.delivered(report, work)
            delivery.undo(missing)
            if self.hostile is not None:
                self.hostile.put_back(federation, cohort)
            trained = self.engine.train(federation, work, cohort) if len(cohort) else Trained({})
            clock.lap("train")
            clock.move("train", "evaluate", trained.test_seconds)
            if trained.training:
                report.training = Evaluation.of_sums(federation.task, trained.training)
            report.efforts = trained.efforts
            tell.trained(report, trained)
        with interrupts_wait(GRACE):
            losses = self._losses(cohort, trained.scores)
            if len(cohort):
                sent = method.uploads(federation)
                collected = collect(federation, work.recipe, sent, cohort, trained, losses, self.hostile)
            else:
                collected = nothing_collected(federation)
            uploads, report.diverged, report.quarantined = collected.uploads, collected.diverged, collected.quarantined
            delivery.undo(torch.tensor(collected.left_out, dtype=torch.int64))
            clock.lap("exchange")
            if work.test:
                newest = self._evaluate_cohort(cohort, trained.scores, collected.left_out)
                if partial:
                    assert self.stored is not None
                    self.stored = self.stored.updated(cohort.numpy(), newest)
                    report.cohort_trained = newest
                    report.stored = self.stored if wanted and not self.evaluate_clients else None
                if wanted:
                    report.trained = self._with_resting(cohort, newest, chosen)
                clock.lap("evaluate")

            if len(uploads.cohort):
                name, mark = type(method).__name__, exchange_mark(federation.round)
                threads = self.engine.mixing_threads
                said = actions_of(method.exchange, uploads, kinds=ACTIONS)
                report.mixes += apply(said, federation, uploads, mark, name, threads=threads)
            clock.lap("exchange")
            if wanted:
                tests = self.evaluate_received(federation.everyone if last else chosen, keep_scores=last)
                report.received = tests
                if self.evaluate_clients and last:
                    report.received = tests.chosen(chosen.numpy()).of_sample(chosen, federation.clients)
                    report.everybody = {
                        "received": tests,
                        **({"stored": self.stored} if self.stored is not None else {}),
                    }
                self.latest = None if self.evaluate_clients else tests
                clock.lap("evaluate")
            else:
                self.latest = None
            report.tuning_diverged = sorted(self._tuning_diverged)
            report.tuning = sum(self._tuning), len(self._tuning)
            report.seconds = clock.seconds
            tell.round(report)
        return report

    def _who(self, round: int) -> tuple[Tensor, Tensor]:
        """Whom the server asks in a round, and who of them answers: ids `[·]` each."""
        federation = self.federation
        if not self.attendance.parts:
            cohort = draw_cohort(federation.keys, self.join, federation.seed, round)
            return cohort, cohort
        there = self.attendance.there(federation, round)
        asked = there[draw_cohort(federation.keys[there], self.join, federation.seed, round)] if len(there) else there
        return asked, self.attendance.answering(federation, asked, round)

    @contextmanager
    def _taken_back(self, delivery: Delivery) -> Iterator[None]:
        """What fails in here has changed nothing but what was delivered: that is undone, and the round not begun."""
        try:
            yield
        except BaseException:
            delivery.undo()
            self.federation.round -= 1
            raise

    def evaluate_received(self, clients: Tensor | None = None, keep_scores: bool = False) -> Evaluation:
        """Test clients (everybody unless said) with what they would download now.

        With `keep_scores` everybody's are kept: the last round's are those of the finished models.
        """
        chosen = self.federation.everyone if clients is None else clients
        scores = self._scores_received(chosen, keep_scores)
        self._kept = scores if keep_scores else None
        return self._evaluation(chosen, scores).of_sample(chosen, self.federation.clients)

    def first_stored(self) -> Evaluation:
        """What clients store before the first round: the first model; where few are tested, nobody's is known."""
        if self.evaluate_clients:
            return Evaluation.nobody(self.federation.task, self.federation.clients, any(self._validation))
        return self.latest or self.evaluate_received()

    def _evaluation(self, clients: Tensor, scores: list[Score]) -> Evaluation:
        """What scores of some clients amount to; whose tuning diverged is noted."""
        self._notice_tuning(clients, scores)
        sizes = [self._validation[client] for client in clients.tolist()]
        return Evaluation.of(self.federation.task, scores, sizes if any(self._validation) else None)

    def _notice_tuning(self, clients: Tensor, scores: list[Score]) -> None:
        """Take note of clients whose tuning diverged, and of what tuning took."""
        self._tuning += [score.tuning for score in scores if score.tuning]
        self._tuning_diverged |= {
            client for client, score in zip(clients.tolist(), scores, strict=True) if score.untuned
        }

    def scores_received(self, keep_scores: bool = False) -> list[Score]:
        """Every client's score on its test samples with what it would download now."""
        kept = self._kept if keep_scores and self.federation.round == self.federation.rounds else None
        scores = self._scores_received(self.federation.everyone, keep_scores) if kept is None else kept
        sizes = zip(scores, self._validation, strict=True)
        return [score.split([len(score.losses) - held, held])[0] if held else score for score, held in sizes]

    def _scores_received(self, chosen: Tensor, keep_scores: bool = False) -> list[Score]:
        if not delivers(self.method):
            return self.engine.test(self.federation, chosen, keep_scores)
        scores: list[Score] = []
        at_once = max(DELIVERY_CHUNK, DELIVERED_NUMBERS // self.federation.layout.width)
        for clients in chosen.split(at_once):
            with as_delivered(self.method, self.federation, clients, self.engine.mixing_threads) as delivery:
                peers = delivery.peers() if self.method.tune(self.federation) else {}
                scores += self.engine.test(self.federation, clients, keep_scores, peers)
        return scores

    def _losses(self, cohort: Tensor, scores: list[Score]) -> list[float | None]:
        """The cohort's losses on its test samples after training, where uploads are watched."""
        if not self.federation.defence.watches:
            return []
        held = [self._validation[client] for client in cohort.tolist()]
        parts = [score.split([len(score.losses) - size, size])[0] for score, size in zip(scores, held, strict=True)]
        return [mean_loss(part.sums()) for part in parts]

    def _evaluate_cohort(self, cohort: Tensor, scores: list[Score], left_out: list[int]) -> Evaluation:
        """The cohort with its trained models; whose do not count, with the model it holds."""
        if left_out:
            held = dict(zip(left_out, self.engine.test(self.federation, torch.tensor(left_out)), strict=True))
            scores = [held.get(client, score) for client, score in zip(cohort.tolist(), scores, strict=True)]
        return self._evaluation(cohort, scores)

    def _with_resting(self, cohort: Tensor, newest: Evaluation, chosen: Tensor) -> Evaluation:
        """The `chosen` clients: those of the cohort as it has just been tested, others with the model they hold."""
        if self.evaluate_clients:
            drawn = torch.isin(cohort, chosen)
            parts = [(cohort[drawn], newest.chosen(drawn.nonzero()[:, 0].numpy()))]
            others = chosen[~torch.isin(chosen, cohort)]
            if len(others):
                parts.append((others, self._evaluation(others, self.engine.test(self.federation, others))))
            return Evaluation.joined(parts).of_sample(chosen, self.federation.clients)
        if len(cohort) == self.federation.clients:
            return newest
        # What a client that tunes shows depends on the round, so the last evaluation does not tell.
        if self.latest is None or delivers(self.method) or self.method.tune(self.federation):
            resting = torch.ones(self.federation.clients, dtype=torch.bool)
            resting[cohort] = False
            others = self.federation.everyone[resting]
            rested = self._evaluation(others, self.engine.test(self.federation, others))
            return Evaluation.joined([(others, rested), (cohort, newest)])
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
