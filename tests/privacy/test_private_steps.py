"""DP-SGD against a loop over examples: clipping, noise, Poisson batches."""

from __future__ import annotations

import copy

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.client.batch import Batch
from coterie.client.recipe import Phase
from coterie.client.terms import Proximal, task_loss
from coterie.client.trainer import Trainer, stepping_of, train
from coterie.client.views import BatchView
from coterie.errors import CoterieError
from support import seat, tiny

CLIENT = 2
CLIP = 1.0  # of some gradients, not of all


def private(noise: float = 0.0, clip: float = CLIP, **options: object) -> Trainer:
    """The trainer of a phase at a client of a private run, which tells its true size."""
    settings = {"privacy": "example", "privacy_noise": noise, "privacy_clip": clip, "size_noise": 0.0, **options}
    phase = settings.pop("phase", Phase())
    worker = seat(tiny(**settings).prepare(), CLIENT)
    return Trainer(worker, phase, 0, stepping=stepping_of(worker.federation))


def whole_batch(trainer: Trainer) -> Batch:
    own = trainer.worker.problem.train[CLIENT]
    features = trainer.worker.train_features(trainer.phase.slot)[: len(own)] if trainer.head_only else None
    return Batch(trainer.worker, trainer.phase.slot, own, features)


def summed_by_hand(module: nn.Module, x: Tensor, y: Tensor, clip: float, only: str = "") -> tuple[Tensor, int]:
    """Σ of every example's clipped gradient, one backward pass each; how many were clipped."""
    total, count = 0.0, 0
    for one, label in zip(x, y, strict=True):
        module.zero_grad()
        cross_entropy(module(one[None]), label[None]).backward()
        named = [p.grad for name, p in module.named_parameters() if name.startswith(only)]
        flat = torch.cat([grad.flatten() for grad in named if grad is not None])
        count += bool(clip and flat.norm() > clip)
        total = total + (flat * min(1.0, clip / float(flat.norm())) if clip else flat)
    assert isinstance(total, Tensor)
    return total, count


@pytest.mark.parametrize("clip", [CLIP, 0.0])
def test_examples_gradients_are_clipped_one_by_one(clip: float) -> None:
    trainer = private(clip=clip)
    batch = whole_batch(trainer)
    trainer.gradient(batch)
    module = copy.deepcopy(trainer.worker.problem.module)
    wanted, count = summed_by_hand(module, batch.inputs, batch.labels, clip)
    if clip:
        assert 0 < count < len(batch.labels), "some are clipped and some are not"
    steps = -(-len(batch.labels) // 10)
    found = torch.cat([part.grad for part in trainer.parts])
    assert torch.allclose(found, wanted / (len(batch.labels) / steps), atol=1e-6)


def test_convolutions_gradients_are_clipped_one_by_one() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(4, 3))
    trainer = private(model=module, classifier="3", clip=0.7)
    batch = whole_batch(trainer)
    trainer.gradient(batch)
    wanted, count = summed_by_hand(copy.deepcopy(module), batch.inputs, batch.labels, 0.7)
    assert count > 0
    found = torch.cat([part.grad for part in trainer.parts])
    assert torch.allclose(found, wanted / (len(batch.labels) / -(-len(batch.labels) // 10)), atol=1e-6)


def test_a_frozen_extractor_takes_no_part_in_the_norm() -> None:
    trainer = private(phase=Phase(train="classifier"), clip=0.2)
    batch = whole_batch(trainer)
    trainer.gradient(batch)
    module = copy.deepcopy(trainer.worker.problem.module)
    wanted, count = summed_by_hand(module, batch.inputs, batch.labels, 0.2, only="classifier")
    assert count
    found = torch.cat([part.grad for part in trainer.parts])
    assert torch.allclose(found, wanted / (len(batch.labels) / -(-len(batch.labels) // 10)), atol=1e-6)


def test_examples_that_are_too_many_at_once_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient() -> Tensor:
        trainer = private()
        trainer.gradient(whole_batch(trainer))
        return torch.cat([part.grad for part in trainer.parts]).clone()

    whole = gradient()
    monkeypatch.setattr("coterie.privacy.steps.HELD", 1)
    assert torch.allclose(gradient(), whole, atol=1e-7)


def test_terms_that_mix_a_batch_see_one_example_alone() -> None:
    def coupled(batch: BatchView) -> Tensor:
        return task_loss(batch) - task_loss(batch).mean()

    trainer = private(phase=Phase(terms=(coupled,)))
    trainer.gradient(whole_batch(trainer))
    assert all(not part.grad.any() for part in trainer.parts), "an example minus its own mean is nothing"


def test_every_term_of_an_example_counts() -> None:
    trainer = private(phase=Phase(terms=(task_loss, lambda batch: -task_loss(batch))))
    trainer.gradient(whole_batch(trainer))
    assert all(not part.grad.any() for part in trainer.parts), "a loss and its negative are nothing"


def test_terms_of_the_row_are_neither_clipped_nor_noisy() -> None:
    plain, pulled = private(), private(phase=Phase(row_terms=(Proximal(0.5),)))
    for trainer in (plain, pulled):
        trainer.worker.received()
        for part in trainer.parts:
            part.row.add_(1.0)
        trainer.gradient(whole_batch(trainer))
    for without, with_pull in zip(plain.parts, pulled.parts, strict=True):
        assert torch.allclose(with_pull.grad - without.grad, torch.full_like(without.grad, 0.5), atol=1e-6)


def test_noise_has_the_scale_that_is_accounted_for() -> None:
    silent, noisy = private(), private(noise=3.0)
    silent.gradient(whole_batch(silent))
    count = len(silent.worker.problem.train[CLIENT])
    expected = count / -(-count // 10)
    steps = []
    for _ in range(20):
        noisy.gradient(whole_batch(noisy))
        pairs = zip(noisy.parts, silent.parts, strict=True)
        steps.append(torch.cat([(loud.grad - quiet.grad) * expected for loud, quiet in pairs]))
    noise = torch.stack(steps)  # the seed is fixed: the numbers are the same in every run
    assert float(noise.std()) == pytest.approx(3.0 * CLIP, rel=0.03)
    assert kstest((noise / (3.0 * CLIP)).flatten().numpy(), "norm").pvalue > 0.01
    assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 0.4, "every step has noise of its own"


def test_batches_are_poisson_samples() -> None:
    trainer = private(epochs=200, batch=4)
    count = len(trainer.worker.problem.train[CLIENT])
    steps = -(-count // 4)
    sizes = torch.tensor([len(batch.labels) for batch in trainer.batches()]).double()
    assert len(sizes) == 200 * steps
    assert float(sizes.mean()) == pytest.approx(count / steps, rel=0.1)
    assert float(sizes.var()) == pytest.approx(count / steps * (1 - 1 / steps), rel=0.25)


def test_nobody_drawn_is_a_step_of_noise_alone() -> None:
    trainer = private(noise=1.0)
    empty = Batch(trainer.worker, "model", torch.empty(0, dtype=torch.int64))
    trainer.gradient(empty)
    noise = torch.cat([part.grad for part in trainer.parts])
    assert bool(noise.isfinite().all())
    assert bool(noise.any())


def test_an_example_whose_gradient_is_not_finite_does_not_count() -> None:
    trainer = private()
    batch = whole_batch(trainer)
    trainer.worker.problem.inputs[trainer.worker.problem.train[CLIENT][0]] = torch.inf
    trainer.gradient(batch)
    assert all(bool(part.grad.isfinite().all()) for part in trainer.parts)


def test_phases_draw_samples_of_their_own_even_if_they_share_an_order() -> None:
    worker = seat(tiny(privacy="example", size_noise=0.0, batch=4).prepare(), CLIENT)
    private = stepping_of(worker.federation)
    drawn = [
        [batch._index.tolist() for batch in Trainer(worker, Phase(stream=0), number, stepping=private).batches()]
        for number in (0, 1)
    ]
    assert drawn[0] != drawn[1]


def test_what_stays_at_a_client_is_trained_as_usual() -> None:
    prepared = tiny(privacy="example").prepare()
    plain = tiny().prepare()
    rows = []
    for one in (prepared, plain):
        worker = seat(one, CLIENT)
        train(worker, (Phase(),), stays=True)
        rows.append(worker.model("model").row.clone())
    assert torch.equal(*rows)


def test_dropout_differs_from_example_to_example() -> None:
    trainer = private(model="dropout", clip=0.0)
    batch = whole_batch(trainer)
    one = batch._index[:1].repeat(8)
    assert trainer._own is not None
    outputs = trainer._own.gradient(Batch(trainer.worker, "model", one))
    assert outputs is not None
    assert len(outputs.unique(dim=0)) > 1


def test_batch_norm_is_refused_and_group_norm_is_the_way_out() -> None:
    with pytest.raises(CoterieError, match="norm = group"):
        tiny(model="norm", privacy="example").prepare()
    tiny(model="norm", privacy="example", norm="group").prepare()
