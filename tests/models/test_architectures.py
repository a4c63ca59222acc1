"""The papers' architectures: parameters counted by hand from the layer lists, and every size works."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.models import MODELS, build
from coterie.models.layers import max_pool
from coterie.models.mobilenet_v2 import InvertedResidual

pytestmark = pytest.mark.thorough

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return outputs * inputs * kernel**2 + outputs


def conv_bn(inputs: int, outputs: int, kernel: int, groups: int = 1) -> int:
    """A convolution without bias, and batch norm's scale and shift."""
    return outputs * (inputs // groups) * kernel**2 + 2 * outputs


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


@pytest.mark.parametrize(
    ("shape", "flattened", "total"),
    [((1, 28, 28), 1024, 582_026), ((3, 32, 32), 1600, 878_538)],
)
def test_cnn_has_the_papers_parameters(shape: tuple[int, int, int], flattened: int, total: int) -> None:
    layers = conv(shape[0], 32, 5) + conv(32, 64, 5) + linear(flattened, 512) + linear(512, 10)
    assert count(build("cnn", shape, 10)) == layers == total


@pytest.mark.parametrize(("shape", "flattened"), [((1, 28, 28), 256), ((3, 32, 32), 400)])
def test_lenet5_has_the_papers_parameters(shape: tuple[int, int, int], flattened: int) -> None:
    convolutions = conv(shape[0], 6, 5) + 2 * 6 + conv(6, 16, 5) + 2 * 16
    layers = convolutions + linear(flattened, 120) + linear(120, 84) + linear(84, 62)
    assert count(build("lenet5", shape, 62)) == layers


def test_alexnet_small_has_the_papers_parameters() -> None:
    model = build("alexnet_small", (3, 32, 32), 10)
    convolutions = conv(3, 32, 3) + conv(32, 64, 3) + conv(64, 128, 3) + conv(128, 256, 3) + conv(256, 256, 3)
    classifier = linear(256 * 3 * 3, 1024) + linear(1024, 512) + linear(512, 10)
    assert count(model.get_submodule("features")) == convolutions == 978_496
    assert count(model.get_submodule("classifier")) == classifier == 2_890_250
    kinds = [type(layer) for layer in model.get_submodule("classifier").children()]
    assert kinds == [nn.Linear] * 3


def basic_block(inputs: int, outputs: int) -> int:
    projection = conv_bn(inputs, outputs, 1) if inputs != outputs else 0
    return conv_bn(inputs, outputs, 3) + conv_bn(outputs, outputs, 3) + projection


def test_resnet8_and_10_have_the_papers_parameters() -> None:
    eight = conv_bn(3, 64, 7) + basic_block(64, 64) + basic_block(64, 128) + basic_block(128, 256)
    assert count(build("resnet8", (3, 32, 32), 10)) == eight + linear(256, 10) == 1_235_274
    ten = eight + basic_block(256, 512)
    assert count(build("resnet10", (3, 64, 64), 200)) == ten + linear(512, 200)


def test_resnet18_has_the_published_number_of_parameters() -> None:
    stages = sum(basic_block(i, o) + basic_block(o, o) for i, o in [(64, 64), (64, 128), (128, 256), (256, 512)])
    expected = conv_bn(3, 64, 7) + stages + linear(512, 1000)
    assert count(build("resnet18", (3, 224, 224), 1000)) == expected == 11_689_512


def test_mobilenet_v2_has_the_published_number_of_parameters() -> None:
    # (inputs, expanded, outputs) of the 17 blocks, from the paper's table 2.
    blocks = [(32, 32, 16), (16, 96, 24), (24, 144, 24), (24, 144, 32)] + [(32, 192, 32)] * 2
    blocks += [(32, 192, 64)] + [(64, 384, 64)] * 3 + [(64, 384, 96)] + [(96, 576, 96)] * 2
    blocks += [(96, 576, 160)] + [(160, 960, 160)] * 2 + [(160, 960, 320)]
    total = conv_bn(3, 32, 3) + conv_bn(320, 1280, 1) + linear(1280, 1000)
    for inputs, width, outputs in blocks:
        expand = conv_bn(inputs, width, 1) if width != inputs else 0
        total += expand + conv_bn(width, width, 3, groups=width) + conv_bn(width, outputs, 1)
    assert count(build("mobilenet_v2", (3, 224, 224), 1000)) == total == 3_504_872


def test_mlp_takes_images_and_flat_features() -> None:
    assert count(build("mlp", (1, 8, 8), 10)) == linear(64, 64) + linear(64, 10)
    assert count(build("mlp", (30,), 2, hidden=[16, 8])) == linear(30, 16) + linear(16, 8) + linear(8, 2)
    assert count(build("mlp", (30,), 2, hidden=())) == count(build("linear", (30,), 2)) == linear(30, 2)
    assert build("mlp", (30,), 2)(torch.zeros(3, 30)).shape == (3, 2)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("resnet8", {"maxpool": 56, "layer1": 56, "layer2": 28, "layer3": 14}),
        ("resnet18", {"conv1": 112, "maxpool": 56, "layer1": 56, "layer2": 28, "layer3": 14, "layer4": 7}),
        ("mobilenet_v2", {"features.0": 112, "features.1": 112, "features.3": 56, "features.6": 28}),
        ("mobilenet_v2", {"features.10": 14, "features.13": 14, "features.16": 7, "features.18": 7}),
    ],
)
def test_imagenet_models_shrink_maps_as_published(name: str, sizes: dict[str, int]) -> None:
    """Strides leave no trace in parameter counts: look at the maps of a 224×224 image."""
    model = build(name, (3, 224, 224), 10).eval()
    seen: dict[str, int] = {}
    for path in sizes:
        model.get_submodule(path).register_forward_hook(
            lambda _module, _inputs, maps, path=path: seen.update({path: maps.shape[-1]})
        )
    with torch.no_grad():
        model(torch.zeros(1, 3, 224, 224))
    assert seen == sizes


def test_mobilenet_v2_adds_the_input_where_the_shapes_agree() -> None:
    model = build("mobilenet_v2", (1, 8, 8), 10).eval()
    blocks = [module for module in model.modules() if isinstance(module, InvertedResidual)]
    shortcuts = []
    with torch.no_grad():
        for block in blocks:
            projection = block.conv[-1]
            assert isinstance(projection, nn.BatchNorm2d)
            projection.weight.zero_()  # silences the branch: what is left is the shortcut
            first = next(module for module in block.modules() if isinstance(module, nn.Conv2d))
            maps = torch.ones(1, first.in_channels, 4, 4)
            shortcuts.append(torch.equal(block(maps), maps))
    repeats = [0, 1, 2, 3, 2, 2, 0]
    assert shortcuts == [later for n in repeats for later in [False] + [True] * n]


@pytest.mark.parametrize(("side", "flattened"), [(8, 2 * 2), (15, 3 * 3), (16, 1 * 1), (28, 4 * 4), (32, 5 * 5)])
def test_5x5_convolutions_are_padded_below_16_pixels_only(side: int, flattened: int) -> None:
    for name, maps in (("cnn", 64), ("lenet5", 16)):
        hidden = build(name, (1, side, side), 2).get_submodule("classifier.0")
        assert hidden.in_features == maps * flattened


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("classes", [2, 10, 62, 200])
def test_every_model_takes_every_image_size(name: str, shape: tuple[int, int, int], classes: int) -> None:
    with torch.no_grad():
        logits = build(name, shape, classes).eval()(torch.zeros(2, *shape))
    assert logits.shape == (2, classes)


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(["mlp", "cnn", "lenet5", "alexnet_small", "resnet8"]),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
)
def test_no_size_is_too_small_or_too_oblong(name: str, height: int, width: int) -> None:
    model = build(name, (2, height, width), 3).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 2, height, width)).shape == (1, 3)


@settings(deadline=None, max_examples=40)
@given(height=st.integers(1, 12), width=st.integers(1, 12), window=st.sampled_from([2, 3]))
def test_pooling_announces_the_size_it_gives(height: int, width: int, window: int) -> None:
    pool, size = max_pool((height, width), window)
    assert pool(torch.zeros(1, 1, height, width)).shape[2:] == size
    if min(height, width) >= window:
        assert size == nn.MaxPool2d(window, stride=2)(torch.zeros(1, 1, height, width)).shape[2:]


@pytest.mark.parametrize("window", [2, 3])
def test_pooling_before_relu_gives_the_same_values_and_gradients(window: int) -> None:
    pool, _ = max_pool((9, 9), window)
    maps = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(0)) - 1
    weights = torch.randn(pool(maps).shape, generator=torch.Generator().manual_seed(1))
    results = []
    for layers in (nn.Sequential(pool, nn.ReLU()), nn.Sequential(nn.ReLU(), pool)):
        leaf = maps.clone().requires_grad_()
        out = layers(leaf)
        (out * weights).sum().backward()
        results.append((out.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert 0 < (results[0][0] == 0).float().mean() < 1


@pytest.mark.parametrize(
    ("name", "layers"),
    [("lenet5", 2), ("resnet8", 9), ("resnet10", 12), ("resnet18", 20), ("mobilenet_v2", 52)],
)
def test_batch_norm_is_found_by_type(name: str, layers: int) -> None:
    norms = [module for module in build(name, (3, 32, 32), 10).modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == layers


def test_convolutions_start_from_the_fan_out_normal() -> None:
    torch.manual_seed(0)
    for name in ("resnet8", "mobilenet_v2"):
        for module in build(name, (3, 32, 32), 10).modules():
            if isinstance(module, nn.Conv2d) and module.weight.numel() > 20_000:
                fan_out = module.out_channels * module.kernel_size[0] ** 2 // module.groups
                assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
