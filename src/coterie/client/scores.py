"""How good a model is on a client's samples, sample by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Score:
    """A model's result on test data, sample by sample: the task's quantities by name.

    `untuned` says that the copy tuned for the test was not finite.

    >>> score = Score({"correct": torch.tensor([True, False]), "loss": torch.tensor([0.5, 2.0])})
    >>> score.sums()
    {'correct': 1, 'loss': 2.5, 'samples': 2}
    """

    quantities: Mapping[str, Tensor]  # name -> [n]
    kept: Tensor | None = None  # [n, ...], what final metrics need besides, where asked for
    untuned: bool = False

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
        return [replace(part, untuned=score.untuned) for part, score in zip(parts, scores, strict=True)]

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
        sums = {
            name: values.sum(dtype=None if values.dtype == torch.bool else torch.float64).item()
            for name, values in self.quantities.items()
        }
        sums[SAMPLES] = self.losses.shape[0]
        return sums
