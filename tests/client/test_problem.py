"""What a problem says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support import tiny


@pytest.mark.parametrize(
    ("shape", "at_once"),
    [((1,), 1024), ((64,), 1024), ((256,), 512), ((1, 28, 28), 167), ((3, 32, 32), 128), ((3, 224, 224), 128)],
)
def test_the_smaller_samples_are_the_more_are_tested_at_a_time(shape: tuple[int, ...], at_once: int) -> None:
    problem = tiny("fedavg").prepare().problem()
    assert replace(problem, inputs=torch.zeros(2, *shape)).test_batch == at_once


def test_all_samples_and_who_holds_which_are_on_the_device() -> None:
    there = tiny("fedavg").prepare().problem().on("meta")
    tensors = (there.inputs, there.labels, *there.train, *there.validation, *there.test)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
