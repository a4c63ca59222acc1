"""Building by name: the same seed gives the same model, and mistakes are explained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie.errors import CoterieError
from coterie.models import MODELS, build


def test_names_and_readings_are_consistent() -> None:
    assert list(MODELS) == [
        "alexnet_small", "cnn", "lenet5", "linear", "mlp", "mobilenet_v2", "resnet10", "resnet18", "resnet8",
    ]  # fmt: skip
    for name, spec in MODELS.items():
        assert spec.name == name
        assert set(spec.classifiers) == {"last", "all"}
        assert "\n" not in spec.description


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_gives_the_same_model(name: str) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(build(name, [1, 8, 8], 3).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not all(torch.equal(states[0][key], states[2][key]) for key in states[0])


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "message"),
    [
        ("lenet", (1, 8, 8), 10, {}, "unknown model 'lenet'; did you mean 'lenet5'?"),
        ("cnn", (1, 8, 8), 10, {"hidden": 3}, "unknown option of model cnn 'hidden' (allowed: none)"),
        ("mlp", (1, 8, 8), 10, {"hidden": 3}, "hidden = 3: must be a list"),
        ("mlp", (1, 8, 8), 10, {"hidden": [0]}, "hidden = [0]: must be a list"),
        ("mobilenet_v2", (1, 8, 8), 10, {"dropout": 1.0}, "dropout = 1.0: must be"),
        ("mobilenet_v2", (1, 8, 8), 10, {"dropout": "low"}, "dropout = 'low': must be"),
        ("cnn", (64,), 10, {}, "model 'cnn' takes inputs of shape (channels, height, width)"),
        ("mlp", (8, 8), 10, {}, "(channels, height, width) or (features,)"),
        ("mlp", (), 10, {}, "(channels, height, width) or (features,)"),
        ("cnn", (1, 0, 8), 10, {}, "shape = (1, 0, 8): every side"),
        ("cnn", (1, 8, 8), 0, {}, "classes = 0: must be"),
    ],
)
def test_mistakes_are_named(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CoterieError) as caught:
        build(name, shape, classes, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
