"""Channel statistics: mean and spread of what a model's layers make of a client's data, and how far clients differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from coterie.client.views import ClientView
from coterie.core.layout import Entry, Layout
from coterie.devices import exact
from coterie.maths.similarity import squared_distances


def measured_layers(layout: Layout) -> tuple[Entry, ...]:
    """The weights of the extractor's convolutions; without any, of its fully connected layers.

    >>> [entry.name for entry in measured_layers(Layout(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), "1"))]
    ['0.weight']
    """
    head = layout.columns("classifier")
    weights = [e for e in layout.entries if e.name.endswith("weight") and not e.is_buffer and not e.columns <= head]
    convolutions = tuple(entry for entry in weights if len(entry.shape) > 2)
    return convolutions or tuple(entry for entry in weights if len(entry.shape) == 2)


def channel_count(layout: Layout) -> int:
    """The output channels of all measured layers together."""
    return sum(entry.shape[0] for entry in measured_layers(layout))


@dataclass(frozen=True)
class ChannelStatistics:
    """The measurement: mean and standard deviation of every output channel over samples and positions, `[2, channels]`.

    Taken on the client's training data with the model as received, in evaluation mode.
    """

    name: ClassVar[str] = "channel_statistics"

    def __call__(self, worker: ClientView) -> Tensor:
        """Run the data through the extractor and listen to its layers."""
        layers = measured_layers(worker.problem.layout)
        trunk = worker.trunk("model")
        nothing = exact(worker.model("model").row.new_zeros(3, channel_count(worker.problem.layout)))
        sums = nothing.split([entry.shape[0] for entry in layers], dim=1)
        hooks = [
            trunk.get_submodule(entry.name.rpartition(".")[0]).register_forward_hook(_listener(entry, total))
            for entry, total in zip(layers, sums, strict=True)
        ]
        try:
            worker.features(worker.problem.train[worker.client])
        finally:
            for hook in hooks:
                hook.remove()
        count, total, squares = nothing
        mean = total / count
        return torch.stack([mean, (squares / count - mean.square()).clamp(min=0).sqrt()]).float()


def _listener(entry: Entry, sums: Tensor) -> Callable[[nn.Module, object, Tensor], None]:
    """A hook that adds count, sum and sum of squares of every channel to `sums [3, channels]`."""
    channels = 1 if len(entry.shape) > 2 else -1

    def listen(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        values = exact(output.detach()).movedim(channels, 0).flatten(1)
        sums.add_(torch.stack([torch.full_like(sums[0], values.shape[1]), values.sum(1), values.square().sum(1)]))

    return listen


def channel_distances(statistics: Tensor, layout: Layout) -> Tensor:
    """Σ_layers sqrt(‖μ_i − μ_j‖² + ‖σ_i − σ_j‖²) between clients' `statistics [p, 2, channels]`: `[p, p]`."""
    distances = torch.zeros(len(statistics), len(statistics), dtype=torch.float64)
    for layer in statistics.split([entry.shape[0] for entry in measured_layers(layout)], dim=2):
        distances += squared_distances(layer.flatten(1)).sqrt()
    return distances
