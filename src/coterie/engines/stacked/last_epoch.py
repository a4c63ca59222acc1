"""What the models of a stack put out in each client's last epoch, scored together."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.client.training_scores import MOST_NUMBERS, TrainingScores
from coterie.engines.stacked.schedule import Schedule


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
        schedule, steps = self._schedule, torch.tensor(self._steps)
        early, active = (torch.tensor(counts)[steps][:, None] for counts in (schedule.early, schedule.active))
        clients = torch.arange(schedule.shares.shape[1])
        whose = (clients >= early) & (clients < active)  # [n, m]
        real = schedule.shares[steps][whose] > 0  # [r, B], what is not padding
        owners = whose.nonzero()[:, 1].numpy().repeat(real.shape[1])
        device = self._samples.device
        chosen = self._samples[steps.to(device)][whose.to(device)].flatten()
        outputs = torch.cat([one.flatten(0, 1) for one in self._outputs])
        self._training.add(owners, outputs, self._labels[chosen], real.flatten().numpy())
        self._steps, self._outputs, self._numbers = [], [], 0
