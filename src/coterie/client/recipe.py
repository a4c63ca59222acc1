"""What happens at a client in a round, in order: it trains, it measures, it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar, Protocol, TypeVar

from torch import Tensor

from coterie.client.terms import RowTerm, Term, task_loss
from coterie.client.views import Batches, ClientView, TrainerView
from coterie.core.exchange import ClientRows
from coterie.errors import CoterieError
from coterie.typed import shown

StepRule = Callable[[TrainerView, Batches], None]


def plain_steps(trainer: TrainerView, batches: Batches) -> None:
    """One optimiser step a batch."""
    for batch in batches:
        trainer.descend(batch)


@dataclass(frozen=True)
class Phase:
    """A stretch of local training.

    `train` names the groups that move, `slot` the row they belong to; `also` names groups of other slots
    that move along in the same steps. `epochs` (or `steps` in their place) and `lr` default to the
    run's; `rates` gives groups a rate of their own. If only (part of) the classifier is trained, the
    extractor's features are computed once, in evaluation mode, and every epoch runs on them. Phases of
    different `stream` (by default their position among the phases) see the samples in different orders. Without
    `terms`, the gradient is that of `row_terms` alone. In the end rows, batch-norm statistics included, lie as far as
    `reach` says on the way from where they were before the phase (0) to where it led them (1).

    >>> Phase(train="classifier", epochs=1).slot
    'model'
    """

    train: str = "all"
    slot: str = "model"
    also: Mapping[str, str] = field(default_factory=dict)
    epochs: float | None = None
    lr: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    terms: tuple[Term, ...] = (task_loss,)
    row_terms: tuple[RowTerm, ...] = ()
    rule: StepRule = plain_steps
    stream: int | None = None
    reach: float = 1.0

    @property
    def moves(self) -> str:
        """What its steps train, in words: groups of the model, and what other slots hold, by these.

        >>> Phase().moves, Phase("classifier").moves, Phase(slot="teacher", train="classifier").moves
        ('model', 'classifier', 'teacher.classifier')
        >>> Phase(slot="personal", also={"model": "all"}).moves
        'personal + model'
        """
        named = [(self.slot, self.train), *self.also.items()]
        words = [slot if group == "all" else group if slot == "model" else f"{slot}.{group}" for slot, group in named]
        return " + ".join(words)

    def __post_init__(self) -> None:
        if fault := self._fault():
            raise CoterieError(fault)

    def _fault(self) -> str:
        """What is wrong, if anything: phases are made anew in every round, so it is worded only then."""
        # These come from somebody's method, whatever their types promise.
        lists: tuple[tuple[str, object], ...] = ("terms", self.terms), ("row_terms", self.row_terms)
        for name, given in lists:
            if not isinstance(given, (list, tuple)):
                return f"{name} = {shown(given)}: must be a tuple, also of one alone"
        for name, number in (("epochs", self.epochs), ("lr", self.lr)):
            if number is not None and not _counts(number):
                return f"{name} = {shown(number)}: must be a number that is not negative, or left out"
        if not all(map(callable, self.terms)):
            return f"terms = {shown(self.terms)}: must be functions"
        rule: object = self.rule
        if not callable(rule):
            return f"rule = {shown(rule)}: must be a function"
        if not (self.terms or self.row_terms):
            return (
                f"a phase that trains '{self.train}' of slot '{self.slot}' has no objective; give it terms or row_terms"
            )
        return "" if 0 <= self.reach <= 1 else f"reach = {self.reach}: must lie in [0, 1]"


class Measurement(Protocol):
    """Something that every client measures: a tensor of the same shape at every client.

    All its numbers are finite: a client of which that is not true is left out of the round like one that diverged. But
    a measurement of one row for each class, `[C, ...]`, can say `of_classes = True`. Then a row is NaN as a whole
    where the client has no training sample of the class, and only there.
    """

    name: ClassVar[str]

    def __call__(self, worker: ClientView) -> Tensor:
        """Measure at the client that `worker` stands for just now."""
        ...


@dataclass(frozen=True)
class Measure:
    """A measurement at this point of the recipe: before the first phase on the model as received, later as trained.

    It is sent with the upload (`Uploads.measured`); with `keep` it never leaves the client, and becomes its row of
    the value of that name.

    >>> from coterie.client.measures import ClassMeans
    >>> Measure(ClassMeans()).name
    'class_means'
    """

    take: Measurement
    keep: bool = False

    @property
    def name(self) -> str:
        """What it is called in uploads and values."""
        return self.take.name

    @property
    def of_classes(self) -> bool:
        """Whether it has a row for each class, NaN for those that the client does not have."""
        return bool(getattr(self.take, "of_classes", False))


@dataclass(frozen=True)
class Keep:
    """A slot whose rows follow from training: `rows` makes the cohort's new ones, `[m, slot width]`.

    It changes what clients keep and send, never the model that is tested as `trained`.

    >>> remembered = Keep("previous", lambda rows: rows.after(group="extractor"))
    >>> remembered.slot
    'previous'
    """

    slot: str
    rows: Callable[[ClientRows], Tensor]


Recipe = tuple[Phase | Measure | Keep, ...]
_STEPS = (Phase, Measure, Keep)
Step = TypeVar("Step", Phase, Measure, Keep)


def phases(recipe: Recipe) -> Iterator[Phase]:
    """The phases of a recipe, in order."""
    return _steps(recipe, Phase)


def measures(recipe: Recipe) -> Iterator[Measure]:
    """The measurements of a recipe, in order."""
    return _steps(recipe, Measure)


def keeps(recipe: Recipe) -> Iterator[Keep]:
    """What a recipe keeps, in order."""
    return _steps(recipe, Keep)


def _steps(recipe: Recipe, kind: type[Step]) -> Iterator[Step]:
    """The steps of one kind; an error if what a method's `recipe` returned is none."""
    if not isinstance(recipe, (list, tuple)) or not all(isinstance(step, _STEPS) for step in recipe):
        raise CoterieError(f"recipe = {shown(recipe)}: must be a tuple of Phase, Measure and Keep, also of one alone")
    return (step for step in recipe if isinstance(step, kind))


def telling_phase(recipe: Recipe, tested: str) -> int | None:
    """Which of a recipe's phases tells how well a client fits its training samples, if any does.

    It is the last one that trains the model which is tested; without such a one, the last that looks at samples.

    >>> telling_phase((Phase(), Phase(slot="personal")), tested="model")
    0
    """
    looking = [(number, phase.slot) for number, phase in enumerate(phases(recipe)) if phase.terms]
    last = looking[-1][0] if looking else None
    return next((number for number, slot in reversed(looking) if slot == tested), last)


def trained_slots(recipe: Recipe) -> tuple[str, ...]:
    """The slots whose rows a recipe trains.

    >>> trained_slots((Phase(also={"teacher": "classifier"}), Phase()))
    ('model', 'teacher')
    """
    return tuple(dict.fromkeys(slot for phase in phases(recipe) for slot in (phase.slot, *phase.also)))


def _counts(number: object) -> bool:
    """Whether something is a number that is not negative; NumPy's are numbers too."""
    return isinstance(number, Real) and math.isfinite(number) and float(number) >= 0
