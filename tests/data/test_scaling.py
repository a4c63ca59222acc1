"""Images on the scale of a published program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.data import Dataset, load
from coterie.data.dataset import rescaled
from coterie.errors import CoterieError
from coterie.partition import Iid
from coterie.runs.experiment import Experiment
from support import normalise


def pictures(pixels: np.ndarray, name: str = "cifar10") -> Dataset:
    return Dataset(name, normalise(pixels.astype(np.uint8)), torch.arange(len(pixels)) % 2, classes=2)


def test_pixels_of_255_are_divided_by_deviations_of_1() -> None:
    pixels = np.zeros((2, 3, 1, 2))
    pixels[0, :, 0, 0] = 0, 0, 0
    pixels[0, :, 0, 1] = 1, 100, 255
    found = rescaled(pictures(pixels), "published").inputs
    # By hand: (0 - 0.4914) / 0.2023, (0 - 0.4822) / 0.1994, (0 - 0.4465) / 0.2010.
    assert found[0, :, 0, 0].tolist() == pytest.approx([-2.429066, -2.418255, -2.221393], abs=1e-6)
    # By hand: (1 - 0.4914) / 0.2023, (100 - 0.4822) / 0.1994, (255 - 0.4465) / 0.2010.
    assert found[0, :, 0, 1].tolist() == pytest.approx([2.514088, 499.086259, 1266.435323], rel=1e-6)


def test_every_pixel_is_what_the_program_computes_bit_for_bit() -> None:
    """Its steps: bytes as float32, minus the mean, divided by the deviation."""
    values = torch.arange(256)
    pixels = values.repeat(700, 3, 1, 1).numpy()  # more images than are scaled at a time
    data = pictures(pixels)
    before = data.inputs.clone()
    found = rescaled(data, "published").inputs
    means, deviations = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    expected = (values.float() - means[:, None]) / deviations[:, None]
    assert torch.equal(found[:, :, 0], expected.expand(700, 3, 256))
    assert torch.equal(data.inputs, before)


def test_nothing_changes_unless_asked_for() -> None:
    data = pictures(np.zeros((2, 3, 2, 2)))
    assert rescaled(data, "") is data
    assert Experiment().scale == ""


def test_what_has_no_published_scale_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"data 'digits' has no published scale \(cifar10 has\); leave it out"):
        rescaled(load("digits"), "published")
    flat = Dataset("cifar10", torch.zeros(4, 5), torch.arange(4) % 2, classes=2)
    with pytest.raises(CoterieError, match="must be images of 3 channels"):
        rescaled(flat, "published")
    wide = replace(pictures(np.zeros((4, 3, 2, 2))), inputs=torch.full((4, 3, 2, 2), 7.0))
    with pytest.raises(CoterieError, match=r"scaled to -1 \.\. 1"):
        rescaled(wide, "published")


def test_a_run_trains_on_it_and_says_so(tmp_path: Path) -> None:
    data = pictures(np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8)))
    settings = {"partition": Iid(clients=2), "rounds": 1, "epochs": 1, "lr": 1e-5}
    published = Experiment("fedavg", data, scale="published", **settings)
    assert torch.equal(published.prepare().problem_base.inputs, rescaled(data, "published").inputs)
    assert torch.equal(Experiment("fedavg", data, **settings).prepare().problem_base.inputs, data.inputs)
    published.run(tmp_path / "run")
    assert 'scale = "published"' in (tmp_path / "run" / "config.toml").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["config"]["scale"] == "published"
