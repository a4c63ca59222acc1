"""Whether a model may be trained for many clients at once: that is tried before the first round, not presumed.

Two clients take a step in every way in which the stacked engine takes one, and each takes the same step alone. Their
weights, samples and numbers of samples differ, so that whatever passes from client to client, or from padding to
samples, shows. So does what a model does in training only, draws by itself, or keeps beside its row.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.client.recipe import Phase
from coterie.client.steps import plain_steps
from coterie.client.terms import RECEIVED, task_loss
from coterie.client.trainer import Trainer
from coterie.client.training_scores import Seen, TrainingScores
from coterie.client.views import BatchView
from coterie.client.worker import MethodAtClient, Worker
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.task.base import LOSS
from coterie.core.training import Training
from coterie.devices import draw_again, drawn_state
from coterie.engines.stacked.batch import StackedBatch
from coterie.engines.stacked.hidden import change, global_draws, hidden_state
from coterie.engines.stacked.phase import StackedPhase
from coterie.engines.stacked.stack import Ground, PaddedIndices, Stack

# How far numbers may lie apart for rounding: a share of the largest of their tensor, and what float32 cannot resolve.
SHARE, LEAST = 1e-3, 1e-6
# The second client's weights are so many times the first one's.
OTHER = 0.9


def not_alike(ground: Ground, method: MethodAtClient) -> str | None:
    """Why clients had better not be trained together, if so."""
    with _draws_undone(ground.device):
        try:
            return Twins(ground, method).difference()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever somebody's module raises within `vmap`
            reason = (str(error) or type(error).__name__).splitlines()[0]
            return f"the model does not run for many clients at once ({reason})"


@contextmanager
def _draws_undone(device: torch.device) -> Iterator[None]:
    """Whatever is drawn inside is drawn anew afterwards, as if nothing had been tried."""
    own, python, numpy = drawn_state(device), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        draw_again(device, own)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def beside_received(batch: BatchView) -> Tensor:
    """A loss that is computed client by client and looks at the model as it was received, as methods' terms do."""
    return task_loss(batch) + (batch.logits * batch.under(RECEIVED).logits).mean(1)


class Twins:
    """Two clients of a small federation, who do the same together and apart."""

    def __init__(self, ground: Ground, method: MethodAtClient) -> None:
        samples = _samples(ground)
        training = Training(epochs=1, batch=len(samples[0]), lr=1.0)
        self._problem = replace(ground.problem, train=samples, validation=samples, test=samples, training=training)
        own = PaddedIndices(samples)
        self._ground = replace(ground, problem=self._problem, train=own, test=own)
        self._federation = _federation(self._problem, ground.seed)
        self._worker = Worker(self._problem, method, ground.seed)

    def difference(self) -> str | None:
        """What differs between the two ways, if anything does."""
        layout, before = self._problem.layout, global_draws()
        head = layout.columns("classifier") & layout.trainable
        ways = (Phase(), *((Phase(train="classifier"),) if head else ()))
        found = next((told for phase in ways if (told := self._training(phase))), None)
        found = found or self._client_by_client() or self._testing()
        if found is None and global_draws() != before:
            return "the model draws random numbers of its own"
        return found

    def _client_by_client(self) -> str | None:
        try:
            return self._training(Phase(terms=(beside_received,)))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None  # phases with such terms say so themselves, when they run

    def _training(self, phase: Phase) -> str | None:
        """What differs after a step of a phase: outputs, gradients, buffers, or what the model keeps and draws."""
        stack = Stack(self._ground, self._federation, self._federation.everyone)
        together = TrainingScores(self._problem.task, 2)
        StackedPhase(stack, phase, 0).run(together)
        for client, told in enumerate(together.sums()):
            seen: Seen = []
            changed, row = self._alone(phase, client, seen)
            if changed is not None:
                return changed
            state, own = drawn_state(self._worker.device)
            if not torch.equal(stack.streams[client].get_state(), state if own is None else own):
                return "the model draws random numbers of its own"
            start = stack.received(phase.slot)[client]
            for entry in self._problem.layout.entries:
                found, expected, before = (one[entry.start : entry.stop] for one in (stack.rows(phase.slot)[client], row, start))
                if not _near(found, expected, (expected - before).abs()):
                    what = "" if entry.is_buffer else "the gradient of "
                    return f"the model does otherwise together than alone: {what}'{entry.name}' differs"
            alone = TrainingScores(self._problem.task, 1)
            alone.take(0, seen)
            found, expected = (torch.tensor(sums.get(LOSS, 0.0)) for sums in (told, alone.sums()[0]))
            if not _near(found, expected, expected.abs()):
                return "the model does otherwise together than alone: its loss in training differs"
        return None

    def _alone(self, phase: Phase, client: int, seen: Seen) -> tuple[str | None, Tensor]:
        """One client's step: what changed that should not have, and its row afterwards."""
        self._worker.seat(self._federation, client)
        trainer = Trainer(self._worker, phase, 0, seen)
        before = self._hidden()
        plain_steps(trainer, trainer.batches())
        changed = change(before, self._hidden())
        trainer.finish()
        return _kept(changed), self._worker.model(phase.slot).row.clone()

    def _testing(self) -> str | None:
        """What differs where models are tested."""
        everyone = self._federation.everyone
        stack = Stack(self._ground, self._federation, everyone)
        with torch.no_grad():
            together = StackedBatch(stack, "model", self._ground.test.of(everyone), slice(0, 2)).logits
            for client, index in enumerate(self._problem.test):
                self._worker.seat(self._federation, client)
                model = self._worker.model("model")
                before = self._hidden()
                alone = model.head(model.trunk(self._problem.inputs[index]))
                if changed := change(before, self._hidden()):
                    return _kept(changed)
                if not _near(together[client, : len(index)], alone, alone.abs()):
                    return "the model does otherwise together than alone: its outputs in tests differ"
        return None

    def _hidden(self) -> dict[str, object]:
        model, layout = self._worker.model("model"), self._problem.layout
        return hidden_state({"": model.trunk, layout.classifier: model.head}, layout)


def _kept(changed: str | None) -> str | None:
    return None if changed is None else f"the model keeps '{changed}', which changes as it runs"


def _near(found: Tensor, expected: Tensor, moved: Tensor) -> bool:
    """Whether two tensors are the same but for rounding, given by how much they could differ."""
    if not expected.numel():
        return True
    most = moved[moved.isfinite()].amax() if bool(moved.isfinite().any()) else moved.new_zeros(())
    size = expected.abs().nan_to_num(posinf=0.0)
    apart = (found - expected).abs()
    return bool(((found == expected) | (apart <= SHARE * most + LEAST * (1 + size))).all())


def _samples(ground: Ground) -> tuple[Tensor, Tensor]:
    """A whole batch of the largest client, and one as small as any in the run: what depends on its size shows."""
    problem, sizes = ground.problem, ground.train.sizes
    batch, largest = problem.training.batch, int(sizes.argmax())
    whole = min(batch, int(sizes[largest]))
    ends = torch.where(sizes > batch, (sizes - 1) % batch + 1, sizes.clamp(max=batch))
    least = 2 if problem.skip_single_samples else 1
    smallest = min([whole, *ends[ends >= least].tolist()])
    if smallest == whole > least:
        smallest = whole - 1
    other = int(torch.where(sizes >= smallest, sizes, sizes.max()).argmin())
    return problem.train[largest][:whole], problem.train[other][-smallest:]


def _federation(problem: Problem, seed: int) -> Federation:
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
    rows = torch.stack([federation.initial, OTHER * federation.initial])
    slot.write_own(federation.everyone, layout.everything, slot.columns.take(rows))
    return federation
