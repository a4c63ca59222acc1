"""Masks of dropout, drawn by an operation of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.client.model import AnyDropout, dropout_mask


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout, [2, 3, 4, 4]), (nn.Dropout2d, [2, 3, 1, 1]), (nn.Dropout3d, [2, 3, 1, 1])]
)
def test_whole_channels_have_one_number_each(layer: type[AnyDropout], shape: list[int]) -> None:
    stream = torch.Generator().manual_seed(0)
    mask = dropout_mask(layer(0.75), torch.Size([2, 3, 4, 4]), torch.ones(1), stream)
    assert list(mask.shape) == shape
    assert set(mask.flatten().tolist()) <= {0.0, 4.0}  # 1 / (1 - 0.75)


def test_if_all_is_dropped_nothing_is_divided_by_zero() -> None:
    assert dropout_mask(nn.Dropout(1.0), torch.Size([2, 3]), torch.ones(1)).tolist() == [[0.0] * 3] * 2
