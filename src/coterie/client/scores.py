"""How good a model is on a client's samples, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

TUNING_DIVERGED = (
    "tuning its model for the test diverged (the tuned weights are not finite), so the model is tested untuned. "
    "A smaller lr or clip= may help."
)

# Large enough to be efficient, small enough that several workers share the samples of a single model.
TEST_BATCH = 128


@dataclass(frozen=True)
class Score:
    """A model's result on test data, sample by sample; `untuned` says that the copy tuned for it was not finite."""

    correct: Tensor  # [n] bool
    losses: Tensor  # [n]
    probabilities: Tensor | None = None  # [n, C], where asked for
    untuned: bool = False

    def split(self, sizes: list[int]) -> list[Score]:
        """Cut into the scores of consecutive parts of the samples."""
        parts = zip(self.correct.split(sizes), self.losses.split(sizes), strict=True)
        if self.probabilities is None:
            return [Score(correct, losses) for correct, losses in parts]
        probabilities = self.probabilities.split(sizes)
        return [Score(*part, kept) for part, kept in zip(parts, probabilities, strict=True)]
