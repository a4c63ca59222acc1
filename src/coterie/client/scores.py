"""How good a model is on a client's samples, sample by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.task.base import LOSS, SAMPLES
from coterie.devices import PROCESSOR

TUNING_DIVERGED = (
    "tuning its model for the test diverged (the tuned weights are not finite), so the model is tested untuned. "
    "A smaller lr or clip= may help."
)

# Large enough to be efficient, small enough that several workers share the samples of a single model.
TEST_BATCH = 128
# Samples of few numbers are tested more at a time, up to as many as this and as make so many numbers.
LARGEST_TEST_BATCH, TEST_NUMBERS = 1024, 1 << 17


@dataclass(frozen=True)
class Score:
    """A model's result on test data, sample by sample: the task's quantities by name.

    `untuned` says that the copy tuned for the test was not finite, `tuning` how many gradients that tuning took.

    >>> score = Score({"correct": torch.tensor([True, False]), "loss": torch.tensor([0.5, 2.0])})
    >>> score.sums()
    {'correct': 1, 'loss': 2.5, 'samples': 2}
    """

    quantities: Mapping[str, Tensor]  # name -> [n]
    kept: Tensor | None = None  # [n, ...], what final metrics need besides, where asked for
    untuned: bool = False
    tuning: int = 0

    @classmethod
    def joined(cls, parts: Sequence[Score]) -> Score:
        """The score of all samples of several parts, one after the other."""
        kept = [part.kept for part in parts if part.kept is not None]
        names = parts[0].quantities
        return cls(
            {name: torch.cat([part.quantities[name] for part in parts]) for name in names},
            torch.cat(kept) if kept else None,
        )

    def on_processor(self) -> Score:
        """The same, brought back from its device."""
        return Score.brought_back([self])[0]

    @staticmethod
    def brought_back(scores: Sequence[Score]) -> list[Score]:
        """The same on the processor: a device is asked once for each quantity, however many scores there are."""
        if not scores or scores[0].losses.device.type == PROCESSOR:
            return list(scores)
        whole = Score.joined(scores)
        kept = None if whole.kept is None else whole.kept.cpu()
        here = Score({name: values.cpu() for name, values in whole.quantities.items()}, kept)
        parts = here.split([len(score.losses) for score in scores])
        return [
            replace(part, untuned=score.untuned, tuning=score.tuning) for part, score in zip(parts, scores, strict=True)
        ]

    @property
    def losses(self) -> Tensor:
        """The loss of every sample: `[n]`."""
        return self.quantities[LOSS]

    def split(self, sizes: list[int]) -> list[Score]:
        """Cut into the scores of consecutive parts of the samples."""
        cut = {name: values.split(sizes) for name, values in self.quantities.items()}
        kept = [None] * len(sizes) if self.kept is None else self.kept.split(sizes)
        return [Score({name: parts[place] for name, parts in cut.items()}, own) for place, own in enumerate(kept)]

    def sums(self) -> dict[str, int | float]:
        """Every quantity's sum, counts as whole numbers, and how many samples there are."""
        return sums_of([self])[0]


def sums_of(scores: Sequence[Score]) -> list[dict[str, int | float]]:
    """The sums of each of several scores, all added up together."""
    if not scores:
        return []
    sizes = [score.losses.shape[0] for score in scores]
    owners = np.repeat(np.arange(len(sizes)), sizes)
    columns: list[list[int | float]] = []
    for name in scores[0].quantities:
        values = torch.cat([score.quantities[name] for score in scores])
        totals = np.bincount(owners, values.double().numpy(), len(sizes))
        columns.append((totals.astype(np.int64) if values.dtype == torch.bool else totals).tolist())
    names = (*scores[0].quantities, SAMPLES)
    return [dict(zip(names, own, strict=True)) for own in zip(*columns, sizes, strict=True)]
