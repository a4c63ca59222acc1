"""Group norm in the place of batch norm."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.core.layout import BatchNorm
from coterie.models import build
from coterie.models.layers import with_group_norm


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (6, 1), (8, 2), (64, 16), (256, 32), (36, 9), (7, 1)])
def test_groups_are_of_equally_many_channels(channels: int, groups: int) -> None:
    layer = with_group_norm(nn.BatchNorm2d(channels))
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


def test_no_batch_norm_is_left_and_the_rest_is_as_it_was() -> None:
    model = build("resnet8", (3, 16, 16), 10)
    other = with_group_norm(model)
    assert not any(isinstance(layer, BatchNorm) for layer in other.modules())
    assert any(isinstance(layer, BatchNorm) for layer in model.modules()), "the one given is left alone"
    assert torch.equal(other.fc.weight, model.fc.weight)
    x = torch.randn(4, 3, 16, 16)
    assert torch.allclose(other.train()(x)[:1], other.train()(x[:1]), atol=1e-5), "samples do not see each other"


def test_features_of_a_flat_layer_survive() -> None:
    x = torch.randn(5, 8)
    assert float(with_group_norm(nn.BatchNorm1d(8))(x).detach().abs().max()) > 0.1
