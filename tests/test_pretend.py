"""The pretend device is a device: it computes, mixes with nothing else, and counts what comes and goes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests import pretend


def there(*values: float) -> torch.Tensor:
    return torch.tensor(values).to(pretend.NAME)


def test_it_computes_what_the_processor_computes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)
    )
    x, labels = torch.randn(5, 1, 8, 8), torch.randint(4, (5,))
    moved = nn.Sequential(*(layer for layer in net))  # the same layers, which `to` changes
    functional.cross_entropy(net(x), labels).backward()
    here = [(one.detach().clone(), one.grad.clone()) for one in net.parameters() if one.grad is not None]
    net.zero_grad(set_to_none=True)
    moved.to(pretend.NAME)
    functional.cross_entropy(moved(x.to(pretend.NAME)), labels.to(pretend.NAME)).backward()
    for (weights, grad), one in zip(here, moved.parameters(), strict=True):
        assert one.device.type == pretend.NAME
        assert one.grad is not None
        assert torch.equal(one.detach().cpu(), weights)
        assert torch.equal(one.grad.cpu(), grad)


def test_views_share_memory() -> None:
    row = torch.zeros(6, device=pretend.NAME)
    row[2:6].view(2, 2)[0] = 3.0
    row[4:].add_(1)
    assert row.cpu().tolist() == [0, 0, 3, 3, 1, 1]


def test_it_mixes_with_nothing_else() -> None:
    for mixed in (
        lambda: there(1.0) + torch.ones(1),
        lambda: there(1.0, 2.0)[torch.tensor([0])],
        lambda: torch.ones(1, 2) @ there(1.0, 2.0),
        lambda: torch.where(torch.tensor([True]), there(1.0), there(2.0)),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()
    assert (there(1.0) + torch.tensor(2.0)).cpu().tolist() == [3.0]  # a number is none, as on other devices


def test_what_comes_and_goes_is_counted() -> None:
    with pretend.counted() as traffic:
        moved = there(1.0, 2.0)
        total = (moved * 2).sum()
        assert float(total) == 6.0
        assert moved.cpu().tolist() == [1.0, 2.0]
        moved.copy_(torch.zeros(2))
    assert (traffic.there, traffic.back, traffic.numbers) == (2, 1, 1)


def test_memory_may_be_short_and_precision_single() -> None:
    with pretend.short_of_memory(7), pytest.raises(torch.OutOfMemoryError, match="8 bytes, 7 are free"):
        torch.empty(2, device=pretend.NAME)
    with pretend.without_float64(), pytest.raises(TypeError, match="no float64"):
        there(1.0).double()
    assert there(1.0).double().cpu().dtype == torch.float64
