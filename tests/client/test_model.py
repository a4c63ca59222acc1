"""A network is the user's model cut at its classifier: same values, one row, or a refusal that says why."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.client.model import MountedModel, check_split, single_samples_fail
from coterie.core.columns import Columns
from coterie.core.layout import Layout
from coterie.errors import CoterieError
from coterie.models import MODELS, build
from coterie.testing.toys import CLASSES, FEATURES, NormNet, PlainNet, seeded
from support import DropNet

SAMPLE = torch.linspace(-1, 1, 2 * FEATURES).view(2, FEATURES)


@pytest.mark.parametrize("kind", [PlainNet, NormNet, DropNet])
def test_trunk_and_head_make_up_the_model(kind: type[nn.Module]) -> None:
    module = seeded(kind).eval()
    network = MountedModel(module, Layout(module, "classifier"))
    network.mode(False)
    assert torch.equal(network.head(network.trunk(SAMPLE)), module(SAMPLE))


def test_the_given_module_is_left_alone() -> None:
    module = seeded(NormNet)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    network = MountedModel(module, Layout(module, "classifier"))
    network.mode(True)
    network.trunk(torch.randn(4, FEATURES))
    network.row.zero_()
    assert isinstance(module.classifier, nn.Linear)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_gradients_land_in_the_flat_gradient() -> None:
    module = seeded(PlainNet)
    layout = Layout(module, "classifier")
    network = MountedModel(module, layout)
    network.train_only(layout.columns("all"))
    network.head(network.trunk(SAMPLE)).square().sum().backward()
    module(SAMPLE).square().sum().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
    assert torch.allclose(network.grad, expected, atol=1e-6)
    assert float(network.grad.abs().sum()) > 0


def test_train_only_freezes_all_other_parameters() -> None:
    module = seeded(NormNet)
    layout = Layout(module, "classifier")
    network = MountedModel(module, layout)
    network.train_only(layout.columns("classifier"))
    assert all(parameter.requires_grad for parameter in network.head.parameters())
    assert not any(parameter.requires_grad for parameter in network.trunk.parameters())
    network.train_only(Columns())
    assert not any(parameter.requires_grad for parameter in network.head.parameters())


@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn"])
@pytest.mark.parametrize("reading", ["last", "all"])
def test_built_in_models_split(name: str, reading: str) -> None:
    module = build(name, (1, 8, 8), 10)
    layout = Layout(module, MODELS[name].classifiers[reading])
    width = check_split(module, layout, torch.randn(2, 1, 8, 8))
    assert width == MountedModel(module, layout).trunk(torch.randn(3, 1, 8, 8)).shape[1]


class Follows(nn.Module):
    """Something follows the classifier."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.classifier = nn.Linear(FEATURES, CLASSES)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.classifier(x))
        return out


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.Linear(CLASSES, CLASSES), nn.Linear(CLASSES, 5), nn.Flatten(0)])
def test_a_model_that_goes_on_after_its_classifier_is_refused(last: nn.Module) -> None:
    module = Follows(last)
    with pytest.raises(CoterieError, match="classifier 'classifier'") as caught:
        check_split(module, Layout(module, "classifier"), SAMPLE)
    assert "\n" not in str(caught.value)


def test_the_first_layer_as_classifier_is_refused() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    with pytest.raises(CoterieError, match="classifier '0'"):
        check_split(module, Layout(module, "0"), SAMPLE)


def test_a_model_for_other_data_is_refused_in_one_line() -> None:
    module = nn.Sequential(nn.Linear(FEATURES + 1, 8), nn.Linear(8, CLASSES))
    with pytest.raises(CoterieError, match=r"inputs of shape \(6,\)") as caught:
        check_split(module, Layout(module, "1"), SAMPLE)
    assert "\n" not in str(caught.value)


class Twins(nn.Module):
    """The classifier is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(torch.relu(self.classifier(x)))
        return out


def test_a_classifier_that_is_used_twice_is_refused() -> None:
    module = Twins()
    with pytest.raises(CoterieError, match="classifier 'classifier'"):
        check_split(module, Layout(module, "classifier"), SAMPLE)


class TwoInputs(nn.Module):
    """The rest of the model hands its classifier a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Bilinear(FEATURES, FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(x, x.flip(1))
        return out


def test_a_classifier_of_two_inputs_is_refused() -> None:
    module = TwoInputs()
    with pytest.raises(CoterieError, match="classifier 'classifier'"):
        check_split(module, Layout(module, "classifier"), SAMPLE)


IMAGE = torch.randn(1, 1, 4, 4)


@pytest.mark.parametrize(
    ("module", "sample", "fails"),
    [
        (nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 2)), SAMPLE, True),
        (nn.Sequential(nn.Conv2d(1, 2, 4), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2)), IMAGE, True),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)), IMAGE, False),
        (nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 2)), SAMPLE, False),
        (nn.Sequential(nn.Linear(FEATURES, 2)), SAMPLE, False),
    ],
)
def test_where_a_single_sample_cannot_be_trained_on(module: nn.Module, sample: Tensor, fails: bool) -> None:
    module.eval()
    assert single_samples_fail(module, sample) is fails
    assert not module.training


def test_checking_a_model_leaves_the_global_generator_alone() -> None:
    module = seeded(DropNet)
    before = torch.get_rng_state()
    single_samples_fail(module, SAMPLE)
    check_split(module, Layout(module, "classifier"), SAMPLE)
    assert torch.equal(torch.get_rng_state(), before)


class AlwaysTested(nn.BatchNorm1d):
    """Its statistics never move, as some pretrained models want it."""

    def train(self, mode: bool = True) -> AlwaysTested:
        super().train(False)
        return self


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, AlwaysTested])
def test_modes_are_set_as_the_layers_would_do_it(norm: type[nn.Module]) -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(4, 3), norm(3), nn.Dropout()), nn.Linear(3, 2))
    model = MountedModel(module, Layout(module, classifier="1"))
    for training in (False, True, False, False, True):
        model.mode(training)
        module.train(training)
        own = [layer.training for part in (model.trunk[0], model.head) for layer in part.modules()]
        expected = [layer.training for part in module for layer in part.modules()]
        assert own == expected
