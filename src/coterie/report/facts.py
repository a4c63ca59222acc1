"""What crosses the wire and what stays, read off a method at work on a small federation."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn

from coterie.client.recipe import measures
from coterie.core.applying import apply
from coterie.core.columns import Columns
from coterie.core.downloads import Owed, owed
from coterie.core.exchange import ACTIONS, DELIVERED, actions_of
from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.core.tracks import exchange_mark
from coterie.data import Dataset
from coterie.engines.base import Engine, Work
from coterie.engines.serial import Serial
from coterie.files import silence
from coterie.methods.base import Method
from coterie.partition import Iid
from coterie.report.sees import Sight
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
    return "columns"


def _personal(federation: Federation) -> str:
    own, layout = federation["model"].own_columns, federation.layout
    words = [group for group in ("extractor", "classifier", "norm") if layout.columns(group) <= own]
    if "norm" not in words and layout.columns("stats") <= own:
        words.append("stats")
    if layout.columns("parameters") <= own:
        words = ["everything"]
    others = {name: slot for name, slot in federation.slots.items() if name != "model" and slot.held_by != "server"}
    words += [name.replace("_", " ") for name, slot in others.items() if slot.own_columns]
    return ", ".join(words) or "nothing"
