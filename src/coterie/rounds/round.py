"""A round: drawn, delivered, trained, collected, exchanged, tested, told. It trains rows, then mixes them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.engines import Engine, Trained, Work
from coterie.methods.base import Method
from coterie.processes import interrupts_wait
from coterie.rounds.collect import send
from coterie.rounds.delivery import ByteCounter, OpenRound
from coterie.rounds.evaluate import Evaluation
from coterie.rounds.judge import Judge
from coterie.rounds.listeners import Listener, Listeners, RoundReport
from coterie.rounds.sampler import Sampler
from coterie.rounds.stages import Stage, coding_of

# Seconds that an interrupt waits for a round whose rows are trained: mixed half, it could only be thrown away, and with
# it all rounds since the last checkpoint.
GRACE = 3.0


class Rounds:
    """Runs a method on a federation, round by round, with an engine that trains.

    Who takes part is the business of a `sampler` (everybody unless told otherwise), what uploads go through that of
    `stages`, who is tested that of a `judge`.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        engine: Engine,
        sampler: Sampler | None = None,
        judge: Judge | None = None,
        stages: Sequence[Stage] = (),
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.method, self.federation, self.engine = method, federation, engine
        self.sampler, self.stages = sampler or Sampler(), tuple(stages)
        self.judge = judge or Judge(method, federation, engine)
        # Bytes are counted first, so that everybody finds them in the report.
        self.listeners = Listeners((ByteCounter(method, federation, coding_of(self.stages)), *listeners))

    def run(self) -> str | None:
        """Round after round until all are done, or a listener stops the run: its reason is given then."""
        while self.federation.round < self.federation.rounds:
            report = self.run_round()
            if report.stopped is not None and self.federation.round < self.federation.rounds:
                return report.stopped
        return None

    def run_round(self) -> RoundReport:
        """One round: draw the cohort, deliver, train, collect, exchange, test, tell."""
        method, federation, judge, tell = self.method, self.federation, self.judge, self.listeners
        asked, cohort = self.sampler.draw(federation, federation.round + 1)
        rests = len(cohort) < federation.clients or self.sampler.rests(federation.clients)
        judge.begin(rests)
        clock = _Clock()
        round = OpenRound(method, federation, self.stages, asked, self.engine.mixing_threads)
        missing = asked[~torch.isin(asked, cohort)].tolist() if len(cohort) < len(asked) else []
        report = RoundReport(federation.round, cohort.tolist(), missing=missing)
        report.hides_results = any(stage.hides_results for stage in self.stages)
        clock.lap("exchange")

        watched = any(stage.needs_losses for stage in self.stages)
        work = Work(round.recipe, judge.is_due or rests or watched, round.delivery.peers())
        with _taken_back(round):
            tell.delivered(report, work)
            trained = self._train(work, cohort, report)
            clock.lap("train")
            clock.move("train", "evaluate", trained.test_seconds)
            tell.trained(report, trained)
        with interrupts_wait(GRACE):
            losses = judge.losses(cohort, trained.scores) if watched else []
            sent = send(federation, round.recipe, round.uploads, cohort, trained, losses, self.stages)
            collected = round.collect(sent)
            report.diverged = collected.diverged
            clock.lap("exchange")
            if work.test:
                judge.trained(report, cohort, trained.scores, collected.left_out)
                clock.lap("evaluate")
            report.mixes += round.exchange(collected)
            report.parts |= dict(round.notes(collected, cohort))
            clock.lap("exchange")
            judge.received(report)
            clock.lap("evaluate")
            report.seconds = clock.seconds
            tell.round(report)
        return report

    def _train(self, work: Work, cohort: Tensor, report: RoundReport) -> Trained:
        """Have the engine train the cohort; the report says what came of it on the way."""
        for stage in self.stages:
            stage.before_training(self.federation, cohort)
        self.engine.on_client = lambda done: self.listeners.clients_done(report.round, done, len(cohort))
        trained = self.engine.train(self.federation, work, cohort) if len(cohort) else Trained({})
        if trained.training:
            report.training = Evaluation.of_sums(self.federation.task, trained.training)
        report.efforts = trained.efforts
        return trained


@contextmanager
def _taken_back(round: OpenRound) -> Iterator[None]:
    """What fails in here has changed nothing but what was delivered: that is undone, and the round not begun."""
    try:
        yield
    except BaseException:
        round.abandon()
        raise


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
