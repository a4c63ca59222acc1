"""Weights on disk: a round trip, a new classifier on a pretrained extractor, and files that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from coterie.errors import CoterieError
from coterie.models import MODELS, build, load_weights

SHAPE = (1, 8, 8)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The file of a lenet5 for 10 classes, with batch-norm statistics that are not the initial ones."""
    model = build("lenet5", SHAPE, 10)
    model(torch.randn(8, *SHAPE))
    save_file(model.state_dict(), tmp_path / "lenet5.safetensors")
    return tmp_path / "lenet5.safetensors"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cnn", "resnet8", "mobilenet_v2"])
@pytest.mark.parametrize("reading", [None, "last"])
def test_weights_survive_the_round_trip(name: str, reading: str | None, tmp_path: Path) -> None:
    first, second = build(name, SHAPE, 10), build(name, SHAPE, 10)
    first(torch.randn(8, *SHAPE))
    save_file(first.state_dict(), tmp_path / "weights.safetensors")
    classifier = MODELS[name].classifiers[reading] if reading else None
    assert load_weights(second, tmp_path / "weights.safetensors", classifier=classifier) == ()
    wanted = first.state_dict()
    assert all(torch.equal(tensor, wanted[key]) for key, tensor in second.state_dict().items())


def test_a_classifier_for_other_classes_stays_fresh(stored: Path) -> None:
    model = build("lenet5", SHAPE, 3)
    fresh = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    left = load_weights(model, str(stored), classifier="classifier.4")
    assert left == ("classifier.4.weight", "classifier.4.bias")
    state = model.state_dict()
    assert all(torch.equal(state[key], fresh[key]) for key in left)
    assert not torch.equal(state["features.0.weight"], fresh["features.0.weight"])
    assert not torch.equal(state["features.1.running_mean"], fresh["features.1.running_mean"])


def test_a_file_without_classifier_or_counters_is_enough(tmp_path: Path) -> None:
    state = build("lenet5", SHAPE, 10).state_dict()
    kept = {key: t for key, t in state.items() if "classifier.4" not in key and "num_batches" not in key}
    save_file(kept, tmp_path / "headless.safetensors")
    left = load_weights(build("lenet5", SHAPE, 10), tmp_path / "headless.safetensors", classifier="classifier.4")
    assert set(left) == set(state) - set(kept)


def test_nothing_is_written_unless_everything_fits(stored: Path) -> None:
    model = build("lenet5", SHAPE, 3)
    fresh = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(CoterieError, match=r"'classifier.4.\w+' has shape .* \(and 1 more problems\)"):
        load_weights(model, stored)
    assert all(torch.equal(tensor, fresh[key]) for key, tensor in model.state_dict().items())


def test_files_that_do_not_fit_are_explained(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"tensor 'features\.3\.weight' is missing"):
        load_weights(build("cnn", SHAPE, 10), stored)
    with pytest.raises(CoterieError, match="classifier = 'fc': the model has no tensors"):
        load_weights(build("lenet5", SHAPE, 10), stored, classifier="fc")
    with pytest.raises(CoterieError, match=r"nowhere.safetensors': there is no such file"):
        load_weights(build("lenet5", SHAPE, 10), tmp_path / "nowhere.safetensors")
    (tmp_path / "weights.pth").write_bytes(b"not a safetensors file")
    with pytest.raises(CoterieError, match="not a safetensors file"):
        load_weights(build("lenet5", SHAPE, 10), tmp_path / "weights.pth")
    wide = build("lenet5", SHAPE, 10).state_dict() | {"extra.weight": torch.zeros(1)}
    save_file(wide, tmp_path / "wide.safetensors")
    with pytest.raises(CoterieError, match=r"the model has no tensor 'extra.weight'$"):
        load_weights(build("lenet5", SHAPE, 10), tmp_path / "wide.safetensors")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (
            "resnet18",
            ["conv1.weight", "bn1.running_var", "layer1.1.conv2.weight", "layer2.0.downsample.1.bias"],
        ),
        ("resnet18", ["layer4.1.bn2.num_batches_tracked", "fc.bias"]),
        ("mobilenet_v2", ["features.0.0.weight", "features.1.conv.2.weight", "features.2.conv.1.1.bias"]),
        ("mobilenet_v2", ["features.17.conv.3.running_mean", "features.18.1.weight", "classifier.1.weight"]),
    ],
)
def test_tensors_bear_the_names_of_published_checkpoints(name: str, keys: list[str]) -> None:
    assert set(keys) <= set(build(name, SHAPE, 10).state_dict())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(stored: Path, value: float) -> None:
    weights = load_file(stored)
    name = next(name for name, tensor in weights.items() if tensor.is_floating_point())
    weights[name].view(-1)[0] = value
    save_file(weights, stored)
    with pytest.raises(CoterieError, match=f"tensor '{name}' holds NaN or infinite values"):
        load_weights(build("lenet5", SHAPE, 10), stored)


def test_weights_beyond_the_models_kind_of_numbers_are_refused(stored: Path) -> None:
    weights = load_file(stored)
    name = next(name for name, tensor in weights.items() if tensor.is_floating_point())
    for value, reason in ((torch.tensor(1e300, dtype=torch.float64), "NaN or infinite"), (torch.tensor(1j), "complex")):
        save_file(weights | {name: value.expand(weights[name].shape).contiguous()}, stored)
        with pytest.raises(CoterieError, match=f"tensor '{name}' holds {reason}"):
            load_weights(build("lenet5", SHAPE, 10), stored)
