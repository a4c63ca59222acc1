"""The label-conditional generator and its row."""

from __future__ import annotations

import copy

import torch
from torch import nn

from coterie.methods.fedgen import GeneratorShape

SHAPE = GeneratorShape(classes=3, noise=4, hidden=6, features=5)


def test_a_row_holds_parameters_and_running_statistics() -> None:
    assert SHAPE.layout.width == (3 + 4) * 6 + 2 * 6 + 6 * 5 + 5 + 2 * 6
    assert SHAPE.initial(1).shape == (SHAPE.layout.width,)
    assert torch.equal(SHAPE.initial(1), SHAPE.initial(1))
    assert not torch.equal(SHAPE.initial(1), SHAPE.initial(2))


def test_generating_is_the_formula_in_evaluation_mode() -> None:
    module = SHAPE.build()
    module(torch.tensor([0, 1, 2, 1]), torch.rand(4, 4))  # moves the running statistics
    row, labels = SHAPE.layout.row(module), torch.tensor([2, 0])
    noise = torch.rand(2, 4, generator=torch.Generator().manual_seed(5))
    linear, norm, out = module.body[0], module.body[1], module.feature
    assert isinstance(linear, nn.Linear)
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    hidden = torch.cat([torch.eye(3)[labels], noise], 1) @ linear.weight.T
    hidden = (hidden - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    expected = hidden.clamp(min=0) @ out.weight.T + out.bias
    found = SHAPE.generate(row, labels, torch.Generator().manual_seed(5))
    torch.testing.assert_close(found, expected.detach())


def test_generating_changes_nothing_and_draws_from_its_stream_alone() -> None:
    row, state = SHAPE.initial(0), torch.get_rng_state()
    before = copy.deepcopy(row)
    stream = torch.Generator().manual_seed(0)
    first = SHAPE.generate(row, torch.tensor([0]), stream)
    second = SHAPE.generate(row, torch.tensor([0]), stream)
    assert not torch.equal(first, second)
    assert torch.equal(row, before)
    assert torch.equal(torch.get_rng_state(), state)
