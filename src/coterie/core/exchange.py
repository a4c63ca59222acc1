"""What is said of a server step: what clients sent, who learns from whom, and where the result lands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.errors import CoterieError


@dataclass(frozen=True)
class ClientRows:
    """Rows of clients around local training: for what they keep of it, and for what the server remembers of it.

    >>> import torch
    >>> from coterie.runs.experiment import Experiment
    >>> federation = Experiment("fedavg").prepare().federation()
    >>> cohort = torch.tensor([3, 5])
    >>> rows = ClientRows(federation, cohort, {"model": federation["model"].rows(cohort) + 1})
    >>> (rows.after(group="classifier") - rows.before(group="classifier")).mean().round().item()
    1.0
    """

    federation: Federation
    cohort: Tensor  # [m] client ids
    trained: Mapping[str, Tensor]  # slot -> [m, slot width]

    def before(self, slot: str = "model", group: str | Columns = "all") -> Tensor:
        """The columns of a slot as the clients held them before training: `[m, |group|]`."""
        return self.federation[slot].rows(self.cohort, self.federation.layout.columns(group))

    def after(self, slot: str = "model", group: str | Columns = "all") -> Tensor:
        """The columns of a trained slot after training: `[m, |group|]`."""
        columns = self.federation.layout.columns(group)
        return columns.within(self.federation[slot].columns).take(self.trained[slot])

    def relaxed(self, rate: float) -> Tensor:
        """The models w + rate · (w_k − w), w as before training: `[m, P]`; running statistics are as trained.

        A mean of these is a server step of that rate.
        """
        layout = self.federation.layout
        parameters, rows = layout.columns("parameters"), self.after(group=layout.everything).clone()
        before = self.before(group=parameters)
        parameters.put(rows, before + rate * (parameters.take(rows) - before))
        return rows


@dataclass(frozen=True)
class Uploads:
    """What the clients of this round sent: their trained rows (declared columns only) and their measurements.

    `federation` is the server's view: rows and values that have not travelled cannot be read from it.

    >>> import torch
    >>> from coterie.runs.experiment import Experiment
    >>> federation = Experiment("fedavg").prepare().federation()
    >>> cohort, columns = torch.tensor([3, 5]), federation.layout.columns("classifier")
    >>> uploads = Uploads(federation, cohort, {"model": federation["model"].rows(cohort)}, {"model": columns})
    >>> uploads.rows("classifier").shape, uploads.sizes.shape
    (torch.Size([2, 650]), torch.Size([2]))
    """

    federation: Federation
    cohort: Tensor  # [m] client ids
    trained: Mapping[str, Tensor]  # slot -> [m, slot width]
    declared: Mapping[str, Columns]  # slot -> columns that travel
    measured: Mapping[str, Tensor] = field(default_factory=dict)  # name -> [m, ...]

    @property
    def sizes(self) -> Tensor:
        """Training samples of the cohort's clients: `[m]`, float64."""
        return self.federation.sizes[self.cohort].double()

    def rows(self, group: str | Columns = "all", slot: str = "model") -> Tensor:
        """The uploaded columns of `group`, a row per client of the cohort: `[m, |group|]`."""
        columns = self.federation.layout.columns(group)
        if not columns <= self.declared.get(slot, Columns()):
            raise CoterieError(f"'{group}' of slot '{slot}' was read on the server but is not among the uploads")
        if slot not in self.trained:
            raise CoterieError(f"slot '{slot}' is declared as an upload but no phase of the recipe trains it")
        return columns.within(self.federation[slot].columns).take(self.trained[slot])


@dataclass(frozen=True)
class Mix:
    """Weighted means of rows: `target[·, group] = weights @ source[·, group]`.

    `weights` has one column per source row: the cohort's uploads (`source="upload"`, taken from the slot
    that `target` names unless `of` names another), or all clients' rows of a slot (`source=` its name), or of that slot
    those of the clients that `sources [m]` names: with very many clients, a column for each would be too many.
    For shared columns it has one row (`[1, ·]`). Personal columns are written for the clients that `to`
    names (the cohort, everyone, or ids `[r]`), with a row of weights for each of them, or one row for all
    (`[1, ·]`). With `gate` (bool, one row per client written, `[·, |group|]`) only the gated elements are written; a
    client of whom nothing is gated receives nothing, nor does one that would get its own row back. Rows of weight
    zero are not read. With `source_gate` (bool, one row per source, `[m, |group|]`) each source counts in its gated
    elements alone: weights are those of the sources that count there, divided by their sum, and where none does, what
    was there stays.

    >>> import torch
    >>> everybody_alike = Mix(torch.tensor([[0.25, 0.75]]), "extractor")
    >>> each_their_own = Mix(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), "classifier", target="teacher")
    >>> each_their_own.source, each_their_own.to
    ('upload', 'cohort')
    """

    weights: Tensor
    group: str | Columns = "all"
    source: str = "upload"
    target: str = "model"
    of: str = "model"
    to: Literal["cohort", "everyone"] | Tensor = "cohort"
    gate: Tensor | None = None
    source_gate: Tensor | None = None
    sources: Tensor | None = None


@dataclass(frozen=True)
class Peers:
    """Whose uploaded models clients download besides their own (`ClientView.peers`); `of(client)` gives their ids.

    It is asked for one client at a time, and only where somebody trains.

    >>> neighbours = Peers(lambda client: [client - 1, client + 1])
    >>> neighbours.of(3)
    [2, 4]
    """

    of: Callable[[int], Sequence[int]]


@dataclass(frozen=True)
class Drop:
    """A slot that has served its purpose: nothing of it is owed to anybody any longer.

    >>> Drop("teacher")
    Drop(slot='teacher')
    """

    slot: str


@dataclass(frozen=True)
class Put:
    """What the server computed itself: a value (prototypes, statistics, a generator), or shared columns of a slot.

    With `group`, `name` is a slot and `value [1, |group|]` is written into its shared columns, unless it is not
    finite: then the old value stays, and the log says so.

    >>> import torch
    >>> prototypes = Put("prototypes", torch.zeros(10, 64))
    >>> trained_on_the_server = Put("model", torch.zeros(1, 650), group="classifier")
    """

    name: str
    value: Tensor
    group: str | Columns | None = None


Action = Mix | Put | Drop
ACTIONS = (Mix, Put, Drop)
DELIVERED = (Mix, Peers)


@dataclass(frozen=True)
class Applied:
    """A mix as it was carried out: `rows` are the clients who learned (none if all share the result),
    `columns` the clients they learned from.
    """

    weights: Tensor
    group: str
    target: str
    gated: bool
    rows: Tensor
    columns: Tensor


Kind = TypeVar("Kind")
NUMBERS = ("weights", "gate", "source_gate", "sources", "value")  # what is a tensor in an action, if it is there at all


def actions_of(hook: Callable[..., Iterable[Kind]], *given: Any, kinds: tuple[type, ...]) -> list[Kind]:
    """What a method's `exchange` or `deliver` says, yielded or returned: some of these `kinds` of actions.

    >>> class Forgetful:
    ...     def exchange(self, uploads):
    ...         Drop("teacher")
    >>> actions_of(Forgetful().exchange, None, kinds=(Mix, Put, Drop))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: Forgetful.exchange (..., line 2) returns None; let it yield each Mix, Put or Drop
    """
    made: object = hook(*given)
    allowed = _either([kind.__name__ for kind in kinds])
    if not isinstance(made, Iterable):
        what = "None" if made is None else f"a {type(made).__name__} by itself"
        raise CoterieError(f"{_place(hook)} returns {what}; let it yield each {allowed}")
    listed: list[Any] = list(made)
    for action in listed:
        kind = type(action).__name__
        if not isinstance(action, kinds):
            raise CoterieError(f"{_place(hook)} yields a {kind}; let it yield each {allowed} by itself")
        for name in NUMBERS:
            numbers = getattr(action, name, None)
            if numbers is not None and not isinstance(numbers, Tensor):
                what = f"a {kind} a {type(numbers).__name__} as {name}"
                raise CoterieError(f"{_place(hook)} gives {what}; make it a tensor with torch.tensor(...)")
    return listed


@contextmanager
def authored(hook: Callable[..., object]) -> Iterator[None]:
    """Errors about what a method's function said name the place where it stands."""
    try:
        yield
    except CoterieError as error:
        if str(getattr(hook, "__module__", "")).partition(".")[0] != __name__.partition(".")[0]:
            error.args = (f"{_place(hook)}: {error}",)
        raise


def _either(names: Sequence[str]) -> str:
    """Names as alternatives."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _place(hook: Callable[..., object]) -> str:
    """Where a method's function stands, for its author."""
    code = getattr(hook, "__code__", None)
    name = getattr(hook, "__qualname__", repr(hook)).rpartition("<locals>.")[2]
    return f"{name} ({code.co_filename}, line {code.co_firstlineno})" if code is not None else name
