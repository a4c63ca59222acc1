"""An optimiser whose state stays with its client from round to round: momentum that is not forgotten.

$ coterie run ./examples/plugins/kept_momentum.py:KeptMomentum --set momentum=0.5
"""

from collections.abc import Iterable
from dataclasses import dataclass

import coterie as ct
from coterie.client.views import Batches, TrainerView
from coterie.core.exchange import Action
from coterie.core.mixing import by_size


@dataclass(frozen=True)
class KeptSteps:
    """v ← momentum · v + g;  w ← w − η v.  v is the client's row of the slot `velocity`, and so is there next time."""

    momentum: float

    def __call__(self, trainer: TrainerView, batches: Batches) -> None:
        """The parts come slot by slot, and so in the same order."""
        rate = trainer.factor * trainer.worker.problem.training.lr
        moved = [part for part in trainer.parts if part.slot == "model"]
        velocities = [part for part in trainer.parts if part.slot == "velocity"]
        for batch in batches:
            trainer.gradient(batch)
            for part, velocity in zip(moved, velocities, strict=True):
                velocity.row.mul_(self.momentum).add_(part.grad)
                part.row.sub_(velocity.row, alpha=rate)


@dataclass(frozen=True)
class KeptMomentum(ct.Method):
    """FedAvg with momentum that clients keep from their last round; 0 is FedAvg."""

    momentum: float = 0.5

    def __post_init__(self) -> None:
        """At 1 and beyond, it would grow for ever."""
        if not 0 <= self.momentum < 1:
            raise ct.CoterieError(f"momentum = {self.momentum}: must lie in [0, 1)")

    def init(self, federation: ct.Federation) -> None:
        """A velocity for each client, which never leaves it."""
        federation.add_slot("velocity", "parameters", fill=0.0, held_by="client")

    def recipe(self, federation: ct.Federation) -> tuple[ct.Phase, ...]:
        """Both slots move in the same steps."""
        return (ct.Phase(also={"velocity": "parameters"}, rule=KeptSteps(self.momentum)),)

    def exchange(self, uploads: ct.Uploads) -> Iterable[Action]:
        """The plain mean."""
        yield ct.Mix(by_size(uploads))
