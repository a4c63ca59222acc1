"""The stacked engine: the whole cohort trained as one batch.

Small models spend their time on dispatching operations, not on computing. Here each operation serves all
clients at once. Clients of unequal size are sorted by their number of steps, so that those still training are
always the first ones; shorter batches are padded and masked. Batches, and so results, are those of the serial
engine up to float rounding. What cannot be stacked, or is not proved alike before the first round, is trained by the
serial engine instead, and the log says why.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coterie.client.problem import Problem
from coterie.client.recipe import Measure, Phase, Recipe, phases, plain_steps, telling_phase, trained_slots
from coterie.client.scores import Score, TrainingScores
from coterie.client.trainer import Stepping, stepping_of
from coterie.core.federation import Federation
from coterie.engines.base import NOBODY, Engine, EngineOptions, PeersOf, Trained, Work
from coterie.engines.serial import Serial
from coterie.engines.stacked.batch import StackedBatch
from coterie.engines.stacked.model import chunks
from coterie.engines.stacked.phase import StackedPhase
from coterie.engines.stacked.proof import not_alike
from coterie.engines.stacked.stack import Ground, Stack
from coterie.engines.stacked.training_layers import cannot_be_batched
from coterie.methods.base import Method

log = logging.getLogger("coterie")


class Stacked(Engine):
    """Trains the cohort's clients together, and tests clients together, on a device such as `cpu` or `cuda`."""

    name = "stacked"
    uses_device = True
    rows_on_device = True

    def __init__(self, problem: Problem, method: Method, seed: int, device: str = "cpu") -> None:
        self.method = method
        self._ground = Ground.of(problem, seed, device)
        self.problem = self._ground.problem
        self._serial = Serial(self.problem, method, seed, device)
        tied = problem.layout.tied
        reason = f"{tied} are one tensor" if tied else cannot_be_batched(problem.module)
        self._model_reason = reason or not_alike(self._ground, method)
        self._said: set[str] = set()

    @classmethod
    def create(cls, problem: Problem, method: Method, seed: int, options: EngineOptions) -> Stacked:
        """The engine with what the run says about it."""
        return cls(problem, method, seed, options.device)

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        """Have the cohort do the work together, or one by one where that is impossible."""
        settings = self.problem.training
        reason = self.declines(work.recipe, stepping_of(federation))
        if settings.keep_optimizer and settings.optimizer != "sgd":
            reason = reason or f"clients keep what {settings.optimizer} remembers, each its own count of steps"
        if reason is None:
            try:
                trained = self._train(federation, work, cohort)
            except torch.OutOfMemoryError:
                raise  # no matter of loss terms
            except RuntimeError as error:
                # What a loss term does inside `vmap` shows only when it runs.
                reason = str(error).splitlines()[0]
            else:
                self.tell(len(cohort))
                return trained
        self._say(reason)
        self._serial.on_client = self.on_client
        return self._serial.train(federation, work, cohort)

    def test(
        self, federation: Federation, clients: Tensor, keep_scores: bool = False, peers: PeersOf = NOBODY
    ) -> list[Score]:
        """Test the clients' models together, or one by one where that is impossible."""
        reason = self.declines(self.method.tune(federation))
        if reason is None and not federation.is_uniform:
            try:
                return self._test(Stack(self._ground, federation, clients), keep_scores)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._say(str(error).splitlines()[0])
        return self._serial.test(federation, clients, keep_scores, peers)

    def declines(self, recipe: Recipe, stepping: Stepping | None = None) -> str | None:
        """Why a recipe cannot be stacked, if so."""
        if stepping is not None:
            return stepping.why
        if self._model_reason:
            return self._model_reason
        if any(phase.rule is not plain_steps for phase in phases(recipe)):
            return "the method has a step rule of its own"
        return None

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            log.warning("stacked engine: clients are trained one by one instead, since %s", reason)

    def _train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        order = torch.argsort(self._ground.train.sizes[cohort], descending=True, stable=True)
        back = torch.argsort(order)
        stack = Stack(self._ground, federation, cohort[order])
        training = TrainingScores(self.problem.task, len(cohort))
        measured = self._do(stack, work, back, training)
        place = federation.initial.device
        rows = {
            slot: federation[slot].columns.take(stack.rows(slot)).to(place)[back.to(place)]
            for slot in work.slots(federation)
        }
        sums = training.sums()
        training_sums = [sums[position] for position in back.tolist()]
        trained = Trained(rows, measured, training=training_sums, efforts=stack.efforts(back))
        if work.test:
            begin = time.perf_counter()
            scores = self._test(stack, keep_scores=False)
            trained.scores = [scores[position] for position in back.tolist()]
            trained.test_seconds = time.perf_counter() - begin
        return trained

    def _do(self, stack: Stack, work: Work, back: Tensor, training: TrainingScores) -> dict[str, Tensor]:
        """Do what the recipe says; what was measured, in the cohort's order (`back` leads to it)."""
        measured: dict[str, Tensor] = {}
        number, telling = 0, telling_phase(work.recipe, self.method.tested)
        for step in work.recipe:
            if isinstance(step, Phase):
                StackedPhase(stack, step, number).run(training if number == telling else None)
                number += 1
            elif isinstance(step, Measure):
                measured[step.name] = self._measured(stack, step, work, back)
        return measured

    def _measured(self, stack: Stack, step: Measure, work: Work, back: Tensor) -> Tensor:
        """Measurements are taken one client at a time, on the client's rows as they are now."""
        values, worker = [], self._serial.worker
        features: dict[str, dict[int, Tensor]] = {}
        for position in back.tolist():
            client = int(stack.clients[position])
            worker.seat(stack.federation, client, work.peers.get(client, ()))
            for slot, rows in stack.trained.items():
                worker.model(slot).row.copy_(rows[position])
            size = len(self.problem.train[client])
            worker.known_features.update({slot: known[position, :size] for slot, known in stack.features.items()})
            values.append(step.take(worker))
            stack.forward[position] += worker.effort.forward
            for slot, known in worker.known_features.items():
                features.setdefault(slot, {})[position] = known
        # What was measured on serves phases that train a classifier alone, as at the seat of a worker.
        for slot in features.keys() - stack.features.keys():
            stack.features[slot] = pad_sequence([features[slot][place] for place in sorted(features[slot])], True)
        return torch.stack(values).cpu()

    def _test(self, stack: Stack, keep_scores: bool) -> list[Score]:
        untuned, tuning = _tune_together(stack, self.method.tune(stack.federation))
        task, ground, scores = self.problem.task, self._ground, list[Score]()
        sizes = ground.test.sizes[stack.clients]
        plain = type(self.method).predict is Method.predict
        with torch.no_grad():
            for part in chunks(len(sizes), int(sizes.max())):
                index = ground.test.of(stack.clients[part]).to(ground.device)
                batch = StackedBatch(stack, self.method.tested, index, part)
                outputs = batch.logits if plain else batch.per_client(self.method.predict)
                real = torch.arange(index.shape[1]) < sizes[part, None]  # what is not padding
                flat_scores = task.scores(outputs.flatten(0, 1), batch.labels.flatten())
                quantities = {name: values.reshape(index.shape).cpu()[real] for name, values in flat_scores.items()}
                kept = task.kept(outputs.cpu()[real]) if keep_scores else None
                scores += Score(quantities, kept).split(sizes[part].tolist())
        if tuning:
            flags = untuned.tolist()
            scores = [replace(score, untuned=flags[place], tuning=tuning[place]) for place, score in enumerate(scores)]
        return scores


def _tune_together(stack: Stack, recipe: Recipe) -> tuple[Tensor, list[int]]:
    """Tune all clients of a stack; whose rows are not finite afterwards gets the old ones back: `[m]` says who.

    How many gradients each has computed for it comes with that; nothing if there is no tuning.
    """
    if not recipe:
        return torch.zeros(len(stack.clients), dtype=torch.bool), []
    before, gradients = {slot: stack.rows(slot).clone() for slot in trained_slots(recipe)}, stack.gradients
    for number, phase in enumerate(phases(recipe)):
        StackedPhase(stack, phase, number, stays=True).run()
    ruined = torch.zeros(len(stack.clients), dtype=torch.bool, device=stack.ground.device)
    for slot in before:
        ruined |= ~torch.isfinite(stack.rows(slot)).all(1)
    for slot, rows in before.items():
        stack.trained[slot][ruined] = rows[ruined]
    return ruined.cpu(), (stack.gradients - gradients).tolist()
