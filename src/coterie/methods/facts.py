"""What crosses the wire and what stays, read off a method at work on a small federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from coterie.data import Dataset
from coterie.experiment import Experiment
from coterie.federation import Federation
from coterie.ledger import declared_bytes
from coterie.methods.method import Method
from coterie.partition import Iid

# Two rounds in which first rounds are over: methods with two phases are in their first, and in their second.
ROUNDS, EARLY, LATE = 100, 30, 80


@dataclass(frozen=True)
class Facts:
    """A method in words: what is held per client, and what a client sends and receives in a round."""

    personal: str
    up: str
    down: str


def facts(method: Method) -> Facts:
    """The facts of a method with its default options, on a model with batch norm.

    >>> from coterie.methods import FedPer
    >>> facts(FedPer())
    Facts(personal='classifier, stats', up='extractor', down='extractor')
    """
    data = Dataset("toy", torch.zeros(40, 1, 8, 8), torch.arange(40) % 2, classes=2)
    experiment = Experiment(
        method=method, data=data, partition=Iid(clients=4), model="lenet5", rounds=ROUNDS, validation=0.2
    )
    federation = experiment.prepare().federation()
    federation.taken_part[:] = True
    federation.values.get("has_teacher", torch.zeros(1)).fill_(1.0)  # as after a round in which all took part
    ways: dict[str, list[str]] = {"up": [], "down": []}
    for federation.round in (EARLY, LATE):
        up = _declared(federation, method.uploads(federation))
        up += [probe.name for probe in method.probes(federation) if probe.name not in method.remembers]
        downloads = method.downloads(federation)
        besides = {name: group for name, group in method.catches_up(federation, 0).items() if name not in downloads}
        down = _declared(federation, {**downloads, **besides})
        down += ["other clients' models"] if method.peers(federation, 0) else []
        for way, words in (("up", up), ("down", down)):
            ways[way].append(" + ".join(words).replace("_", " ") or "nothing")
    return Facts(_personal(federation), *("; later ".join(dict.fromkeys(words)) for words in ways.values()))


def _personal(federation: Federation) -> str:
    own, layout = federation["model"].own_columns, federation.layout
    words = [group for group in ("extractor", "classifier", "norm") if layout.columns(group) <= own]
    if "norm" not in words and layout.columns("stats") <= own:
        words.append("stats")
    if layout.columns("parameters") <= own:
        words = ["everything"]
    words += [name.replace("_", " ") for name, slot in federation.slots.items() if name != "model" and slot.own_columns]
    return ", ".join(words) or "nothing"


def _declared(federation: Federation, declared: Mapping[str, str]) -> list[str]:
    sent = [(name, group) for name, group in declared.items() if declared_bytes(federation, {name: group})]
    return [name if name != "model" else {"all": "model"}.get(group, group) for name, group in sent]
