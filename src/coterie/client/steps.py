"""How a phase steps through its batches."""

from __future__ import annotations

from collections.abc import Callable

from coterie.client.views import Batches, TrainerView

StepRule = Callable[[TrainerView, Batches], None]


def plain_steps(trainer: TrainerView, batches: Batches) -> None:
    """One optimiser step a batch."""
    for batch in batches:
        trainer.descend(batch)
