"""A module's tensors are the columns of a row; groups are found by module and by type, never by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.core.columns import Columns
from coterie.core.layout import Layout
from coterie.errors import CoterieError
from coterie.testing.toys import CLASSES, FEATURES, NormNet, PlainNet, seeded


def names(layout: Layout, group: str) -> set[str]:
    """The tensors that lie in a group, each as a whole."""
    columns = layout.columns(group)
    for entry in layout.entries:
        overlap = (entry.columns & columns).size
        assert overlap in (0, entry.columns.size), f"{entry.name} lies in {group} in part"
    return {entry.name for entry in layout.entries if entry.columns <= columns}


BATCH_NORM = {f"{layer}.{part}" for layer in ("foo", "downsample.1") for part in ("weight", "bias")}
STATISTICS = {f"{layer}.{part}" for layer in ("foo", "downsample.1") for part in ("running_mean", "running_var")}


def test_parameters_come_first_then_buffers_without_gaps() -> None:
    layout = Layout(seeded(NormNet), "classifier")
    edges = [(entry.start, entry.stop) for entry in layout.entries]
    assert [start for start, _ in edges] == [0, *(stop for _, stop in edges[:-1])]
    kinds = [entry.is_buffer for entry in layout.entries]
    assert kinds == sorted(kinds)
    assert layout.width == edges[-1][1] == layout.everything.size


def test_mounted_parameters_and_buffers_are_views_of_the_row() -> None:
    module = seeded(NormNet).train()
    layout = Layout(module, "classifier")
    row = layout.row(module)
    layout.mount(module, row)
    row.mul_(2)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for entry in layout.entries:
        tensor = tensors[entry.name]
        assert tensor.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
        assert tensor.storage_offset() == entry.start
        assert torch.equal(tensor.reshape(-1), row[entry.start : entry.stop])
    with torch.no_grad():
        module.classifier.bias.fill_(7.0)
    assert bool((layout.columns("classifier").take(row)[-CLASSES:] == 7).all())
    before = layout.columns("stats").take(row).clone()
    module(torch.randn(5, FEATURES))
    assert not torch.equal(layout.columns("stats").take(row), before), "running statistics must move in the row"


def test_mounting_keeps_the_function() -> None:
    module = seeded(NormNet).eval()
    x = torch.randn(4, FEATURES)
    expected = module(x)
    layout = Layout(module, "classifier")
    layout.mount(module, layout.row(module))
    assert torch.equal(module(x), expected)


def test_load_and_row_are_inverse_and_load_copies() -> None:
    module = seeded(NormNet)
    layout = Layout(module, "classifier")
    row = torch.rand(layout.width)
    loaded = layout.load(module, row)
    assert loaded is module
    assert torch.equal(layout.row(module), row)
    row.zero_()
    assert not torch.equal(layout.row(module), row), "load must copy"


def test_groups_partition_the_columns() -> None:
    for stats in ("mean", "local"):
        layout = Layout(seeded(NormNet), "classifier", stats)
        extractor, classifier = layout.columns("extractor"), layout.columns("classifier")
        assert not extractor & classifier
        assert extractor | classifier == layout.columns("all")
        assert layout.columns("parameters") | layout.columns("stats") == layout.everything


def test_batch_norm_is_found_by_type() -> None:
    layout = Layout(seeded(NormNet), "classifier")
    assert layout.has_batch_norm
    assert names(layout, "norm") == BATCH_NORM | STATISTICS
    assert "bn.weight" in names(layout, "all - norm")
    assert names(layout, "stats") == STATISTICS


def test_what_its_author_froze_cannot_be_trained() -> None:
    module = seeded(NormNet)
    module.bn.weight.requires_grad = False
    layout = Layout(module, "classifier")
    frozen = layout.columns("parameters") - layout.trainable
    assert frozen.size == module.bn.weight.numel()
    assert frozen <= layout.columns("bn")
    assert not layout.trainable & layout.columns("stats")


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.BatchNorm2d(4), nn.BatchNorm3d(4), nn.SyncBatchNorm(4)])
def test_every_kind_of_batch_norm_counts(layer: nn.Module) -> None:
    layout = Layout(nn.Sequential(layer, nn.Linear(4, 2)), "1")
    assert names(layout, "norm") == {"0.weight", "0.bias", "0.running_mean", "0.running_var"}


@pytest.mark.parametrize("layer", [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Linear(4, 4)])
def test_other_layers_named_norm_are_not_batch_norm(layer: nn.Module) -> None:
    """FedBN shares `all - norm`: a layer that is merely called `norm` must stay in it."""
    module = nn.Sequential()
    module.add_module("norm", layer)
    module.add_module("head", nn.Linear(4, 2))
    layout = Layout(module, "head")
    assert not layout.has_batch_norm
    assert not layout.columns("norm")
    assert layout.columns("all - norm") == layout.columns("all")


def test_stats_policy_decides_whether_statistics_travel() -> None:
    mean, local = (Layout(seeded(NormNet), "classifier", stats) for stats in ("mean", "local"))
    for group in ("all", "extractor"):
        assert names(mean, group) >= STATISTICS
        assert not names(local, group) & STATISTICS
    for layout in (mean, local):
        assert not names(layout, "parameters") & STATISTICS
        assert names(layout, "norm") >= STATISTICS
        assert layout.everything.size == layout.width


def test_local_statistics_belong_to_no_module_path_either() -> None:
    mean, local = (Layout(seeded(NormNet), "classifier", stats) for stats in ("mean", "local"))
    whole = {"downsample.0.weight", "downsample.1.weight", "downsample.1.bias"}
    assert names(local, "downsample") == whole
    assert names(mean, "downsample") == whole | {"downsample.1.running_mean", "downsample.1.running_var"}


def test_a_path_that_holds_local_statistics_only_is_empty_not_unknown() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    assert not Layout(module, "1", "local").columns("0")
    assert Layout(module, "1", "mean").columns("0").size == 8


def test_statistics_inside_the_classifier_follow_the_policy() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    assert "1.0.running_mean" in names(Layout(module, "1", "mean"), "classifier")
    assert "1.0.running_mean" not in names(Layout(module, "1", "local"), "classifier")


def test_nested_classifier_path() -> None:
    module = nn.Sequential()
    module.add_module("features", nn.Linear(4, 4))
    module.add_module("classifier", nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    layout = Layout(module, "classifier.2")
    assert names(layout, "classifier") == {"classifier.2.weight", "classifier.2.bias"}
    assert "classifier.0.weight" in names(layout, "extractor")
    # The group of that name wins over the module of that name.
    assert layout.columns("classifier") != layout.columns("classifier.0") | layout.columns("classifier.2")


def test_path_prefixes_do_not_catch_longer_names() -> None:
    module = nn.Sequential()
    for name in ("fc", "fc2", "fc10"):
        module.add_module(name, nn.Linear(3, 3))
    assert names(Layout(module, "fc10"), "fc") == {"fc.weight", "fc.bias"}


class ClassifierFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.body = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def test_a_classifier_may_be_registered_first() -> None:
    layout = Layout(ClassifierFirst(), "head")
    assert layout.columns("classifier") == Columns.of((0, 10))
    assert layout.columns("extractor") == Columns.of((10, 26))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.second(self.first(x)))
        return out


def test_shared_parameters_have_one_place_and_stay_shared() -> None:
    module = Tied()
    layout = Layout(module, "head")
    assert layout.width == sum(parameter.numel() for parameter in module.parameters()) == 16 + 4 + 4 + 10
    row = layout.row(module)
    layout.mount(module, row)
    row.fill_(0.5)
    assert module.second.weight is module.first.weight
    assert bool((module.second.weight == 0.5).all())


def test_expressions() -> None:
    layout = Layout(seeded(NormNet), "classifier")
    assert layout.columns("extractor + classifier") == layout.columns("all")
    assert layout.columns("all - norm - classifier") == layout.columns("extractor") - layout.columns("norm")
    assert layout.columns("  all  -  norm  ") == layout.columns("all") - layout.columns("norm")
    assert layout.columns("") == Columns()
    assert layout.columns(Columns.of((1, 4))) == Columns.of((1, 4))
    assert names(layout, "bn + classifier") == {"bn.weight", "classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("group", ["extracter", "all - nrom", "all-norm", "bn.wieght", "head"])
def test_unknown_groups_are_refused(group: str) -> None:
    with pytest.raises(CoterieError, match="unknown group"):
        Layout(seeded(NormNet), "classifier").columns(group)


def test_unknown_classifier_is_refused_with_a_suggestion() -> None:
    with pytest.raises(CoterieError, match="did you mean 'classifier'"):
        Layout(seeded(PlainNet), "clasifier")


def test_a_module_without_parameters_is_no_classifier() -> None:
    with pytest.raises(CoterieError, match="classifier module"):
        Layout(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "1")


def test_integer_buffers_have_no_columns() -> None:
    module = seeded(NormNet)
    module.register_buffer("count", torch.tensor([3]))
    layout = Layout(module, "classifier")
    held = {entry.name for entry in layout.entries}
    assert "count" not in held
    assert "foo.num_batches_tracked" not in held
    layout.load(module, torch.zeros(layout.width))
    assert module.count.tolist() == [3]


def test_scalar_parameters_and_float_buffers_have_columns() -> None:
    module = seeded(PlainNet)
    module.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))
    module.register_buffer("offset", torch.tensor([1.0, 2.0]))
    layout = Layout(module, "classifier")
    views = layout.views(layout.row(module))
    assert views["scale"].shape == ()
    assert views["offset"].tolist() == [1.0, 2.0]
    assert "offset" in names(layout, "stats")


def test_momentum_none_is_refused() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2))
    with pytest.raises(CoterieError, match="momentum=None"):
        Layout(module, "1")


def test_other_precisions_are_refused() -> None:
    with pytest.raises(CoterieError, match="float32"):
        Layout(seeded(PlainNet).double(), "classifier")


def test_channels_last_rows_hold_the_same_model_in_another_order() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    plain, last = (Layout(module, "2", memory=memory) for memory in ("contiguous", "channels_last"))
    row = last.row(module)
    assert not torch.equal(row, plain.row(module))
    assert torch.equal(row.sort().values, plain.row(module).sort().values)
    views = last.views(row)
    assert torch.equal(views["0.weight"], module[0].weight)
    assert views["0.weight"].is_contiguous(memory_format=torch.channels_last)
    assert views["0.weight"].data_ptr() == row.data_ptr()
    fresh = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    inputs = torch.randn(5, 3, 4, 4)
    torch.testing.assert_close(last.load(fresh, row)(inputs), module(inputs))
    batched = last.entries[0].view(torch.stack([row, 2 * row])[:, : last.entries[0].stop])
    assert torch.equal(batched[1], 2 * module[0].weight)
