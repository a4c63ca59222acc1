"""How a row is trained locally: phases, each with the groups it trains, its rates and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.client.steps import StepRule, plain_steps
from coterie.client.terms import RowTerm, Term, task_loss


@dataclass(frozen=True)
class Phase:
    """A stretch of local training.

    `train` names the groups that move, `slot` the row they belong to; `also` names groups of other slots
    that move along in the same steps. `epochs` and `lr` default to the
    run's; `rates` gives groups a rate of their own. If only (part of) the classifier is trained, the
    extractor's features are computed once, in evaluation mode, and every epoch runs on them. Phases of
    different `stream` (by default their position in the recipe) see the samples in different orders.

    >>> Phase(train="classifier", epochs=1).slot
    'model'
    """

    train: str = "all"
    slot: str = "model"
    also: Mapping[str, str] = field(default_factory=dict)
    epochs: int | None = None
    lr: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    terms: tuple[Term, ...] = (task_loss,)
    row_terms: tuple[RowTerm, ...] = ()
    rule: StepRule = plain_steps
    stream: int | None = None


Recipe = tuple[Phase, ...]
