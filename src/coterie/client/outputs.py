"""What every kind of batch offers of its classifier's outputs, however these are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Outputs(ABC):
    """The outputs of the classifier in `slot`, computed when first asked for."""

    slot: str
    _logits: Tensor | None = None
    _apart: Tensor | None = None

    @property
    @abstractmethod
    def features(self) -> Tensor:
        """The extractor's output: `[B, d]`."""

    @abstractmethod
    def head(self, slot: str, features: Tensor | None = None) -> Tensor:
        """The output of the classifier in `slot` on these (or the given) features: `[B, C]`."""

    @property
    def logits(self) -> Tensor:
        """The classifier's output on the features: `[B, C]`."""
        if self._logits is None:
            self._logits = self.head(self.slot)
        return self._logits

    @property
    def classifier_logits(self) -> Tensor:
        """The same numbers with a gradient for the classifier alone: `[B, C]`."""
        self._apart = self.head(self.slot, self.features.detach())
        return self._apart

    @property
    def computed(self) -> Tensor | None:
        """The same numbers, if anybody has asked for them: `[B, C]`."""
        return self._apart if self._logits is None else self._logits
