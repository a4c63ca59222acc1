"""Every model ends with its classifier, and can be trained and used under torch.func."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from coterie.models import MODELS, build

pytestmark = pytest.mark.thorough

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("reading", ["last", "all"])
def test_the_model_ends_with_its_classifier(name: str, reading: str) -> None:
    torch.manual_seed(0)
    model = build(name, (3, 32, 32), 10).eval()
    path = MODELS[name].classifiers[reading]
    classifier = model.get_submodule(path)
    with torch.no_grad():
        logits = model(IMAGES)
        model.set_submodule(path, nn.Identity())
        features = model(IMAGES)
        assert torch.equal(classifier(features), logits)
    assert features.ndim == 2
    assert logits.shape == (4, 10)


@pytest.mark.parametrize("name", MODELS)
def test_the_last_reading_is_the_last_linear_layer(name: str) -> None:
    model = build(name, (1, 8, 8), 7)
    linear = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert MODELS[name].classifiers["last"] == linear[-1]
    assert model.get_submodule(linear[-1]).out_features == 7


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
def test_the_all_reading_holds_every_linear_layer(name: str) -> None:
    model = build(name, (1, 8, 8), 7)
    path = MODELS[name].classifiers["all"]
    for inner, module in model.named_modules():
        if isinstance(module, nn.Linear):
            assert inner == path or inner.startswith(path + ".")
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d)):
            assert not inner.startswith(path)


def test_dropout_belongs_to_the_features_of_mobilenet_v2() -> None:
    model = build("mobilenet_v2", (1, 8, 8), 10, dropout=0.9)
    classifier = model.get_submodule("classifier.1")
    images = IMAGES[:, :1, :8, :8]
    torch.manual_seed(5)
    logits = model(images)
    model.set_submodule("classifier.1", nn.Identity())
    torch.manual_seed(5)
    features = model(images)
    assert torch.equal(classifier(features), logits)
    assert (features == 0).float().mean() > 0.8


@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_parameter(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, (3, 32, 32), 10)
    nn.functional.cross_entropy(model(IMAGES), torch.arange(4)).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert torch.isfinite(parameter.grad).all(), path
        assert parameter.grad.abs().sum() > 0, path


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet5"])
@pytest.mark.parametrize("side", [8, 28])
def test_stacked_parameters_run_under_vmap(name: str, side: int) -> None:
    torch.manual_seed(0)
    models = [build(name, (1, side, side), 5).eval() for _ in range(3)]
    images = torch.randn(3, 2, 1, side, side)
    parameters, buffers = stack_module_state(models)

    def loss(one: dict[str, torch.Tensor], stats: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        return functional_call(models[0], (one, stats), (batch,)).square().sum()

    together = vmap(loss)(parameters, buffers, images)
    gradients = vmap(grad(loss))(parameters, buffers, images)
    for k, model in enumerate(models):
        alone = model(images[k]).square().sum()
        alone.backward()
        torch.testing.assert_close(together[k], alone)
        for path, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[path][k], parameter.grad)


@pytest.mark.parametrize("name", ["alexnet_small", "resnet8", "mobilenet_v2"])
def test_larger_models_run_under_vmap_too(name: str) -> None:
    models = [build(name, (1, 8, 8), 5).eval() for _ in range(2)]
    images = IMAGES[:, :1, :8, :8]
    stacked = stack_module_state(models)
    with torch.no_grad():
        together = vmap(lambda *state: functional_call(models[0], state, (images,)))(*stacked)
        for k, model in enumerate(models):
            torch.testing.assert_close(together[k], model(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_activations_never_work_in_place(name: str) -> None:
    for module in build(name, (1, 8, 8), 2).modules():
        assert not getattr(module, "inplace", False)
