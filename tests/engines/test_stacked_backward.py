"""Backward passes that are written out agree with autograd's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.core.layout import Layout
from coterie.core.task import CrossEntropy
from coterie.engines.stacked.backward import HandWrittenNet
from coterie.engines.stacked.model import BatchedNet
from coterie.testing.toys import seeded

CLIENTS, BATCH = 3, 4


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(50, 6), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.Tanh(), head(5))


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(3, 4, (2, 1), stride=(1, 2), bias=False), nn.Tanh(), nn.Identity()),
        *(nn.Flatten(), head(4)),
    )


def head(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, 3))


def autograd(net: BatchedNet, rows: Tensor, x: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    leaf = rows.clone().requires_grad_()
    tensors = net.tensors(leaf)
    logits = net.logits(tensors, net.features(tensors, x))
    losses = torch.stack([cross_entropy(logits[k], labels[k], reduction="none") for k in range(CLIENTS)])
    (losses * shares).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize(("make", "classifier"), [(perceptron, "5"), (convolutions, "7")])
def test_gradients_are_those_of_autograd(make: type[nn.Module], classifier: str) -> None:
    module = seeded(make)
    layout = Layout(module, classifier)
    net, by_hand = BatchedNet(module, layout), HandWrittenNet.of(module, layout, CrossEntropy())
    assert by_hand is not None
    rows = layout.row(module) + 0.3 * torch.randn(CLIENTS, layout.width)
    x, labels = torch.randn(CLIENTS, BATCH, 2, 5, 5), torch.randint(3, (CLIENTS, BATCH))
    shares = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    expected = autograd(net, rows, x, labels, shares)

    found = torch.full_like(rows, torch.nan)
    by_hand.gradients(net.tensors(rows), net.tensors(found), x, labels, shares, head_only=False)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)

    columns = layout.columns("classifier")
    features = net.features(net.tensors(rows), x)
    found = torch.zeros_like(rows)
    by_hand.gradients(net.tensors(rows), net.tensors(found), features, labels, shares, head_only=True)
    torch.testing.assert_close(columns.take(found), columns.take(expected), atol=1e-6, rtol=1e-5)
    assert not layout.columns("extractor").take(found).any()


def test_only_what_is_trained_gets_a_gradient() -> None:
    module = seeded(convolutions)
    layout = Layout(module, "7")
    net, by_hand = BatchedNet(module, layout), HandWrittenNet.of(module, layout, CrossEntropy())
    assert by_hand is not None
    rows = layout.row(module).repeat(CLIENTS, 1)
    x, labels = torch.randn(CLIENTS, BATCH, 2, 5, 5), torch.randint(3, (CLIENTS, BATCH))
    shares = torch.full((CLIENTS, BATCH), 1 / BATCH)
    expected = net.tensors(autograd(net, rows, x, labels, shares))
    into = {"0.bias": torch.empty(CLIENTS, 3), "7.0.weight": torch.empty(CLIENTS, 7, 4)}
    by_hand.gradients(net.tensors(rows), into, x, labels, shares, head_only=False)
    for name, found in into.items():
        torch.testing.assert_close(found, expected[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        nn.GELU(),
        nn.Conv2d(2, 2, 1, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding_mode="reflect", padding=1),
        nn.MaxPool2d(2),  # not between convolutions
        nn.Linear(5, 5),  # on images
    ],
    ids=str,
)
def test_other_layers_are_left_to_autograd(layer: nn.Module) -> None:
    before = nn.Conv2d(2, 2, 1) if isinstance(layer, nn.Linear) else nn.Identity()
    module = nn.Sequential(before, layer, nn.Flatten(), nn.LazyLinear(3))
    module(torch.zeros(1, 2, 5, 5))
    assert HandWrittenNet.of(module, Layout(module, "3"), CrossEntropy()) is None
