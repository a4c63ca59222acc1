"""A model cut in two at its classifier and mounted on one row for good.

Workers keep one mounted model a slot: a client's row is copied in, trained, and copied out. No module is
ever rebuilt, and a step updates the whole row (or the trained spans of it) with one operation.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from coterie.core.columns import Columns
from coterie.core.inventory import copied
from coterie.core.layout import Layout, paths_of, require_classifier
from coterie.devices import PROCESSOR
from coterie.errors import CoterieError, described, require


class MountedModel:
    """`trunk(x)` gives features, `head(features)` gives logits; both are views of `row [P]`, gradients of `grad`.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> model = MountedModel(net, Layout(net, classifier="2"))
    >>> model.head(model.trunk(torch.zeros(5, 4))).shape
    torch.Size([5, 2])
    """

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device | str = PROCESSOR) -> None:
        self.layout = layout
        whole = copy.deepcopy(module).to(device)
        pool_fast_when_tested(whole)
        if torch.device(device).type != PROCESSOR:
            drop_repeatably(whole)
        self.row = layout.row(whole)
        self.grad = torch.zeros_like(self.row)
        layout.mount(whole, self.row)
        self._gradients = layout.views(self.grad)
        self._parameters = {name: weights for name, weights in whole.named_parameters() if name in self._gradients}
        self.gather_gradients(True)
        self.head: nn.Module = require_classifier(whole, layout.classifier)
        self.trunk: nn.Module = _without(whole, layout.classifier)
        self._layers = (_switchable(self.trunk), _switchable(self.head))
        self._trained: Columns | None = None

    def train_only(self, columns: Columns) -> None:
        """Let gradients flow to the parameters that lie in `columns`, and to no others."""
        if columns == self._trained:
            return
        self._trained = columns
        for entry in self.layout.entries:
            if not entry.is_buffer:
                self._parameters[entry.name].requires_grad_(entry.columns <= columns)

    def gather_gradients(self, gather: bool) -> None:
        """Have autograd add gradients to their places in `grad`, or leave each with its parameter, a tensor of its own.

        The latter saves two passes over the row a step: nothing is to be zeroed, and nothing added to that.
        """
        for name, parameter in self._parameters.items():
            parameter.grad = self._gradients[name] if gather else None

    def parameters_in(self, columns: Columns) -> list[nn.Parameter] | None:
        """The parameters that lie in `columns`; nothing if one lies there in part."""
        entries = [entry for entry in self.layout.entries if not entry.is_buffer and entry.columns & columns]
        whole = all(entry.columns <= columns for entry in entries)
        return [self._parameters[entry.name] for entry in entries] if whole else None

    def mode(self, training: bool) -> None:
        """Put trunk and head into training or evaluation mode (batch norm, dropout)."""
        for part, layers in zip((self.trunk, self.head), self._layers, strict=True):
            if part.training == training:
                continue
            if layers is None:
                part.train(training)
            for layer in layers or ():
                layer.__dict__["training"] = training


def _switchable(module: nn.Module) -> list[nn.Module] | None:
    """The layers whose mode can be set at once; none if one does more than that, or keeps its mode elsewhere.

    `module.train()` looks every flag up among a layer's weights first, forty times slower.
    """
    layers = list(module.modules())
    plain = all(type(layer).train is nn.Module.train and "training" in layer.__dict__ for layer in layers)
    return layers if plain else None


def _without(whole: nn.Module, path: str) -> nn.Module:
    for place in paths_of(whole, whole.get_submodule(path)):
        parent, _, name = place.rpartition(".")
        setattr(whole.get_submodule(parent), name, nn.Identity())
    return whole


def check_split(module: nn.Module, layout: Layout, sample: Tensor) -> int:
    """The feature width; an error if the classifier is not the last thing the model computes."""
    expected = tried(module, sample)
    with torch.no_grad():
        if not isinstance(expected, Tensor):
            raise _no_outputs(f"a {type(expected).__name__}")
        try:
            model = MountedModel(module, layout)
            model.mode(False)
            features = model.trunk(sample)
            cut, width = model.head(features), int(features.shape[1])
        except Exception as error:
            raise CoterieError(
                f"classifier '{layout.classifier}': its input is not what the rest of the model returns; name the "
                f"last module of the model's forward pass ({described(error)})"
            ) from error
    if cut.shape != expected.shape or not torch.allclose(cut, expected, atol=1e-5, equal_nan=True):
        again = tried(module, sample)
        require(
            isinstance(again, Tensor) and torch.allclose(again, expected, atol=1e-5, equal_nan=True),
            "model: the same samples give other outputs when they are tested again; in tests it may not count, and "
            "draw nothing: F.dropout(x, p, self.training)",
        )
        raise CoterieError(
            f"classifier '{layout.classifier}': the model computes something after it; name the module whose output "
            "is the model's output"
        )
    outputs_of(cut)
    return width


def tried(module: nn.Module, sample: Tensor) -> object:
    """What a copy of a module makes of samples, in evaluation mode; an error if it cannot take them."""
    whole = copied(module).eval()
    try:
        with torch.no_grad():
            return whole(sample)
    except Exception as error:  # whatever a user's model may raise
        shape = tuple(sample.shape[1:])
        raise CoterieError(f"model: cannot take the data's inputs of shape {shape} ({described(error)})") from error


def outputs_of(made: object) -> Tensor:
    """What a model made of samples, if it is outputs `[B, C]`.

    >>> outputs_of((torch.zeros(2, 3), None))
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: model: returns a tuple; it must return one floating-point tensor, [samples, outputs]
    """
    if not isinstance(made, Tensor):
        raise _no_outputs(f"a {type(made).__name__}")
    if made.ndim != 2 or not made.is_floating_point():
        raise _no_outputs(f"a tensor of {made.dtype}, {tuple(made.shape)}")
    return made


def _no_outputs(what: str) -> CoterieError:
    return CoterieError(f"model: returns {what}; it must return one floating-point tensor, [samples, outputs]")


def single_samples_fail(module: nn.Module, sample: Tensor) -> bool:
    """Whether a training step on one sample is impossible: batch norm over a single value has no variance."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout draws numbers
            copy.deepcopy(module).train()(sample[:1])
    except Exception:  # whatever a user's model may raise
        return True
    return False


AnyDropout = nn.modules.dropout._DropoutNd
"""The class that every dropout layer derives from."""


class RepeatableDropout(nn.Dropout):
    """Dropout whose mask is drawn by an operation of its own: for one client on a device, or for many at once.

    On the processor PyTorch's layer fills a mask from the generator that the client's seat has seeded. On a GPU it
    draws within a kernel of its own, in an order that no other operation repeats; there, the mask is drawn as on the
    processor.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The inputs, some of them zero in training."""
        return x * dropout_mask(self, x.shape, x) if self.training and self.p > 0 else x


WHOLE = (nn.Dropout, RepeatableDropout)
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def dropout_mask(layer: AnyDropout, shape: torch.Size, like: Tensor, stream: torch.Generator | None = None) -> Tensor:
    """What a layer multiplies inputs of a shape `[B, ...]` by: 0 with probability p, else 1 / (1 − p).

    It is drawn from `stream`, or else from the generator of the device that `like` is on. Layers that drop whole
    channels have one number for each.

    >>> mask = dropout_mask(nn.Dropout(0.5), torch.Size([2, 3]), torch.ones(1), torch.Generator().manual_seed(0))
    >>> sorted(set(mask.flatten().tolist())), mask.shape
    ([0.0, 2.0], torch.Size([2, 3]))
    """
    drawn = shape if type(layer) in WHOLE else torch.Size([*shape[:2], *(1 for _ in shape[2:])])
    if layer.p == 1:
        return like.new_zeros(drawn)
    mask: Tensor = like.new_empty(drawn).bernoulli_(1 - layer.p, generator=stream).div_(1 - layer.p)
    return mask


def drop_repeatably(module: nn.Module) -> None:
    """Change the dropout layers of a module that is one's own copy.

    >>> net = nn.Sequential(nn.Dropout(0.1))
    >>> drop_repeatably(net)
    >>> type(net[0]).__name__
    'RepeatableDropout'
    """
    for layer in module.modules():
        if type(layer) is nn.Dropout:
            layer.__class__ = RepeatableDropout


class GradientFreeMaxPool(nn.MaxPool2d):
    """PyTorch's max-pooling; windows of 2 × 2 side by side are pooled faster where no gradient is wanted.

    PyTorch's layer keeps the place of every maximum for the backward pass, and looks at one window after the other.
    The maximum of neighbouring rows, then of neighbouring columns, is the same value: on one thread, maps of
    32 × 28 × 28 in batches of 128 took 1.6 ms instead of 18 (contiguous) and 2.3 (channels last). With gradients
    PyTorch's layer is faster.

    >>> maps = torch.tensor([[[1.0, 5.0, 0.0], [2.0, 3.0, 9.0], [7.0, 7.0, 7.0]]])
    >>> with torch.no_grad():
    ...     GradientFreeMaxPool(2)(maps)
    tensor([[[5.]]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The largest value of each window: `[B, C, H, W]` to `[B, C, H // 2, W // 2]`."""
        if torch.is_grad_enabled() or not self._halves():
            out: Tensor = super().forward(x)
            return out
        height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        rows = torch.maximum(x[..., 0:height:2, :], x[..., 1:height:2, :])
        return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])

    def _halves(self) -> bool:
        sizes = (self.kernel_size, self.stride, self.padding, self.dilation)
        return (
            all(size in (halving, (halving, halving)) for size, halving in zip(sizes, (2, 2, 0, 1), strict=True))
            and not self.ceil_mode
            and not self.return_indices
        )


def pool_fast_when_tested(module: nn.Module) -> None:
    """Change the max-pooling layers of a module that is one's own copy, whoever wrote it.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2))
    >>> pool_fast_when_tested(net)
    >>> type(net[1]).__name__
    'GradientFreeMaxPool'
    """
    for layer in module.modules():
        if type(layer) is nn.MaxPool2d:
            layer.__class__ = GradientFreeMaxPool  # in place: hooks stay, and layers shared by several parts
