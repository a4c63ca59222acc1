"""What leaves a site, per method: read off a real server's tasks, and off the answers that it would accept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from coterie.client.recipe import keeps, measures
from coterie.core.columns import Columns
from coterie.core.layout import Layout
from coterie.deployment.agreement import Agreement
from coterie.deployment.server import Server
from coterie.deployment.site import columns_of
from coterie.deployment.wire import Expected, Parcel, pack
from coterie.engines.base import Work
from coterie.methods import METHODS
from coterie.methods.base import Method
from coterie.report.facts import spoken_columns

SITES = ("a", "b", "c", "d")
LATE = SITES[-1]  # may join when the others are in their last round
# Enough for every phase: methods that change in the course of a federation do so at half-time.
ROUNDS = 8
NAMES = {
    "personal": "personal model",
    "critical": "critical mask",
    "model without norm": "model without batch norm",
    "shares": "all sites' shares of the samples",
}
NOTHING = "nothing"
HEADER = (
    "| method | goes up each round | comes down each round | told once, besides the numbers of samples | never sent |",
    "|---|---|---|---|---|",
)


@dataclass
class Disclosure:
    """A method in words; `up` and `down` list what changes in the course of a federation, in order.

    A first round in which nothing comes down is left out of `down`: everybody begins with the same weights.
    """

    up: list[str] = field(default_factory=list)
    down: list[str] = field(default_factory=list)
    down_late: str = ""
    told: str = NOTHING
    stays: str = NOTHING

    def cells(self) -> list[str]:
        """The cells of a table: up, down, told, stays."""
        late = f"; on joining late: {self.down_late}" if self.down_late else ""
        return ["; then ".join(self.up), "; then ".join(self.down) + late, self.told, self.stays]


def disclosure(method: Method) -> Disclosure:
    """What travels in a small federation of that method, on a model with batch norm.

    >>> from coterie.methods import FedPer
    >>> disclosure(FedPer()).cells()
    ['extractor', 'extractor', 'nothing', 'classifier, batch-norm statistics']
    """
    server, found = _server(method), Disclosure()
    sent: dict[str, Columns] = {}
    trained: dict[str, None] = {}
    while not server.finished:
        tasks = server.open_round(list(SITES))
        task = tasks[SITES[0]]
        down = _spoken(_down(server, task))
        if server.federation.round > 1 or down != NOTHING:
            _add(found.down, down)
        _add(found.up, _spoken(_up(server, task, server.expected_answer())))
        for slot, group in task.note["uploads"].items():
            sent[slot] = sent.get(slot, Columns()) | server.federation.layout.columns(group)
        trained |= dict.fromkeys(Work(method.recipe(server.federation)).slots)
        answer_with_noise(server, tasks)
    found.down_late = _late(method, found.down[-1])
    found.told = "how many of each class" if server.federation.asks_class_counts else NOTHING
    found.stays = _spoken(_stays(server, sent, trained), ", ")
    return found


def table() -> list[str]:
    """The table of all methods, as lines of Markdown."""
    rows = [
        f"| [`{name}`](methods/{name}.md) | {' | '.join(disclosure(METHODS[name]()).cells())} |" for name in METHODS
    ]
    return [*HEADER, *sorted(rows)]


def _server(method: Method) -> Server:
    agreement = Agreement(
        name="small",
        sites=SITES,
        shape=(1, 8, 8),
        classes=3,
        method=method,
        model="lenet5",
        rounds=ROUNDS,
        validation=0.2,
    )
    server = Server(agreement)
    hello = {"fingerprint": agreement.fingerprint, "first_weights": agreement.build().fingerprint}
    counts = {"samples": 30, "validation": 6, "test": 9, "class_counts": [10, 10, 10], "snapshots": []}
    counts |= {"facts": {"columns": "", "classes": [0, 2], "magnitudes": [0.0]}}
    for name in SITES:
        server.admit(hello | counts | {"site": name})
    return server


def answer_with_noise(server: Server, tasks: Mapping[str, Parcel]) -> None:
    """Close a round in which every site that was asked answers with noise: it has no say in what travels."""
    stream = torch.Generator().manual_seed(server.federation.round)
    for name in tasks:
        tensors = {key: _noise(expected, stream) for key, expected in server.expected_answer().items()}
        server.receive(name, pack(Parcel(tensors, {"round": server.federation.round, "diverged": False})))
    server.close_round()


def _noise(expected: Expected, stream: torch.Generator) -> torch.Tensor:
    values = 0.1 * torch.rand(expected.shape, generator=stream)
    return values > 0.05 if expected.dtype == torch.bool else values.to(expected.dtype)


def _late(method: Method, usual: str) -> str:
    """What a site receives that joins in the last round, if that differs from what the others do."""
    server = _server(method)
    while server.federation.round < ROUNDS - 1:
        answer_with_noise(server, server.open_round([name for name in SITES if name != LATE]))
    received = _spoken(_down(server, server.open_round(list(SITES))[LATE]))
    return received if received != usual else ""


def _up(server: Server, task: Parcel, expected: Mapping[str, Expected]) -> list[str]:
    """What an answer holds: groups of slots, then what is measured."""
    layout, uploads = server.federation.layout, task.note["uploads"]
    sent = {slot: layout.columns(group) for slot, group in uploads.items()}
    return _groups(layout, sent) + [key.removeprefix("measured.") for key in expected if key.startswith("measured.")]


def _down(server: Server, task: Parcel) -> list[str]:
    """What a task holds: columns of slots, values, others' models."""
    due = {name: columns_of(spans) for name, spans in task.note["slots"].items()}
    words = _groups(server.federation.layout, due) + list(task.note["values"])
    return words + (["other sites' models"] if task.note["peers"] else [])


def _groups(layout: Layout, slots: Mapping[str, Columns]) -> list[str]:
    return [spoken_columns(layout, one) if slot == "model" else slot for slot, one in slots.items() if one]


def _spoken(words: Iterable[str], joint: str = " + ") -> str:
    return joint.join(NAMES.get(word, word) for word in words).replace("_", " ") or NOTHING


def _add(phases: list[str], words: str) -> None:
    if words not in phases[-1:]:
        phases.append(words)


def _stays(server: Server, sent: Mapping[str, Columns], trained: Iterable[str]) -> list[str]:
    """What a site has and never sends: columns of its model, other rows that it trains or keeps, what it remembers."""
    federation, method = server.federation, server.agreement.kind
    model = sent.get("model", Columns())
    words = _model_words(federation.layout, federation["model"].own_columns - model)
    # Rows that are kept follow from training; if all of that is sent, the server could work them out.
    recipe = method.recipe(federation)
    kept = [keep.slot for keep in keeps(recipe) if not federation[keep.slot].columns <= model]
    for slot in dict.fromkeys([*trained, *kept]):
        if slot != "model" and federation[slot].own_columns - sent.get(slot, Columns()):
            words.append(slot)
    remembered = [measure.name for measure in measures(recipe) if measure.keep]
    return [*words, *remembered, *(["the model as tuned for its test"] if method.tune(federation) else [])]


def _model_words(layout: Layout, columns: Columns) -> list[str]:
    """The groups of the model that lie within some columns."""
    if layout.columns("parameters") <= columns:
        return ["the whole model"]
    words = [group for group in ("extractor", "classifier") if Columns() != layout.inside(group) <= columns]
    if layout.columns("norm") <= columns and "extractor" not in words:
        words.append("batch norm")
    elif layout.columns("stats") <= columns:
        words.append("batch-norm statistics")
    return words


if __name__ == "__main__":
    print("\n".join(table()))
