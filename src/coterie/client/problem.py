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
