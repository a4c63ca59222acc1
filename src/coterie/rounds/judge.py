"""Who is tested, with what, and at which moment of a round.

A judge is found by its name, in a file or in a package with an entry point of the group `coterie.judges`. Whatever it
chooses, everybody is tested with the finished model in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.scores import Score
from coterie.core.federation import Federation
from coterie.engines import Engine
from coterie.methods.base import Method
from coterie.registry import Registry, subclasses_of
from coterie.rounds.delivery import as_delivered, delivers
from coterie.rounds.evaluate import Evaluation, Finished, mean_loss
from coterie.rounds.listeners import RoundReport
from coterie.rounds.sampler import drawn

# Clients whose downloads are made at one time when everybody is to be tested with what they would receive: at least so
# many, more of small models. Every time, the rows that they are made of are read anew.
DELIVERY_CHUNK, DELIVERED_NUMBERS = 64, 1 << 24


class Judge:
    """Tests everybody: the cohort with what it trained, all with what they would download after the exchange.

    That is done every so many rounds and in the last. Where clients rest, each is tested when it has trained, in every
    round: that is what it stores until its next turn. `validated` says that the engine scores each client's validation
    samples after those of its test (`Problem.scored_with_validation`); they are told apart here.
    """

    tests_everybody: ClassVar[bool] = True
    """Whether what everybody received is known after each test."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        engine: Engine,
        evaluate_every: int = 1,
        validated: bool = False,
        evaluate_clients: int = 0,
    ) -> None:
        self.method, self.federation, self.engine = method, federation, engine
        self.evaluate_every, self.evaluate_clients = evaluate_every, evaluate_clients
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

    # What the loop asks for, in each round.

    def begin(self, rests: bool) -> None:
        """A round is about to begin, in which some may rest."""
        if rests and self.stored is None:
            self.stored = self.first_stored()
        self._tuning_diverged.clear()
        self._tuning.clear()

    @property
    def is_last(self) -> bool:
        """Whether this is the last round."""
        return self.federation.round == self.federation.rounds

    @property
    def is_due(self) -> bool:
        """Whether clients are to be tested in this round."""
        return self.federation.round % self.evaluate_every == 0 or self.is_last

    def losses(self, cohort: Tensor, scores: list[Score]) -> list[float | None]:
        """The cohort's mean losses on its test samples after training; none without such samples."""
        held = [self._validation[client] for client in cohort.tolist()]
        parts = [score.split([len(score.losses) - size, size])[0] for score, size in zip(scores, held, strict=True)]
        return [mean_loss(part.sums()) for part in parts]

    def trained(self, report: RoundReport, cohort: Tensor, scores: list[Score], left_out: list[int]) -> None:
        """Report how good the cohort's models are after training; whose do not count, with the model it holds."""
        if left_out:
            held = dict(zip(left_out, self.engine.test(self.federation, torch.tensor(left_out)), strict=True))
            scores = [held.get(client, score) for client, score in zip(cohort.tolist(), scores, strict=True)]
        newest = self._evaluation(cohort, scores)
        if self.stored is not None:
            self.stored = self.stored.updated(cohort.numpy(), newest)
            report.cohort_trained = newest
        if self.is_due:
            self._report_trained(report, cohort, newest)

    def received(self, report: RoundReport) -> None:
        """Report how good the models are that clients would download now."""
        if self.is_due:
            self._report_received(report)
        else:
            self.latest = None
        report.tuning_diverged = sorted(self._tuning_diverged)
        report.tuning = sum(self._tuning), len(self._tuning)

    def first_stored(self) -> Evaluation:
        """What clients store before the first round: the first model."""
        return self.latest or self.evaluate_received()

    def _report_trained(self, report: RoundReport, cohort: Tensor, newest: Evaluation) -> None:
        report.stored, report.trained = self.stored, self._with_resting(cohort, newest)

    def _report_received(self, report: RoundReport) -> None:
        report.received = self.latest = self.evaluate_received(keep_scores=self.is_last)

    def _with_resting(self, cohort: Tensor, newest: Evaluation) -> Evaluation:
        """Everybody: those of the cohort as they have just been tested, others with the model they hold."""
        if len(cohort) == self.federation.clients:
            return newest
        # What a client that tunes shows depends on the round, so the last evaluation does not tell.
        if self.latest is None or delivers(self.method) or self.method.tune(self.federation):
            others = self.federation.everyone[~torch.isin(self.federation.everyone, cohort)]
            rested = self._evaluation(others, self.engine.test(self.federation, others))
            return Evaluation.joined([(others, rested), (cohort, newest)])
        return self.latest.updated(cohort.numpy(), newest)

    def finished(self, labels: Sequence[Tensor]) -> Finished:
        """What is said of the finished models, by each client's test samples, whose `labels` are given.

        A metric that is no sum over samples can be a judge's own: it is added to the task's.
        """
        return Finished.of(self.federation.task, self.scores_received(keep_scores=True), labels)

    # Tests.

    def evaluate_received(self, clients: Tensor | None = None, keep_scores: bool = False) -> Evaluation:
        """Test clients (everybody unless said) with what they would download now.

        With `keep_scores` everybody's are kept: the last round's are those of the finished models.
        """
        chosen = self.federation.everyone if clients is None else clients
        scores = self._scores_received(chosen, keep_scores)
        self._kept = scores if keep_scores else None
        return self._evaluation(chosen, scores).of_sample(chosen, self.federation.clients)

    def scores_received(self, keep_scores: bool = False) -> list[Score]:
        """Every client's score on its test samples with what it would download now."""
        kept = self._kept if keep_scores and self.is_last else None
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

    def _evaluation(self, clients: Tensor, scores: list[Score]) -> Evaluation:
        """What scores of some clients amount to; whose tuning diverged is noted, and what tuning took."""
        self._tuning += [score.tuning for score in scores if score.tuning]
        self._tuning_diverged |= {
            client for client, score in zip(clients.tolist(), scores, strict=True) if score.untuned
        }
        sizes = [self._validation[client] for client in clients.tolist()]
        return Evaluation.of(self.federation.task, scores, sizes if any(self._validation) else None)


SAMPLE = 20  # clients that are tested where it is not said how many


class SampleJudge(Judge):
    """Tests `evaluate_clients` each time in place of everybody, drawn anew; in the end, as received, everybody."""

    tests_everybody: ClassVar[bool] = False

    @property
    def _chosen(self) -> Tensor:
        """Who is tested in this round: `[m]`."""
        federation = self.federation
        count = min(self.evaluate_clients or SAMPLE, federation.clients)
        return drawn(federation.keys, count, federation.seed, "tested", federation.round)

    def first_stored(self) -> Evaluation:
        """What clients store before the first round: nobody's is known."""
        return Evaluation.nobody(self.federation.task, self.federation.clients, any(self._validation))

    def _report_trained(self, report: RoundReport, cohort: Tensor, newest: Evaluation) -> None:
        chosen = self._chosen
        here = torch.isin(cohort, chosen)
        parts = [(cohort[here], newest.chosen(here.nonzero()[:, 0].numpy()))]
        others = chosen[~torch.isin(chosen, cohort)]
        if len(others):
            parts.append((others, self._evaluation(others, self.engine.test(self.federation, others))))
        report.trained = Evaluation.joined(parts).of_sample(chosen, self.federation.clients)

    def _report_received(self, report: RoundReport) -> None:
        chosen, everybody = self._chosen, self.federation.clients
        if not self.is_last:
            report.received = self.evaluate_received(chosen)
            return
        tests = self.evaluate_received(keep_scores=True)
        report.received = tests.chosen(chosen.numpy()).of_sample(chosen, everybody)
        report.everybody = {"received": tests, **({} if self.stored is None else {"stored": self.stored})}


JUDGES: Registry[type[Judge]] = Registry(
    "judge", "coterie.judges", {"everybody": Judge, "sample": SampleJudge}, subclasses_of(Judge)
)
"""Every judge by name: a class that extends `Judge`."""
