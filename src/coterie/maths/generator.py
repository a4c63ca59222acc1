"""A small label-conditional generator of features whose tensors are one flat row."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.core.layout import Layout


class FeatureGenerator(nn.Module):
    """G(y, ε): one-hot label and noise through a hidden layer (batch norm, ReLU) to a feature.

    >>> FeatureGenerator(classes=3, noise=4, hidden=8, features=5)(torch.tensor([0, 2]), torch.rand(2, 4)).shape
    torch.Size([2, 5])
    """

    def __init__(self, classes: int, noise: int, hidden: int, features: int) -> None:
        super().__init__()
        self.classes = classes
        # A bias before batch norm has no gradient but for rounding errors, which Adam would blow up to whole steps.
        linear = nn.Linear(classes + noise, hidden, bias=False)
        self.body = nn.Sequential(linear, nn.BatchNorm1d(hidden), nn.ReLU())
        self.feature = nn.Linear(hidden, features)

    def forward(self, labels: Tensor, noise: Tensor) -> Tensor:
        """Features `[n, d]` for `labels [n]` and `noise [n, noise]`."""
        one_hot = nn.functional.one_hot(labels, self.classes).to(noise)
        out: Tensor = self.feature(self.body(torch.cat([one_hot, noise], 1)))
        return out

    def forget_common_label(self, labels: Tensor) -> None:
        """After a backward pass: where all `labels [n]` were alike, the weights from labels have no gradient.

        What the same label adds to every sample of a batch, batch norm takes away again. What is left are rounding
        errors, as with a bias there.
        """
        weights = self.body.get_parameter("0.weight")
        if weights.grad is not None and bool((labels == labels[0]).all()):
            weights.grad[:, : self.classes] = 0


@dataclass(frozen=True)
class GeneratorShape:
    """The sizes of a generator, which say how to read its row.

    >>> shape = GeneratorShape(classes=3, noise=4, hidden=8, features=5)
    >>> shape.generate(shape.initial(seed=0), torch.tensor([0, 2]), torch.Generator()).shape
    torch.Size([2, 5])
    """

    classes: int
    noise: int
    hidden: int
    features: int

    def build(self) -> FeatureGenerator:
        """A generator of this shape."""
        return FeatureGenerator(self.classes, self.noise, self.hidden, self.features)

    @property
    def layout(self) -> Layout:
        """The columns of the generator's tensors, running statistics included."""
        return _reader(self)[1]

    def initial(self, seed: int) -> Tensor:
        """A row of initial weights: `[G]`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.layout.row(self.build())

    def draw(self, count: int, stream: torch.Generator) -> Tensor:
        """Noise for `count` features, uniform: `[count, noise]`."""
        return torch.rand(count, self.noise, generator=stream)

    def generate(self, row: Tensor, labels: Tensor, stream: torch.Generator) -> Tensor:
        """Features `[n, d]` for `labels [n]` by the generator with the tensors `row [G]`, in evaluation mode."""
        module, layout = _reader(self)
        noise = self.draw(len(labels), stream).to(row.device)
        out: Tensor = torch.func.functional_call(module, layout.views(row), (labels, noise))
        return out


@functools.lru_cache(maxsize=8)
def _reader(shape: GeneratorShape) -> tuple[FeatureGenerator, Layout]:
    """A module to read rows with, whose own weights nobody looks at, and its layout."""
    with torch.random.fork_rng(devices=[]):
        module = shape.build().eval()
    return module, Layout(module, classifier="feature")
