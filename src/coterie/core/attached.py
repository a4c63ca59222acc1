"""What may be attached to a federation by parts of a run that stand in layers above, as far as rows are concerned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.slots import Slot
from coterie.errors import CoterieError

Blocks = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""Some columns at a time: the sources' rows `[m, c]`, and what stands where the result of a mix goes, `[1 or n, c]`."""


class Reduction(Protocol):
    """How mixes are made otherwise than as weighted means: of every method, in the exchange and at download."""

    @property
    def spoken(self) -> str:
        """What was asked for, in words."""
        ...

    @property
    def lacking(self) -> str:
        """Of what a method gives clients besides mixes: why that cannot be, and the way out."""
        ...

    @property
    def spans_learners(self) -> bool:
        """Whether a learner's weights depend on the other learners' too, so that all of them must be seen at once."""
        ...

    def weights(
        self, weights: Tensor, learners: Tensor | None, sources: Tensor, blocks: Blocks, what: str
    ) -> Tensor | None:
        """The weights `[r, m]` in place of those that a method asks for; none if the mix must not be carried out.

        `learners [n]` are the clients that the result is for (none if it is shared), `sources [m]` those whose rows are
        mixed; `what` names the mix in messages. What a row lacks of one stays what was there.
        """
        ...

    def reduce(self, weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """New rows `[r, c]` of some columns of the sources' `rows [m, c]`, and what every source counted for in them.

        That is summed over the columns, `[r, m]`; none if they counted as the weights say.
        """
        ...


class ServerStep(Protocol):
    """How the server moves what all share, given the mean of what clients sent of it."""

    def moved(self, slots: Mapping[str, Slot], target: str, part: Columns, there: Tensor, mean: Tensor) -> Tensor:
        """What some columns of a slot become, `[1, c]`, from what is `there` and their `mean`; slots hold its state."""
        ...

    def refusal(self, why: str) -> CoterieError:
        """The error for a method whose mixes are no such means."""
        ...
