"""Max-pooling of tested models gives PyTorch's values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.client.model import GradientFreeMaxPool, MountedModel, pool_fast_when_tested
from coterie.core.layout import Layout

FORMATS = (torch.contiguous_format, torch.channels_last)


def maps(*shape: int) -> Tensor:
    # Rounded, so that windows hold equal values.
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).round(decimals=1)


@pytest.mark.parametrize("memory", FORMATS, ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("size", [(8, 8), (7, 9), (2, 3), (28, 28)], ids=str)
def test_without_gradients_the_values_and_the_memory_format_are_pytorch_s(
    size: tuple[int, int], memory: torch.memory_format
) -> None:
    x = maps(3, 4, *size).contiguous(memory_format=memory)
    with torch.no_grad():
        ours, theirs = GradientFreeMaxPool(2)(x), nn.MaxPool2d(2)(x)
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous(memory_format=memory)


@pytest.mark.parametrize(
    "geometry",
    [{"kernel_size": 3}, {"stride": 1}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}, {"kernel_size": (2, 1)}],
    ids=str,
)
def test_other_windows_are_pytorch_s(geometry: dict[str, int]) -> None:
    settings = {"kernel_size": 2, "stride": 2, **geometry}
    with torch.no_grad():
        assert torch.equal(
            GradientFreeMaxPool(**settings)(maps(2, 3, 9, 9)), nn.MaxPool2d(**settings)(maps(2, 3, 9, 9))
        )


def test_what_is_not_a_number_stays_so() -> None:
    x = maps(1, 1, 4, 4)
    x[0, 0, 1, 0] = torch.nan
    with torch.no_grad():
        ours, theirs = GradientFreeMaxPool(2)(x), nn.MaxPool2d(2)(x)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_gradients_are_pytorch_s() -> None:
    ours, theirs = maps(2, 3, 8, 8).requires_grad_(), maps(2, 3, 8, 8).requires_grad_()
    GradientFreeMaxPool(2)(ours).pow(2).sum().backward()
    nn.MaxPool2d(2)(theirs).pow(2).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.equal(ours.grad, theirs.grad)


def test_a_mounted_model_pools_fast_and_its_owner_s_model_is_left_alone() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 2))
    model = MountedModel(net, Layout(net, classifier="3"))
    assert [type(layer) for layer in net] == [nn.Conv2d, nn.MaxPool2d, nn.Flatten, nn.Linear]
    assert any(type(layer) is GradientFreeMaxPool for layer in model.trunk.modules())
    with torch.no_grad():
        assert torch.equal(model.head(model.trunk(maps(4, 1, 8, 8))), net(maps(4, 1, 8, 8)))


def test_a_pool_of_somebody_s_own_stays_what_it_is() -> None:
    class Own(nn.MaxPool2d):
        pass

    net = nn.Sequential(Own(2))
    pool_fast_when_tested(net)
    assert type(net[0]) is Own
