"""What a method is: a few short statements about rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from coterie.client.recipe import Phase, Recipe
from coterie.client.views import BatchView
from coterie.core.exchange import Action, Mix, Peers, Uploads
from coterie.core.federation import Federation
from coterie.core.task import Classification
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.typed import TypedOptions


@dataclass(frozen=True)
class Method(metaclass=TypedOptions):
    """A personalised federated learning method: a frozen dataclass of its hyper-parameters.

    A method says which columns of the model are shared (`shared`; all others are personal), what it needs besides
    (`init`), what happens at a client (`recipe`), what the client sends (`uploads`), and how the server mixes
    (`exchange`). Downloads follow: a client is sent what the server wrote of its columns and values since it last
    took part. A method holds no state: whatever changes lives in the federation. `stats` is what happens to
    batch-norm statistics unless the run says otherwise, `tested` the slot whose model is tested. `paper` is its
    citation, `extra_cost` what a round costs beyond plain training of the same epochs.

    `exchange` and `deliver` see the federation as the server does; `recipe`, `uploads` and `tune` may use the round
    and what the client holds (the server may leave measurements out, see `Measure`).

    >>> class Mean(Method):
    ...     def exchange(self, uploads):
    ...         yield Mix((uploads.sizes / uploads.sizes.sum())[None])
    >>> from coterie.runs.experiment import Experiment
    >>> Experiment(Mean(), rounds=1, epochs=1, threads=1).run().rounds
    [1]
    """

    paper: ClassVar[str] = ""
    extra_cost: ClassVar[str] = "none"
    stats: ClassVar[StatsPolicy] = "mean"
    tested: ClassVar[str] = "model"
    learns_from_validation: ClassVar[bool] = False  # choosing a round by validation is then no independent choice
    predicts_with_samples: ClassVar[bool] = (
        False  # a client's own training samples are then a part of what it predicts with
    )

    @property
    def shared(self) -> str:
        """The groups that clients and server share; most methods say `shared: ClassVar[str] = ...`."""
        return "all"

    def check(self, federation: Federation) -> None:
        """Refuse models and federations that the method cannot work with, before training starts."""

    def init(self, federation: Federation) -> None:
        """Add the slots and values that the method needs besides `model`."""

    def classifier(self, own: nn.Module, features: int, outputs: int) -> nn.Module:
        """The classifier under this method: the model's `own`, or a module around it with parts beside, from a seed.

        It takes features `[B, features]`; `classifier.NAME` is the group of a part. `BatchView.head` hands on what
        else it is asked.
        """
        return own

    def recipe(self, federation: Federation) -> Recipe:
        """What the clients of this round do, in order: `Phase`, `Measure`, `Keep`."""
        return (Phase(),)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """Which groups of which slots a client sends in this round, besides what it measures."""
        return {"model": self.shared}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The server step: who learns from whom, and where the result lands. It yields actions, or returns a list."""
        return ()

    def deliver(self, federation: Federation, clients: Tensor) -> Iterable[Mix | Peers]:
        """What is made at download time, just for `clients`: mixes of slots' rows, `[len(clients), K]`, and peers."""
        return ()

    def predict(self, batch: BatchView) -> Tensor:
        """The outputs `[B, C]` by which the method is tested, for the model in the slot `tested`."""
        return batch.logits

    def tune(self, federation: Federation) -> Recipe:
        """What a client trains on a copy of its model just before it is tested: phases only."""
        return ()

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """What the method makes of the run's settings: options left to the run, and all that its rounds decide.

        `federation` has no slots and values yet. Runs record it, and a run can be extended only by rounds that leave
        it as it is: whoever reads `federation.rounds` names here what comes of that.
        """
        return {}


def extends_classifier(method: Method) -> bool:
    """Whether models have another classifier under a method than their own.

    >>> extends_classifier(Method())
    False
    """
    return type(method).classifier is not Method.classifier


def require_classes(federation: Federation, method: str) -> None:
    """An error unless the task knows classes."""
    task = federation.task
    require(
        isinstance(task, Classification),
        f"task = '{task.name}': {method} works with classes; use a method without, such as fedavg, fedper or ditto",
    )
