"""Whether a model may be trained for many clients at once: that is tried before the first round, not presumed.

Two clients take a step in every way in which the stacked engine takes one, and each takes the same step alone. Their
weights, samples and numbers of samples differ, so that whatever passes from client to client, or from padding to
samples, shows. So does what a model does in training only, draws by itself, or keeps beside its row: a count of its
calls, a generator of its own, something that it saw last. Such a thing changes as the model runs, and trained together,
clients run a model once where each alone would run it once more, so that what it holds would be different.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.client.belongings import DRAWS, Belongings, belongings, changed
from coterie.client.problem import Problem
from coterie.client.recipe import Phase, plain_steps
from coterie.client.scores import Seen, TrainingScores
from coterie.client.terms import RECEIVED, task_loss
from coterie.client.trainer import Trainer
from coterie.client.views import BatchView
from coterie.client.worker import MethodAtClient, Worker
from coterie.core.federation import Federation
from coterie.core.task.base import LOSS
from coterie.core.training import Training
from coterie.devices import draw_again, drawn_state
from coterie.engines.stacked.batch import StackedBatch
from coterie.engines.stacked.phase import StackedPhase
from coterie.engines.stacked.stack import Ground, PaddedIndices, Stack
from coterie.rng import torch_stream

# How far tensors may lie apart for rounding, in their norms: by a share of what they are, or of how far they moved;
# gradients by a larger one, or by a share of the whole row's (before batch norm they are nothing but rounding).
SHARE, OF_GRADIENT, OF_ROW = 1e-3, 1e-2, 1e-4
LEAST = 1e-6  # what float32 cannot resolve
# At a kink of a ReLU the last bit decides which way a gradient goes: what differs is tried with other weights as well.
TRIES = 4
# By what share of themselves, and how far besides, tensors are moved from where the run begins, so that clients differ,
# and gradients pass through weights that begin as zeros.
MOVED, BESIDES = 0.1, 0.02
OTHERWISE = "the model does otherwise together than alone"
OWN_DRAWS = "the model draws random numbers of its own"


def not_alike(ground: Ground, method: MethodAtClient) -> str | None:
    """Why clients had better not be trained together, if so."""
    if not ground.train.sizes.any():
        return "there are no samples to try it on"
    bent: str | None = None
    with _draws_undone(ground.device):
        try:
            for attempt in range(TRIES):
                twins = Twins(ground, method, attempt)
                reason, bent = twins.difference(), twins.bent
                if reason is not None or bent is None:
                    return reason
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever somebody's module raises within `vmap`
            reason = (str(error) or type(error).__name__).splitlines()[0]
            return f"the model does not run for many clients at once ({reason})"
    return bent


@contextmanager
def _draws_undone(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside is drawn anew afterwards, as if nothing had been tried."""
    drawn, python, numpy = drawn_state(device), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        draw_again(device, drawn)
        random.setstate(python)
        np.random.set_state(numpy)


def beside_received(batch: BatchView) -> Tensor:
    """A loss that is computed client by client and looks at the model as it was received, as methods' terms do."""
    return task_loss(batch) + (batch.logits * batch.under(RECEIVED).logits).mean(1)


class Twins:
    """Two clients of a small federation, who do the same together and apart."""

    def __init__(self, ground: Ground, method: MethodAtClient, attempt: int) -> None:
        samples = _samples(ground)
        training = Training(epochs=1, batch=len(samples[0]), lr=1.0)
        self._problem = replace(ground.problem, train=samples, validation=samples, test=samples, training=training)
        indices = PaddedIndices(samples)
        self._ground = replace(ground, problem=self._problem, train=indices, test=indices)
        self._federation = _federation(self._problem, ground.seed, attempt)
        self._worker = Worker(self._problem, method, ground.seed)
        self.bent: str | None = None  # which gradient differs where nothing else does: it may be at a kink

    def difference(self) -> str | None:
        """What differs between the two ways besides gradients, if anything does."""
        layout = self._problem.layout
        head = layout.columns("classifier") & layout.trainable
        ways = (Phase(), *((Phase(train="classifier"),) if head else ()))
        difference = next((said for phase in ways if (said := self._training(phase))), None)
        return difference or self._client_by_client() or self._testing()

    def _client_by_client(self) -> str | None:
        try:
            return self._training(Phase(terms=(beside_received,)))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None  # phases with such terms say so themselves, when they run

    def _training(self, phase: Phase) -> str | None:
        """What differs after a step of a phase: losses, buffers, or what the model keeps and draws."""
        stack = Stack(self._ground, self._federation, self._federation.everyone)
        together = TrainingScores(self._problem.task, 2)
        StackedPhase(stack, phase, 0).run(together)
        start, rows = self._federation[phase.slot].rows(stack.clients), stack.rows(phase.slot).cpu()
        for client, sums in enumerate(together.sums()):
            seen: Seen = []
            kept, row = self._alone(phase, client, seen)
            if kept is not None:
                return kept
            state, of_device = drawn_state(self._worker.device)
            if not torch.equal(stack.streams[client].get_state(), state if of_device is None else of_device):
                return OWN_DRAWS
            apart = TrainingScores(self._problem.task, 1)
            apart.take(0, seen)
            losses = [torch.tensor(loss_sums.get(LOSS, 0.0)) for loss_sums in (sums, apart.sums()[0])]
            if not _near(losses[0], losses[1], SHARE * _size(losses[1])):
                return f"{OTHERWISE}: its loss in training differs"
            if differs := self._moved(start[client], rows[client], row):
                return differs
        return None

    def _moved(self, start: Tensor, actual: Tensor, expected: Tensor) -> str | None:
        """The first buffer `[n]` of a row `[P]` that differs; a gradient that does is taken note of."""
        row = OF_ROW * _size(expected - start)
        for entry in self._problem.layout.entries:
            ours, other, before = (whole[entry.start : entry.stop] for whole in (actual, expected, start))
            moved = _size(other - before)
            if entry.is_buffer and not _near(ours, other, SHARE * moved):
                return f"{OTHERWISE}: '{entry.name}' differs"
            if not (entry.is_buffer or self.bent or _near(ours, other, OF_GRADIENT * moved + row)):
                self.bent = f"{OTHERWISE}: the gradient of '{entry.name}' differs"
        return None

    def _alone(self, phase: Phase, client: int, seen: Seen) -> tuple[str | None, Tensor]:
        """One client's step: what changed that should not have, and its row afterwards."""
        self._worker.seat(self._federation, client)
        trainer = Trainer(self._worker, phase, 0, seen)
        before = self._hidden()
        plain_steps(trainer, trainer.batches())
        kept = _kept(before, self._hidden())
        trainer.finish()
        return kept, self._worker.model(phase.slot).row.cpu()

    def _testing(self) -> str | None:
        """What differs where models are tested."""
        everyone = self._federation.everyone
        stack = Stack(self._ground, self._federation, everyone)
        with torch.no_grad():
            together = StackedBatch(stack, "model", self._ground.test.of(everyone), slice(0, 2)).logits.cpu()
            for client, index in enumerate(self._problem.test):
                self._worker.seat(self._federation, client)
                model = self._worker.model("model")
                before = self._hidden()
                alone = model.head(model.trunk(self._problem.inputs[index])).cpu()
                if kept := _kept(before, self._hidden()):
                    return kept
                if not _near(together[client, : len(index)], alone, SHARE * _size(alone)):
                    return f"{OTHERWISE}: its outputs in tests differ"
        return None

    def _hidden(self) -> Belongings:
        model, layout = self._worker.model("model"), self._problem.layout
        return belongings({"": model.trunk, layout.classifier: model.head}, layout)


def _kept(before: Belongings, after: Belongings) -> str | None:
    change = changed(before, after)
    if change is None:
        return None
    kind, name = change
    return OWN_DRAWS if kind == DRAWS else f"the model keeps '{name}', which changes as it runs"


def _near(actual: Tensor, expected: Tensor, far: float) -> bool:
    """Whether two tensors are no further apart than so much, but for rounding."""
    apart = torch.where(actual == expected, torch.zeros_like(actual), actual - expected)
    least = LEAST * (_size(expected) + math.sqrt(expected.numel()))
    return float(apart.norm()) <= far + least


def _size(values: Tensor) -> float:
    """The norm of what is finite."""
    return float(values.nan_to_num(0.0, 0.0, 0.0).norm())


def _samples(ground: Ground) -> tuple[Tensor, Tensor]:
    """A whole batch of the largest client, and one as small as any in the run: what depends on its size shows."""
    problem, sizes = ground.problem, ground.train.sizes
    batch, largest = problem.training.batch, int(sizes.argmax())
    whole = min(batch, int(sizes[largest]))
    ends = torch.where(sizes > batch, (sizes - 1) % batch + 1, sizes.clamp(max=batch))
    least = 2 if problem.skip_single_samples else 1
    smallest = min([whole, *ends[ends >= least].tolist()])
    if problem.layout.has_batch_norm:
        smallest = max(smallest, (whole + 1) // 2)  # over two or three samples it blows rounding up
    if smallest == whole > least:
        smallest = whole - 1
    other = int(torch.where(sizes >= smallest, sizes, sizes.max()).argmin())
    return problem.train[largest][:whole], problem.train[other][-smallest:]


def _federation(problem: Problem, seed: int, attempt: int) -> Federation:
    """Two clients in their first round, whose rows differ."""
    layout, samples = problem.layout, torch.tensor([len(index) for index in problem.train])
    federation = Federation(
        layout=layout,
        initial=layout.row(problem.module),
        sizes=samples,
        class_counts=torch.zeros(2, 0),
        keys=torch.arange(2),
        rounds=1,
        seed=seed,
        feature_width=0,
        head=problem.module.get_submodule(layout.classifier),
        task=problem.task,
        training=problem.training,
        round=1,
        skip_single_samples=problem.skip_single_samples,
    )
    slot = federation.add_slot("model", layout.everything)
    drawn = 2 * torch.rand(2, layout.width, generator=torch_stream(seed, "proof", attempt)) - 1
    rows = federation.initial * (1 + MOVED * drawn)
    for start, stop in layout.trainable.spans:  # buffers may not have any sign: a variance is one
        rows[:, start:stop] += BESIDES * drawn[:, start:stop]
    slot.write_own(federation.everyone, layout.everything, slot.columns.take(rows))
    return federation
