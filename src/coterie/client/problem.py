"""Everything about a run that never changes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from coterie.core.layout import Layout
from coterie.core.task import Task
from coterie.core.training import Training


@dataclass(frozen=True)
class Problem:
    """Everything about a run that never changes: model, data, who holds which samples, how to train."""

    module: nn.Module
    layout: Layout
    inputs: Tensor  # [N, ...]
    labels: Tensor  # [N]
    train: tuple[Tensor, ...]  # K index vectors
    validation: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    training: Training
    task: Task
    skip_single_samples: bool
