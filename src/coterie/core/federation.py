"""All state of a federation: slots (rows) and values (everything else). Nothing else holds state."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from coterie.core.columns import Columns
from coterie.core.layout import Layout
from coterie.core.slots import Slot
from coterie.core.task import Classification, Task
from coterie.core.training import Training
from coterie.errors import CoterieError, unknown


@dataclass
class Federation:
    """The clients, their slots and the server's values at one point in time.

    `keys [K]` say who a client is to the random streams; its row index is its id here. Relabelling the
    clients permutes rows and keys together and changes nothing else. `round` is the number of the round
    under way, counted from 1 (0 before the first), and `rounds` the planned total. `taken_part [K]` says
    which clients have ever uploaded: rows of the others are not evidence of anything. `validation_sizes [K]`
    (none if unknown) counts the samples that clients set aside to judge models by, and `skip_single_samples`
    says whether a batch of one sample is passed over in training.
    """

    layout: Layout
    initial: Tensor  # [P], the common initial row
    sizes: Tensor  # [K] training samples per client
    class_counts: Tensor  # [K, C] training samples per client and class; C is 0 where the task knows no classes
    keys: Tensor  # [K]
    rounds: int
    seed: int
    feature_width: int
    head: nn.Module  # the classifier's architecture, for what the server computes with classifiers
    task: Task
    training: Training = field(default_factory=Training)
    round: int = 0
    validation_sizes: Tensor | None = None
    skip_single_samples: bool = False

    def __post_init__(self) -> None:
        # A copy in evaluation mode: what the server computes must not depend on dropout or on anybody's training.
        self.head = copy.deepcopy(self.head).eval()
        self.slots: dict[str, Slot] = {}
        self.values: dict[str, Tensor] = {}
        self.everyone: Tensor = torch.arange(self.clients)
        self.taken_part: Tensor = torch.zeros(self.clients, dtype=torch.bool)

    @property
    def clients(self) -> int:
        """How many clients there are: K."""
        return len(self.sizes)

    @property
    def classes(self) -> int:
        """How many classes the data has: C."""
        if not isinstance(self.task, Classification):
            raise CoterieError(f"task = '{self.task.name}': there are no classes, which the method asks for")
        return self.task.classes

    @property
    def is_uniform(self) -> bool:
        """Whether all clients hold the same model: nothing is personal."""
        own = any(slot.own.shape[1] for slot in self.slots.values())
        return not own and all(len(value) == 1 for value in self.values.values())

    def add_slot(
        self, name: str, columns: str | Columns = "all", shared: str | Columns = "", fill: float | None = None
    ) -> Slot:
        """Create a slot; columns outside `shared` are personal. It starts as the common initial row, or filled."""
        initial = self.initial if fill is None else torch.full_like(self.initial, fill)
        slot = Slot(initial, self.clients, self.layout.columns(columns), self.layout.columns(shared))
        self.slots[name] = slot
        return slot

    def steps(self, clients: Tensor) -> Tensor:
        """How many steps a plain phase of the run's epochs takes at the given clients: `[m]`."""
        sizes, batch = self.sizes[clients], self.training.batch
        whole, rest = sizes // batch, sizes % batch
        if not self.skip_single_samples:
            return self.training.epochs * (whole + (rest > 0))
        return self.training.epochs * (whole * (batch > 1) + (rest > 1))

    def head_output(self, row: Tensor, features: Tensor) -> Tensor:
        """What the classifier `row [|classifier|]` says to `features [n, d]`: `[n, C]`, differentiable in both."""
        group, prefix = self.layout.columns("classifier"), f"{self.layout.classifier}."
        tensors = {
            entry.name.removeprefix(prefix): entry.view(entry.columns.within(group).take(row))
            for entry in self.layout.entries
            if entry.columns <= group
        }
        out: Tensor = torch.func.functional_call(self.head, tensors, (features,))
        return out

    def head_logits(self, rows: Tensor, features: Tensor) -> Tensor:
        """What classifiers `rows [m, |classifier|]` say to `features [n, d]`: `[m, n, C]`."""
        with torch.no_grad():
            return torch.stack([self.head_output(row, features) for row in rows])

    def __getitem__(self, slot: str) -> Slot:
        if slot not in self.slots:
            raise unknown("slot", slot, self.slots)
        return self.slots[slot]

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that changes from round to round, by name."""
        yield "taken_part", self.taken_part
        for name, slot in self.slots.items():
            yield f"slot.{name}.shared", slot.shared
            yield f"slot.{name}.own", slot.own
        for name, value in self.values.items():
            yield f"value.{name}", value

    def restore(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` once gave."""
        self.taken_part.copy_(state["taken_part"])
        for name, slot in self.slots.items():
            slot.shared.copy_(state[f"slot.{name}.shared"])
            slot.own.copy_(state[f"slot.{name}.own"])
        # Values may appear in the course of a run: the state says which there are.
        for name, value in state.items():
            if name.startswith("value."):
                self.values[name.removeprefix("value.")] = value
