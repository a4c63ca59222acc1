"""Channel statistics against the layers' outputs, and distances against their formula."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.core.layout import Layout
from coterie.data import Dataset
from coterie.maths.channels import ChannelStatistics, channel_count, channel_distances, measured_layers
from coterie.testing.toys import CLASSES, seeded, toy_data
from support import MODELS, seat, tiny


class ConvNet(nn.Module):
    """Two convolutions with batch norm, a fully connected layer that is not measured, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU())
        self.second = nn.Conv2d(3, 5, 2, bias=False)
        self.wide = nn.Linear(5, 4)
        self.classifier = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x)).mean((2, 3))
        out: Tensor = self.classifier(torch.relu(self.wide(hidden)))
        return out


def images() -> Dataset:
    flat = toy_data(features=16)
    return Dataset("toy-images", flat.inputs.view(-1, 1, 4, 4), flat.labels, classes=CLASSES)


def test_convolutions_are_measured_and_without_any_the_fully_connected_layers() -> None:
    assert [e.name for e in measured_layers(Layout(ConvNet(), "classifier"))] == ["first.0.weight", "second.weight"]
    assert channel_count(Layout(ConvNet(), "classifier")) == 8
    plain = Layout(seeded(MODELS["norm"]), "classifier")
    assert [entry.name for entry in measured_layers(plain)] == ["bn.weight", "downsample.0.weight"]
    assert not measured_layers(Layout(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "1"))


def test_the_probe_is_mean_and_deviation_over_samples_and_positions() -> None:
    prepared = tiny("fedbn", seeded(ConvNet), data=images()).prepare()
    worker = seat(prepared, client=2)
    statistics = ChannelStatistics()(worker)
    model = seeded(ConvNet).eval()
    assert isinstance(model, ConvNet)
    x = prepared.data.inputs[worker.problem.train[2]]
    first = model.first[0](x).detach()
    second = model.second(model.first(x)).detach()
    mean = torch.cat([out.mean((0, 2, 3)) for out in (first, second)])
    deviation = torch.cat([out.transpose(0, 1).flatten(1).std(1, correction=0) for out in (first, second)])
    torch.testing.assert_close(statistics, torch.stack([mean, deviation]), rtol=1e-5, atol=1e-6)


def test_the_probe_leaves_no_listener_behind() -> None:
    worker = seat(tiny("fedbn", seeded(ConvNet), data=images()).prepare(), client=0)
    once, again = ChannelStatistics()(worker), ChannelStatistics()(worker)
    assert torch.equal(once, again)
    assert not any(module._forward_hooks for module in worker.trunk("model").modules())


def test_fully_connected_layers_have_their_channels_last() -> None:
    worker = seat(tiny("fedavg").prepare(), client=1)
    x = worker.problem.inputs[worker.problem.train[1]]
    hidden = seeded(MODELS["plain"]).get_submodule("body.0")(x).detach()
    torch.testing.assert_close(ChannelStatistics()(worker)[0, :8], hidden.mean(0), rtol=1e-5, atol=1e-6)


def test_distances_are_summed_over_layers() -> None:
    layout = Layout(ConvNet(), "classifier")
    statistics = torch.rand(4, 2, 8, generator=torch.Generator().manual_seed(0))
    found = channel_distances(statistics, layout)
    for i in range(4):
        for j in range(4):
            total = 0.0
            for part in (slice(0, 3), slice(3, 8)):
                mean = (statistics[i, 0, part] - statistics[j, 0, part]).square().sum()
                spread = (statistics[i, 1, part] - statistics[j, 1, part]).square().sum()
                total += float((mean + spread).sqrt())
            assert abs(float(found[i, j]) - total) < 1e-6
