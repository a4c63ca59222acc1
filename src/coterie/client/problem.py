"""Everything about a run that never changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coterie.client.scores import LARGEST_TEST_BATCH, TEST_BATCH, TEST_NUMBERS
from coterie.core.layout import Layout
from coterie.core.pixels import Inputs
from coterie.core.task import Task
from coterie.core.training import Training
from coterie.devices import PROCESSOR


@dataclass(frozen=True)
class Problem:
    """Everything about a run that never changes: model, data, who holds which samples, how to train."""

    module: nn.Module
    layout: Layout
    inputs: Inputs  # [N, ...]
    labels: Tensor  # [N]
    train: tuple[Tensor, ...]  # K index vectors
    validation: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    training: Training
    task: Task
    skip_single_samples: bool

    @property
    def device(self) -> torch.device:
        """Where the samples are, and so where models are trained and tested."""
        return self.inputs.device

    def on(self, device: str) -> Problem:
        """The same with all samples, and who holds which, on a device."""
        place = torch.device(device)
        if place.type == self.device.type and (place.type == PROCESSOR or place.index in (None, self.device.index)):
            return self
        train, validation, test = (_moved(parts, place) for parts in (self.train, self.validation, self.test))
        inputs, labels = self.inputs.to(place), self.labels.to(place)
        return replace(self, inputs=inputs, labels=labels, train=train, validation=validation, test=test)

    @property
    def has_validation(self) -> bool:
        """Whether any client has validation samples."""
        return any(map(len, self.validation))

    @property
    def test_batch(self) -> int:
        """How many samples are tested at a time."""
        return min(LARGEST_TEST_BATCH, max(TEST_BATCH, TEST_NUMBERS // max(1, math.prod(self.inputs.shape[1:]))))

    def scored_with_validation(self) -> Problem:
        """The same for an engine that is to score validation samples too: each client's follow those of its test."""
        both = zip(self.test, self.validation, strict=True)
        return replace(self, test=tuple(torch.cat([tested, held]) for tested, held in both))


def _moved(parts: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Index vectors on a device, all in one go: there may be thousands of them."""
    return torch.cat(parts).to(device).split([len(part) for part in parts]) if parts else ()
