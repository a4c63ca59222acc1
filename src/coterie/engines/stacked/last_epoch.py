"""What the models of a stack put out in each client's last epoch, scored together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.client.training_scores import TrainingScores
from coterie.engines.stacked.schedule import Schedule

# Outputs are scored many at a time, which costs next to nothing, but no more numbers than this are kept for it.
MOST_NUMBERS = 1 << 20


class LastEpoch:
    """Keeps outputs step by step, which costs nothing, and scores those of many steps at once.

    Clients of different size are in their last epoch in different steps; in each, they are neighbours in the stack.
    """

    def __init__(self, schedule: Schedule, samples: Tensor, labels: Tensor, training: TrainingScores) -> None:
        self._schedule, self._samples, self._labels, self._training = schedule, samples, labels, training
        self._steps: list[int] = []
        self._outputs: list[Tensor] = []
        self._numbers = 0

    def take(self, step: int, outputs: Tensor) -> None:
        """Take what the models of the clients that are active in a step put out: `[k, B, C]`."""
        early = self._schedule.early[step]
        if early < len(outputs):
            self._steps.append(step)
            self._outputs.append(outputs[early:])
            self._numbers += outputs.numel()
            if self._numbers > MOST_NUMBERS:
                self.score()

    def score(self) -> None:
        """Score what was taken so far."""
        if not self._steps:
            return
        schedule, clients = self._schedule, self._samples.shape[1]
        # Who was in the last epoch in which step, in the order of the outputs: places in a list of all steps' clients.
        spans = [(step * clients, schedule.early[step], schedule.active[step]) for step in self._steps]
        places = np.concatenate([np.arange(first + early, first + active) for first, early, active in spans])
        chosen = torch.from_numpy(places)
        real = schedule.shares.flatten(0, 1).index_select(0, chosen).flatten() > 0  # what is not padding
        samples = self._samples.flatten(0, 1).index_select(0, chosen.to(self._samples.device)).flatten()
        outputs = torch.cat([one.flatten(0, 1) for one in self._outputs])
        owners = (places % clients).repeat(schedule.shares.shape[2])
        self._training.add(owners, outputs, self._labels[samples], real.numpy())
        self._steps, self._outputs, self._numbers = [], [], 0
