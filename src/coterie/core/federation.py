"""All state of a federation: slots (rows) and values (everything else). Nothing else holds state."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, cast

import torch
from torch import Tensor, nn

from coterie.core.attached import Reduction, ServerStep
from coterie.core.columns import Columns
from coterie.core.layout import Layout
from coterie.core.slots import Follows, HeldBy, ServerSlot, Slot
from coterie.core.task import Classification, Task
from coterie.core.tracks import delivery_mark
from coterie.core.training import Training, epoch_batches
from coterie.errors import CoterieError, require, unknown

# Words that mean something else where a slot is named: the model as downloaded, and what clients sent.
RESERVED = ("received", "upload")
COUNTS_UNASKED = (
    "class counts are read on the server, which does not have them; call federation.ask_class_counts() in init"
)


@dataclass
class Federation:
    """The clients, their slots and the server's values at one point in time.

    `keys [K]` say who a client is to the random streams; its row index is its id here. Relabelling the
    clients permutes rows and keys together and changes nothing else. `round` is the number of the round
    under way, counted from 1 (0 before the first), and `rounds` the planned total. `rounds_taken [K]` counts the
    rounds in which a client's upload counted: rows of those without any are not evidence of anything; `last_round
    [K]` is the newest of them. `validation_sizes [K]` (none if unknown) counts the samples that clients set aside to
    judge models by, and `skip_single_samples` says whether a batch of one sample is passed over in training.

    Parts of a run may attach how mixes are made otherwise than as weighted means (`reduction`; `apart` then says that
    nothing is shared), how the server moves
    what all share towards them (`server_step`), and how clients take their steps (`stepping`, see
    `coterie.client.trainer`).

    >>> from coterie.runs.experiment import Experiment
    >>> federation = Experiment("fedper").prepare().federation()
    >>> two = federation.everyone[:2]
    >>> federation["model"].rows(two, federation.layout.columns("classifier")).shape
    torch.Size([2, 650])
    >>> federation.add_slot("velocity", "parameters", shared="parameters", fill=0.0, held_by="server").width
    4810
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
    reduction: Reduction | None = None
    apart: bool = False  # whether clients have rows of their own of everything, also of what a method shares
    server_step: ServerStep | None = None
    stepping: object | None = None
    simulated: ClassVar[bool] = True  # not what one real site sees
    outline: bool = False  # whether it is looked at alone, so that nobody needs rows of their own yet

    def __post_init__(self) -> None:
        # A copy in evaluation mode: what the server computes must not depend on dropout or on anybody's training.
        self.head = copy.deepcopy(self.head).eval()
        self.slots: dict[str, Slot] = {}
        self.values: dict[str, Tensor] = {}
        self.kinds: dict[str, ValueKind] = {}
        self.value_marks: dict[str, Tensor] = {}  # [K]: when the server last wrote a value for a client
        self.everyone: Tensor = torch.arange(self.clients)
        self.rounds_taken: Tensor = torch.zeros(self.clients, dtype=torch.int64)
        self.last_round: Tensor = torch.zeros(self.clients, dtype=torch.int64)
        self.asks_class_counts = False

    @property
    def knows_class_counts(self) -> bool:
        """Whether class counts can be read here: at clients, and by a server that asked for them."""
        return not isinstance(self.class_counts, _Unreadable)

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
    def taken_part(self) -> Tensor:
        """Which clients have ever uploaded: `[K]` bool."""
        return self.rounds_taken > 0

    @property
    def is_uniform(self) -> bool:
        """Whether all clients hold the same: nothing is personal."""
        rows = any(slot.own_columns and not slot.beside for slot in self.slots.values() if slot.held_by != "server")
        return not rows and not any(kind.per_client for kind in self.kinds.values() if kind.held_by != "server")

    def add_slot(
        self,
        name: str,
        columns: str | Columns = "all",
        shared: str | Columns = "",
        fill: float | Tensor | None = None,
        held_by: HeldBy = "both",
        follows: Follows = None,
    ) -> Slot:
        """Create a slot; columns outside `shared` are personal. It starts as the common initial row, or
        filled with a number or with a row `[P]`.

        `held_by="server"` is memory of the server's that never travels; with `follows` it takes on what clients
        upload of another slot, or what a function makes of their `ClientRows`, before each exchange.
        """
        require(
            name not in RESERVED, f"slot '{name}': the word is reserved for terms and mixes; name the slot otherwise"
        )
        initial = self.initial if fill is None else torch.zeros_like(self.initial) + fill
        held, common = self.layout.columns(columns), self.layout.columns(shared)
        if self.apart and held_by != "server":
            common = Columns()
        self.slots[name] = self._new_slot(initial, held, common, held_by, follows)
        if self.training.keep_optimizer and held_by != "server" and held & self.layout.trainable:
            nothing, columns = torch.zeros_like(self.initial), held & self.layout.trainable
            for memory in self.training.remembered:
                beside = memory_slot(self.training, memory, name)
                self.slots[beside] = self._new_slot(nothing, columns, Columns(), "client", None, name)
        return self.slots[name]

    def _new_slot(
        self, initial: Tensor, columns: Columns, shared: Columns, held_by: HeldBy, follows: Follows, beside: str = ""
    ) -> Slot:
        return Slot(initial, self.clients, columns, shared, held_by, follows, self.outline, beside)

    def kept_with(self, slots: Iterable[str]) -> tuple[str, ...]:
        """The slots, and those that stand beside them.

        >>> from coterie.runs.experiment import Experiment
        >>> Experiment("fedavg", momentum=0.9, keep_optimizer=True).prepare().federation().kept_with(["model"])
        ('model', 'sgd.velocity.model')
        """
        named = tuple(slots)
        return (*named, *(name for name, slot in self.slots.items() if slot.beside in named))

    def add_value(
        self, name: str, start: Tensor, per_client: bool = False, held_by: HeldBy = "both", told: bool = False
    ) -> None:
        """Declare a value and what it starts as: one for everybody (`start [...]`) or one per client (`[K, ...]`).

        Its shape and kind stay. `told` says that clients cannot work its start out by themselves, since it depends
        on others: they are sent it once.
        """
        require(
            not per_client or (start.ndim > 0 and len(start) == self.clients),
            f"value '{name}': has the shape {tuple(start.shape)}, but {self.clients} clients are to have one each",
        )
        self.values[name] = start
        self.kinds[name] = ValueKind(per_client, held_by, told)
        self.value_marks[name] = torch.full((self.clients,), delivery_mark(1) if told else 0)

    def value_of(self, name: str, client: int) -> Tensor:
        """A value as one client has it."""
        if name not in self.values:
            raise unknown("value", name, self.values)
        return self.values[name][client] if self.kinds[name].per_client else self.values[name]

    def write_value(self, name: str, value: Tensor, mark: int) -> None:
        """Let the server replace a value."""
        if name not in self.values:
            raise unknown("value", name, self.values)
        old = self.values[name]
        if value.shape != old.shape or value.dtype != old.dtype:
            raise CoterieError(
                f"value '{name}': {value.dtype} {tuple(value.shape)} was put where {old.dtype} {tuple(old.shape)} was "
                "declared"
            )
        self.values[name] = value
        self.value_marks[name].fill_(mark)

    def keep_value(self, name: str, clients: Tensor, rows: Tensor) -> None:
        """Let clients keep something: their rows `[m, ...]` of a value of their own."""
        self.values[name] = self.values[name].index_copy(0, clients, rows)

    def ask_class_counts(self) -> None:
        """Have clients tell the server how many samples of each class they train on (asked in a method's `init`)."""
        self.asks_class_counts = True

    def withhold_class_counts(self, why: str) -> None:
        """Let whoever reads class counts from now on be told why they may not be read."""
        self.class_counts = cast(Tensor, _Unreadable(why))

    def as_seen_by_server(self) -> Federation:
        """The same state as the server sees it: what clients changed and did not send cannot be read."""
        view = copy.copy(self)
        view.slots = {name: ServerSlot(name, slot) for name, slot in self.slots.items()}
        view.values = _ServerValues(
            {name: value for name, value in self.values.items() if self.kinds[name].held_by != "client"}, self.values
        )
        if not self.asks_class_counts:
            view.withhold_class_counts(COUNTS_UNASKED)
        return view

    def steps(self, clients: Tensor) -> Tensor:
        """How many steps a plain phase takes at the given clients: `[m]`."""
        training, skips = self.training, self.skip_single_samples
        batches = [epoch_batches(size, training.batch, skips) for size in self.sizes[clients].tolist()]
        return torch.tensor([training.steps_of(None, an_epoch) for an_epoch in batches], dtype=torch.int64)

    def head_output(self, row: Tensor, features: Tensor) -> Tensor:
        """What the classifier `row [|classifier|]` says to `features [n, d]`: `[n, C]`, differentiable in both."""
        group = self.layout.columns("classifier")
        tensors = {
            self.layout.head_names[entry.name]: entry.view(entry.columns.within(group).take(row))
            for entry in self.layout.entries
            if entry.columns <= group
        }
        out: Tensor = torch.func.functional_call(self.head, tensors, (features,))
        return out

    def head_logits(self, rows: Tensor, features: Tensor) -> Tensor:
        """What classifiers `rows [m, |classifier|]` say to `features [n, d]`: `[m, n, C]`."""
        with torch.no_grad():
            return torch.stack([self.head_output(row, features) for row in rows])

    @property
    def row_bytes(self) -> int:
        """How much memory all rows take."""
        return sum(slot.shared.nbytes + slot.own.nbytes for slot in self.slots.values())

    def put_rows_on(self, device: str) -> None:
        """Keep rows on a device from now on, and mix them there; everything else stays on the processor.

        What a method reads of rows then lies there too: `.cpu()` brings small parts of it back. Ids, sizes, values,
        measurements and weights of mixes are on the processor always.
        """
        self.initial = self.initial.to(device)
        for slot in self.slots.values():
            slot.shared, slot.own = slot.shared.to(device), slot.own.to(device)

    def __getitem__(self, slot: str) -> Slot:
        if slot not in self.slots:
            raise unknown("slot", slot, self.slots)
        return self.slots[slot]

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that changes from round to round, by name, on the processor."""
        yield "rounds_taken", self.rounds_taken
        yield "last_round", self.last_round
        for name, slot in self.slots.items():
            yield f"slot.{name}.shared", slot.shared.cpu()
            yield f"slot.{name}.own", slot.own.cpu()
            yield f"dropped.{name}", torch.tensor(slot.dropped)
            for part, tensor in slot.tracks.state():
                yield f"tracks.{name}.{part}", tensor
        for name, value in self.values.items():
            yield f"value.{name}", value
            yield f"marks.{name}", self.value_marks[name]

    def restore(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` once gave."""
        self.rounds_taken.copy_(state["rounds_taken"])
        self.last_round.copy_(state["last_round"])
        for name, slot in self.slots.items():
            slot.shared.copy_(state[f"slot.{name}.shared"])
            slot.own.copy_(state[f"slot.{name}.own"])
            slot.dropped = bool(state[f"dropped.{name}"])
            slot.tracks.restore(**{part: state[f"tracks.{name}.{part}"] for part in ("spans", "marks", "known")})
        for name in self.values:
            self.values[name] = state[f"value.{name}"]
            self.value_marks[name].copy_(state[f"marks.{name}"])


def memory_slot(training: Training, memory: str, slot: str) -> str:
    """The name of the slot of what clients' optimisers remember of another."""
    return f"{training.optimizer}.{memory}.{slot}"


class _Unreadable:
    """Stands in for class counts that may not be read: whoever does is told why."""

    def __init__(self, why: str) -> None:
        self.__dict__["_why"] = why

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what copies and pickles look for
            raise AttributeError(name)
        raise CoterieError(self.__dict__["_why"])

    def __getitem__(self, place: object) -> NoReturn:
        raise CoterieError(self.__dict__["_why"])


def described_rows(federation: Federation) -> dict[str, Any]:
    """How rows are read, as plain values: which columns make which tensor, and what each slot holds of them.

    A tensor's columns have the shape `stored`; its dimensions in the `order` given are the module's. A slot's `shared`
    columns, spans `[start, stop]`, lie in `slot.NAME.shared [1, ·]` one after the other, its `own` in
    `slot.NAME.own [K, ·]`, a row per client.
    """
    layout = federation.layout
    return {
        "width": layout.width,
        "classifier": layout.classifier,
        "tensors": [
            {
                "name": entry.name,
                "start": entry.start,
                "stop": entry.stop,
                "stored": entry.stored,
                "order": entry.order,
                "buffer": entry.is_buffer,
            }
            for entry in layout.entries
        ],
        "slots": {
            name: {"shared": slot.shared_columns.spans, "own": slot.own_columns.spans, "held_by": slot.held_by}
            for name, slot in federation.slots.items()
        },
    }


class _ServerValues(dict[str, Tensor]):
    """Values as the server sees them."""

    def __init__(self, seen: dict[str, Tensor], everything: Iterable[str]) -> None:
        super().__init__(seen)
        self._everything = tuple(everything)

    def __missing__(self, name: str) -> Tensor:
        if name in self._everything:
            raise CoterieError(
                f"value '{name}' is held by clients alone, but is read on the server; measure and send it"
            )
        raise unknown("value", name, self)


@dataclass(frozen=True)
class ValueKind:
    """Whether a value is one per client, who has it, and whether its start depends on the other clients."""

    per_client: bool
    held_by: HeldBy
    told: bool = False
