"""Layers, optimisers and batches of clients that train together, against the plain ones of a client alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.client.optimiser import TORCH_OPTIMISERS, leaf_of, torch_optimiser
from coterie.core.training import Training, epoch_batches
from coterie.engines.stacked.phase import Schedule, StackedPart, stacked_optimiser
from coterie.engines.stacked.training_layers import InTraining, StackedModule

COUNTS = (4, 2, 3)
WIDTH = max(COUNTS)


def shares_of(counts: tuple[int, ...] = COUNTS) -> Tensor:
    return torch.stack([torch.cat([torch.full((n,), 1 / n), torch.zeros(WIDTH - n)]) for n in counts])


def streams() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(7 + client) for client in range(len(COUNTS))]


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Every client has tensors of its own; counters of batches are no part of a row."""
    named = (*module.named_parameters(), *module.named_buffers())
    floats = {name: one.detach() for name, one in named if one.is_floating_point()}
    return {
        name: torch.stack([one + 0.1 * k * (1 + torch.rand_like(one)) for k in range(3)])
        for name, one in floats.items()
    }


def plain_copy(make: type[nn.Module], tensors: dict[str, Tensor], client: int, *options: int) -> nn.Module:
    module = make(*options)
    module.load_state_dict({**module.state_dict(), **{name: one[client] for name, one in tensors.items()}})
    return module.train()


def test_batch_norm_by_hand() -> None:
    """Two samples, 1 and 3, and padding: mean 2, variance 1 (unbiased 2); momentum 0.1."""
    module = StackedModule(nn.BatchNorm1d(1, eps=0.0), "")
    tensors = {"weight": torch.tensor([[2.0]]), "bias": torch.tensor([[1.0]])}
    tensors |= {"running_mean": torch.tensor([[0.0]]), "running_var": torch.tensor([[1.0]])}
    now = InTraining(torch.tensor([[0.5, 0.5, 0.0]]), [2], [torch.Generator()])
    out = module(tensors, torch.tensor([[[1.0], [3.0], [99.0]]]), now)
    assert out[0, :2, 0].tolist() == pytest.approx([-1.0, 3.0])
    assert now.statistics["running_mean"].item() == pytest.approx(0.2)
    assert now.statistics["running_var"].item() == pytest.approx(0.9 * 1.0 + 0.1 * 2.0)


@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (3, 2))])
def test_batch_norm_leaves_the_padding_out(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    tensors = own_tensors(kind(4))
    x = torch.randn(3, WIDTH, 4, *shape)
    weights = {name: one.clone().requires_grad_("running" not in name) for name, one in tensors.items()}
    now = InTraining(shares_of(), COUNTS, streams())
    out = StackedModule(kind(4), "body.")({f"body.{name}": one for name, one in weights.items()}, x, now)
    real = [out[client, :count] for client, count in enumerate(COUNTS)]
    factors = [torch.randn_like(one) for one in real]
    loss = sum(((one * factor).sum() for one, factor in zip(real, factors, strict=True)), torch.zeros(()))
    grads = torch.autograd.grad(loss, [weights["weight"], weights["bias"]])
    for client, (count, factor) in enumerate(zip(COUNTS, factors, strict=True)):
        alone = plain_copy(kind, tensors, client, 4)
        expected = alone(x[client, :count])
        torch.testing.assert_close(real[client], expected, atol=1e-5, rtol=1e-5)
        own = torch.autograd.grad((expected * factor).sum(), list(alone.parameters()))
        torch.testing.assert_close([grad[client] for grad in grads], list(own), atol=1e-4, rtol=1e-4)
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(now.statistics[f"body.{name}"][client], getattr(alone, name))


def test_batch_norm_is_tested_with_its_statistics() -> None:
    tensors = own_tensors(nn.BatchNorm1d(4))
    x = torch.randn(3, WIDTH, 4)
    out = StackedModule(nn.BatchNorm1d(4), "")(tensors, x, None)
    for client in range(3):
        alone = plain_copy(nn.BatchNorm1d, tensors, client, 4).eval()
        torch.testing.assert_close(out[client], alone(x[client]))


@pytest.mark.parametrize(("kind", "p"), [(nn.Dropout, 0.4), (nn.Dropout2d, 0.4), (nn.Dropout, 1.0)])
def test_every_client_draws_its_own_dropout(kind: type[nn.Module], p: float) -> None:
    """As PyTorch's layer does for the client alone, two steps on end."""
    x = torch.randn(3, WIDTH, 2, 3, 3)
    module, drawn = StackedModule(nn.Sequential(kind(p), nn.Tanh()), ""), streams()
    steps = [module({}, x, InTraining(shares_of(), COUNTS, drawn)) for _ in range(2)]
    for client, count in enumerate(COUNTS):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7 + client)
            alone = nn.Sequential(kind(p), nn.Tanh()).train()
            for out in steps:
                torch.testing.assert_close(out[client, :count], alone(x[client, :count]), atol=0, rtol=0)
    assert torch.equal(module({}, x, None), x.tanh())


@pytest.mark.parametrize("optimizer", ["sgd", *TORCH_OPTIMISERS])
def test_optimisers_step_as_for_each_client_alone(optimizer: str) -> None:
    """Clients take 4, 3 and 1 steps: whoever is done stays where it is."""
    torch.manual_seed(0)
    momentum = 0.9 if optimizer in ("sgd", "rmsprop") else 0.0
    decay = 0.0 if optimizer == "rprop" else 0.01
    settings = Training(lr=0.05, optimizer=optimizer, momentum=momentum, weight_decay=decay)
    start, grads = torch.randn(3, 5), torch.randn(4, 3, 5)
    rows, taken = start.clone(), (4, 3, 1)
    parts = [StackedPart("model", slice(0, 2), 0.05, rows[:, :2]), StackedPart("model", slice(2, 5), 0.02, rows[:, 2:])]
    stacked = stacked_optimiser(parts, settings)
    for step, k in enumerate((3, 2, 2, 1)):
        stacked.step([grads[step, :k, :2].clone(), grads[step, :k, 2:].clone()], k)
    for client, steps in enumerate(taken):
        expected = _alone(settings, start[client].clone(), grads[:steps, client])
        torch.testing.assert_close(rows[client], expected, atol=1e-6, rtol=1e-5)


def _alone(settings: Training, row: Tensor, grads: Tensor) -> Tensor:
    leaves = [leaf_of(row[:2], torch.zeros(2)), leaf_of(row[2:], torch.zeros(3))]
    if settings.optimizer == "sgd":
        plain: torch.optim.Optimizer = torch.optim.SGD(
            leaves, lr=0.05, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        plain.param_groups[0]["params"] = leaves[:1]
        plain.add_param_group({"params": leaves[1:]})
    else:
        plain = torch_optimiser([leaves[:1], leaves[1:]], settings)
    for group, rate in zip(plain.param_groups, (0.05, 0.02), strict=True):
        group["lr"] = rate
    for grad in grads:
        leaves[0].grad, leaves[1].grad = grad[:2].clone(), grad[2:].clone()
        plain.step()
    return row


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("skip", [False, True])
def test_batches_are_those_of_each_client_alone(batch: int, skip: bool) -> None:
    sizes, epochs = (10, 7, 4, 1), 3
    steps = [epochs * epoch_batches(size, batch, skip) for size in sizes]
    schedule = Schedule.of(sizes, [torch.Generator().manual_seed(k) for k in range(4)], steps, batch, skip)
    for client, size in enumerate(sizes):
        stream, expected = torch.Generator().manual_seed(client), []
        for epoch in range(epochs):
            parts = torch.randperm(size, generator=stream).split(batch)
            expected += [(part.tolist(), epoch == epochs - 1) for part in parts if len(part) > 1 or not skip]
        found = []
        for step, active in enumerate(schedule.active):
            if client < active:
                count = schedule.counts[step][client]
                own = schedule.positions[step, client, :count].tolist()
                found.append((own, client in schedule.late[step]))
                assert schedule.shares[step, client].sum().item() == pytest.approx(1.0)
                assert int((schedule.shares[step, client] > 0).sum()) == count
        assert found == expected


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_so_many_steps_are_the_first_batches_of_each_client_alone(steps: int) -> None:
    """Whoever has few samples begins more epochs: the last one of each begins in a step of its own."""
    sizes, batch = (10, 7, 4, 1), 3
    schedule = Schedule.of(sizes, [torch.Generator().manual_seed(k) for k in range(4)], [steps] * 4, batch)
    assert schedule.active == [4] * steps
    for client, size in enumerate(sizes):
        stream, expected = torch.Generator().manual_seed(client), list[tuple[list[int], bool]]()
        an_epoch = -(-size // batch)
        while len(expected) < steps:
            parts = torch.randperm(size, generator=stream).split(batch)
            last = len(expected) + an_epoch >= steps
            expected += [(part.tolist(), last) for part in parts]
        for step, (part, last) in enumerate(expected[:steps]):
            assert schedule.positions[step, client, : schedule.counts[step][client]].tolist() == part
            assert (client in schedule.late[step]) == last
