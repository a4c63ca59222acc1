"""What a method is: four short statements about rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.client.measures import Probe
from coterie.client.recipe import Phase, Recipe
from coterie.client.views import BatchView
from coterie.core.exchange import Action, ClientRows, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.layout import StatsPolicy
from coterie.core.task import Classification
from coterie.errors import require


@dataclass(frozen=True)
class Method:
    """A personalised federated learning method: a frozen dataclass of its hyper-parameters.

    A method says which columns of the model are shared (`shared`; all others are personal), what travels
    (`uploads`, `downloads`), how a client trains (`recipe`), what it measures (`probes`), and how the
    server mixes (`exchange`). It holds no state: whatever changes lives in the federation. `stats` is what
    happens to batch-norm statistics unless the run says otherwise, `tested` the slot whose model is tested,
    `remembers` the probes that never leave the client: each becomes its row of the value of that name.
    `paper` is its citation, `extra_cost` what a round costs beyond plain training of the same epochs.
    """

    paper: ClassVar[str] = ""
    extra_cost: ClassVar[str] = "none"
    shared: ClassVar[str] = "all"
    stats: ClassVar[StatsPolicy] = "mean"
    tested: ClassVar[str] = "model"
    remembers: ClassVar[tuple[str, ...]] = ()

    def check(self, federation: Federation) -> None:
        """Refuse models and federations that the method cannot work with, before training starts."""

    def init(self, federation: Federation) -> None:
        """Add the slots and values that the method needs besides `model`."""

    @property
    def counts_classes(self) -> bool:
        """Whether the server has to know how many samples of each class a client trains on."""
        return False

    def recipe(self, federation: Federation) -> Recipe:
        """How the cohort trains in this round."""
        return (Phase(),)

    def probes(self, federation: Federation) -> tuple[Probe, ...]:
        """What the cohort measures in this round."""
        return ()

    def keeps(self, federation: Federation) -> Mapping[str, Callable[[ClientRows], Tensor]]:
        """Slots whose personal rows follow from training: for each, the cohort's new rows `[m, slot width]`."""
        return {}

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """Which groups of which slots a client sends in this round."""
        return {"model": self.shared}

    def downloads(self, federation: Federation) -> Mapping[str, str]:
        """Which groups of which slots (or which values, with any group) a client receives in this round."""
        return {"model": self.shared}

    def catches_up(self, federation: Federation, client: int) -> Mapping[str, str]:
        """What `client` receives besides in this round, since the server changed it while the client was away."""
        return {}

    def received_by(self, federation: Federation, client: int) -> dict[str, str]:
        """All that `client` receives in this round: the downloads, and what it catches up on."""
        downloads = dict(self.downloads(federation))
        for name, group in self.catches_up(federation, client).items():
            downloads[name] = f"{downloads[name]} + {group}" if name in downloads else group
        return downloads

    def peers(self, federation: Federation, client: int) -> Sequence[int]:
        """The clients whose uploaded models `client` downloads besides its own (`Worker.peers`)."""
        return ()

    def deliver(self, federation: Federation, clients: Tensor) -> Iterable[Mix]:
        """Mixes made at download time, just for `clients`; each has `[len(clients), K]` weights on a slot's rows."""
        return ()

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The server step: who learns from whom, and where the result lands."""
        return ()

    def predict(self, batch: BatchView) -> Tensor:
        """The outputs `[B, C]` by which the method is tested, for the model in the slot `tested`."""
        return batch.logits

    def tune(self, federation: Federation) -> Recipe:
        """What a client trains on a copy of its model just before it is tested."""
        return ()


def require_classes(federation: Federation, method: str) -> None:
    """An error unless the task knows classes."""
    task = federation.task
    require(
        isinstance(task, Classification),
        f"task = '{task.name}': {method} works with classes; use a method without, such as fedavg, fedper or ditto",
    )
