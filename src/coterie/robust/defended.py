"""Mixes with a defence: attached to a federation, where it has its say about every mix of every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.core.attached import Blocks
from coterie.core.federation import Federation
from coterie.methods.base import Method
from coterie.robust.options import Defence
from coterie.robust.reducing import Contributions, Reducer, reducer_of
from coterie.rounds.delivery import require_mixes_alone
from coterie.rounds.stages import Clients, Stage


@dataclass(frozen=True)
class Defended(Stage):
    """A run's defence, as mixes ask for it (`coterie.core.attached.Reduction`). It leaves uploads as they are."""

    reducer: Reducer
    spoken: str  # what was asked of mixes, as it was given
    name: ClassVar[str] = "defence"
    lacking: ClassVar[str] = "of which no share can be bounded; leave it out (quarantine works with every method)"

    @classmethod
    def of(cls, settings: Defence, clients: Clients | None = None) -> Defended | None:
        """The defence that a run asks for."""
        return cls(reducer_of(settings), settings.spoken) if settings.reduces else None

    @classmethod
    def things(cls, settings: Defence) -> tuple[object, ...]:
        """The defences that are named."""
        return (reducer_of(settings),)

    def lacks(self, contributors: int) -> str:
        """Why mixes of as few as there may be cannot be made, whatever their weights."""
        why = self.reducer.lacks(contributors)
        return f"{self.spoken}: {why}" if why else ""

    def attach(self, federation: Federation) -> None:
        """From now on, mixes are made like this."""
        federation.reduction = self

    def check(self, method: Method, federation: Federation) -> None:
        """Refuse a method in which others reach a client by other ways than mixes."""
        require_mixes_alone(method, federation)

    # What mixes ask.

    @property
    def spans_learners(self) -> bool:
        """Whether a learner's weights depend on the other learners' too."""
        return self.reducer.spans_learners

    def weights(
        self, weights: Tensor, learners: Tensor | None, sources: Tensor, blocks: Blocks, what: str
    ) -> Tensor | None:
        """The weights that are used in place of a method's."""
        return self.reducer.weights(Contributions(weights, learners, sources, blocks, what))

    def reduce(self, weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """New rows, and what every source counted for."""
        reduced = self.reducer.reduce(weights, rows)
        return reduced.values, reduced.counted
