"""What crosses the wire, what stays, and what the server has to see, read off a method at work on a small federation.

A server that only ever takes the same weighted mean for everybody, with weights that it knows beforehand, could do with
sums over clients (`means`). Whatever it compares, mixes differently for different clients or computes with, it has to
see client by client.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from coterie.client.recipe import measures
from coterie.core.applying import apply
from coterie.core.columns import Columns
from coterie.core.downloads import Owed, owed
from coterie.core.exchange import ACTIONS, DELIVERED, Action, Mix, Peers, Uploads, actions_of
from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.core.slots import Slot
from coterie.core.tracks import exchange_mark
from coterie.data import Dataset
from coterie.engines.base import Engine, Work
from coterie.engines.serial import Serial
from coterie.files import silence
from coterie.methods.base import Method
from coterie.partition import Iid
from coterie.rounds.collect import collect
from coterie.rounds.delivery import Delivery
from coterie.runs.experiment import Experiment

# Methods with two phases change at half-time; what first rounds alone carry is left out.
ROUNDS, FIRST = 6, 2
CLIENTS, SAMPLES = 3, 36
GROUPS = {"all": "model", "all - norm": "model without norm", "extractor": "extractor", "classifier": "classifier"}


@dataclass(frozen=True)
class MethodFacts:
    """A method in words: what is held per client, what a client sends and receives in a round, what the server needs.

    `sees` is what the server must see of single clients; with `means`, sums over clients would do.
    """

    personal: str
    up: str
    down: str
    sees: str = "?"


KEPT = Path(__file__).parent / "assets" / "methods.toml"
"""The facts of Coterie's own methods, which `python -m tools.method_facts` writes."""


@cache
def kept_facts() -> dict[str, MethodFacts]:
    """The facts of Coterie's own methods by name, as they were read off when each was last changed.

    >>> kept_facts()["fedper"].up
    'extractor'
    """
    return {name: MethodFacts(**words) for name, words in tomllib.loads(KEPT.read_text(encoding="utf-8")).items()}


def facts(method: Method) -> MethodFacts:
    """The facts of a method with its default options, on a model with batch norm.

    >>> from coterie.methods import FedPer
    >>> facts(FedPer())
    MethodFacts(personal='classifier, stats', up='extractor', down='extractor', sees='means')
    """
    data = Dataset("toy", torch.zeros(SAMPLES, 4), torch.arange(SAMPLES) % 2, classes=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what travels may follow from which of several models fits best
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    experiment = Experiment(
        method=method,
        data=data,
        partition=Iid(clients=CLIENTS),
        model=model,
        classifier="3",
        rounds=ROUNDS,
        epochs=1,
        validation=0.2,
    )
    ways: dict[str, list[str]] = {"up": [], "down": []}
    with torch.random.fork_rng(devices=[]), silence():
        prepared = experiment.prepare()
        federation = prepared.federation()
        engine = Serial(prepared.problem(), method, seed=0)
        sight = Sight()
        for up, down in _travels(method, federation, engine, sight):
            for way, words in (("up", up), ("down", down)):
                spoken = " + ".join(words).replace("_", " ") or "nothing"
                if federation.round >= FIRST and spoken not in ways[way][-1:]:
                    ways[way].append(spoken)
    spoken_up, spoken_down = ("; later ".join(words) for words in ways.values())
    return MethodFacts(_personal(federation), spoken_up, spoken_down, sight.spoken(federation.layout))


def _travels(
    method: Method, federation: Federation, engine: Engine, sight: Sight
) -> Iterator[tuple[list[str], list[str]]]:
    """What the first client sends and receives in each round, in words; `sight` takes note of what the server reads."""
    for federation.round in range(1, ROUNDS + 1):
        view = sight.of_federation(federation.as_seen_by_server())
        sight.mixes(actions_of(method.deliver, view, federation.everyone, kinds=DELIVERED), federation.layout)
        delivery = Delivery(method, federation, federation.everyone)
        peers, recipe, uploads = delivery.peers(), method.recipe(federation), method.uploads(federation)
        down = spoken_downloads(federation, owed(federation, 0)) + (["other clients' models"] if peers.get(0) else [])
        up = [word for slot, group in uploads.items() for word in _spoken(federation, slot, group)]
        up += [measure.name for measure in measures(recipe) if not measure.keep]
        trained = engine.train(federation, Work(recipe, peers=peers), federation.everyone)
        sent = collect(federation, recipe, uploads, federation.everyone, trained).uploads
        actions = actions_of(method.exchange, sight.of_uploads(sent), kinds=ACTIONS)
        sight.mixes(actions, federation.layout)
        apply(actions, federation, sent, exchange_mark(federation.round))
        yield up, down


def spoken_downloads(federation: Federation, due: Owed) -> list[str]:
    """What a client is owed, in words."""
    slots = [word for slot, columns in due.slots.items() for word in _spoken(federation, slot, columns)]
    return [*slots, *due.values]


def _spoken(federation: Federation, slot: str, group: str | Columns) -> list[str]:
    columns = federation.layout.columns(group)
    if not columns:
        return []
    return [spoken_columns(federation.layout, columns)] if slot == "model" else [slot]


def spoken_columns(layout: Layout, columns: Columns) -> str:
    """Columns of a model in words: the name of their group, if they are one.

    >>> from torch import nn
    >>> layout = Layout(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), classifier="1")
    >>> spoken_columns(layout, layout.columns("extractor")), spoken_columns(layout, Columns.of((1, 3)))
    ('extractor', 'columns')
    """
    for group, words in GROUPS.items():
        if layout.inside(group) == columns:
            return words
    for group, words in GROUPS.items():
        missing = layout.inside(group) - columns
        named = classifier_parts(layout, missing) if columns <= layout.inside(group) else []
        if named and missing <= layout.inside(" + ".join(named)):
            return f"{words} without {' and '.join(named)}"
    return "columns"


def classifier_parts(layout: Layout, columns: Columns) -> list[str]:
    """The parts of the classifier that lie within some columns, if it is not all there.

    >>> from torch import nn
    >>> layout = Layout(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), classifier="1")
    >>> classifier_parts(layout, Columns.of((21, 23)))
    ['classifier.bias']
    """
    if layout.inside("classifier") <= columns:
        return []
    parts = dict.fromkeys(f"classifier.{name.partition('.')[0]}" for name in layout.head_names.values())
    return [part for part in parts if Columns() != layout.inside(part) <= columns]


def _personal(federation: Federation) -> str:
    personal, layout = federation["model"].own_columns, federation.layout
    words = [group for group in ("extractor", "classifier", "norm") if layout.columns(group) <= personal]
    words += classifier_parts(layout, personal)
    if "norm" not in words and layout.columns("stats") <= personal:
        words.append("stats")
    if layout.columns("parameters") <= personal:
        words = ["everything"]
    others = {name: slot for name, slot in federation.slots.items() if name != "model" and slot.held_by != "server"}
    words += [name.replace("_", " ") for name, slot in others.items() if slot.own_columns]
    return ", ".join(words) or "nothing"


class Sight:
    """Takes note of what a server looks at."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.measured: dict[str, bool] = {}  # name -> whether it is a mask
        self.sent = False

    def of_uploads(self, uploads: Uploads) -> Uploads:
        """The same uploads; what is read from them is noted."""
        self.sent = self.sent or any(uploads.declared.values()) or bool(uploads.measured)
        return _WatchedUploads(
            self.of_federation(uploads.federation),
            uploads.cohort,
            uploads.trained,
            uploads.declared,
            _WatchedMeasured(self, uploads.measured),
            self,
        )

    def of_federation(self, federation: Federation) -> Federation:
        """The same state; rows of clients that are read from it are noted."""
        view = copy.copy(federation)
        view.slots = {name: _WatchedSlot(slot, self) for name, slot in federation.slots.items()}
        return view

    def mixes(self, actions: Iterable[Action | Peers], layout: Layout) -> None:
        """Note what mixes take of single clients; what is delivered of peers is seen before."""
        for action in actions:
            if isinstance(action, Mix) and not _is_mean(action):
                self.columns = self.columns | layout.columns(action.group)
            elif isinstance(action, Peers):
                self.columns = self.columns | layout.columns("parameters")

    def spoken(self, layout: Layout) -> str:
        """In words: `means`, or what is seen of single clients.

        >>> from torch import nn
        >>> Sight().spoken(Layout(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), classifier="1"))
        'nothing'
        """
        words = []
        if self.columns - layout.columns("classifier"):
            words.append("models")
        elif self.columns:
            words.append("classifiers")
        masks = [name for name, is_mask in self.measured.items() if is_mask]
        words += (["masks"] if masks else []) + [name for name in self.measured if name not in masks]
        return ", ".join(words).replace("_", " ") or ("means" if self.sent else "nothing")


def _is_mean(mix: Mix) -> bool:
    """Whether a mix is one mean for everybody; of rows of earlier rounds it follows from sums of their changes."""
    return mix.gate is None and len(mix.weights) == 1


@dataclass(frozen=True)
class _WatchedUploads(Uploads):
    sight: Sight = field(default_factory=Sight)

    def rows(self, group: str | Columns = "all", slot: str = "model") -> Tensor:
        self.sight.columns = self.sight.columns | self.federation.layout.columns(group)
        return super().rows(group, slot)


class _WatchedMeasured(Mapping[str, Tensor]):
    def __init__(self, sight: Sight, measured: Mapping[str, Tensor]) -> None:
        self._sight, self._measured = sight, measured

    def __getitem__(self, name: str) -> Tensor:
        measured = self._measured[name]
        self._sight.measured[name] = measured.dtype == torch.bool
        return measured

    def __iter__(self) -> Iterator[str]:
        return iter(self._measured)

    def __len__(self) -> int:
        return len(self._measured)


class _WatchedSlot(Slot):
    """The same slot; rows of clients are noted when they are read."""

    def __init__(self, slot: Slot, sight: Sight) -> None:
        self.__dict__.update(slot.__dict__)
        self._slot, self._sight = slot, sight

    def rows(self, clients: Tensor, columns: Columns | None = None) -> Tensor:
        read = self.columns if columns is None else columns
        self._sight.columns = self._sight.columns | (read & self.own_columns)
        return self._slot.rows(clients, columns)
