"""The fingerprint of a data set: the same for the same data, another if anything changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie.data import Dataset
from coterie.data.dataset import WHOLE, fingerprint


def data(*shape: int, whole_numbers: bool = False) -> Dataset:
    stream = torch.Generator().manual_seed(0)
    size = (200, *shape)
    inputs = torch.randint(99, size, generator=stream) if whole_numbers else torch.randn(size, generator=stream)
    return Dataset("toy", inputs, torch.arange(200) % 4, classes=4)


@pytest.mark.parametrize("shape", [(3,), (4,), (2, 5, 5)])
def test_one_number_of_one_sample_changes_it(shape: tuple[int, ...]) -> None:
    before = data(*shape)
    for sample in (0, 1, 117, 199):
        inputs = before.inputs.clone()
        inputs[sample].view(-1)[-1] += 1e-6
        after = fingerprint(replace(before, inputs=inputs))
        assert after["inputs"] != fingerprint(before)["inputs"]
        assert after["labels"] == fingerprint(before)["labels"]


def test_the_order_of_samples_counts() -> None:
    before = data(4)
    swapped = before.inputs.clone()
    swapped[[10, 11]] = before.inputs[[11, 10]]
    assert fingerprint(replace(before, inputs=swapped))["inputs"] != fingerprint(before)["inputs"]


def test_numbers_that_swap_places_are_noticed_in_the_samples_hashed_whole() -> None:
    before = data(4)
    assert len(before) > WHOLE
    turned = before.inputs.flip(1)
    assert fingerprint(replace(before, inputs=turned))["inputs"] != fingerprint(before)["inputs"]


def test_a_label_changes_its_part_alone() -> None:
    before = data(4)
    labels = before.labels.clone()
    labels[150] = 0
    after = fingerprint(replace(before, labels=labels))
    assert after["labels"] != fingerprint(before)["labels"]
    assert after["inputs"] == fingerprint(before)["inputs"]


def test_the_order_in_memory_and_the_threads_do_not_matter() -> None:
    images = data(2, 5, 5)
    other = replace(images, inputs=images.inputs.contiguous(memory_format=torch.channels_last))
    assert fingerprint(other) == fingerprint(images)


def test_shape_and_kind_of_number_count() -> None:
    assert fingerprint(data(2, 5))["inputs"] != fingerprint(data(10))["inputs"]
    whole = data(10, whole_numbers=True)
    assert fingerprint(whole)["inputs"] != fingerprint(replace(whole, inputs=whole.inputs.float()))["inputs"]
