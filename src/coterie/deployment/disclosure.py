"""What leaves a site: of each method in words, and of one site before it takes part.

What a method sends is read off a real server's tasks, and off the answers that it would accept. The dry run shows a
site, and it alone, everything that it would send: its server is in this process, and nothing listens or connects. The
messages are real ones: what the site would answer to the hello, to a first round from the first weights, and to the
farewell. What later rounds hold is what the method declares.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from coterie.client.recipe import keeps, measures, trained_slots
from coterie.core.columns import Columns
from coterie.core.layout import Layout
from coterie.core.pixels import whole
from coterie.data import Dataset
from coterie.data.scaling import AgreedScale, Moments
from coterie.deployment.agreement import Agreement
from coterie.deployment.messages import FAULTS, Note, read_text
from coterie.deployment.server import Server
from coterie.deployment.site import Site, columns_of
from coterie.deployment.store import Store
from coterie.deployment.wire import Expected, Parcel, pack, unpack
from coterie.files import private_folder, write_whole
from coterie.methods import METHODS
from coterie.methods.base import Method
from coterie.report.facts import classifier_parts, spoken_columns
from coterie.runs.tensors import save_tensors

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
    server, disclosed = _server(method), Disclosure()
    sent: dict[str, Columns] = {}
    trained: dict[str, None] = {}
    while not server.finished:
        tasks = server.open_round(list(SITES))
        task = tasks[SITES[0]]
        down = _spoken(_down(server, task))
        if server.federation.round > 1 or down != NOTHING:
            _add(disclosed.down, down)
        _add(disclosed.up, _spoken(_up(server, task, server.expected_answer())))
        for slot, group in task.note["uploads"].items():
            sent[slot] = sent.get(slot, Columns()) | server.federation.layout.columns(group)
        trained |= dict.fromkeys(trained_slots(method.recipe(server.federation)))
        answer_with_noise(server, tasks)
    disclosed.down_late = _late(method, disclosed.down[-1])
    disclosed.told = "how many of each class" if server.federation.asks_class_counts else NOTHING
    disclosed.stays = _spoken(_stays(server, sent, trained), ", ")
    return disclosed


def table() -> list[str]:
    """The table of all methods, as lines of Markdown."""
    rows = [
        f"| [`{name}`](methods/{name}.md) | {' | '.join(disclosure(METHODS[name]()).cells())} |"
        for name in sorted(METHODS)
    ]
    return [*HEADER, *rows]


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
    words += classifier_parts(layout, columns)
    if layout.columns("norm") <= columns and "extractor" not in words:
        words.append("batch norm")
    elif layout.columns("stats") <= columns:
        words.append("batch-norm statistics")
    return words


HELLO, ROUND, FAREWELL = "hello", "round-1", "farewell"


def dry_run(agreement: Agreement, name: str, data: Dataset, folder: Path) -> list[str]:
    """Write the messages of a site to `folder` as they would be sent; what they hold, in lines for whoever decides."""
    with tempfile.TemporaryDirectory() as state:
        site = Site(agreement, name, data, Store(Path(state), agreement.name, name, agreement.fingerprint))
        sent = dict(_messages(agreement, site))
    private_folder(folder)
    lines = [f"What {name} would send; nothing was sent. The messages themselves are in {folder}."]
    for what, parcel in sent.items():
        write_whole(folder / f"{what}.json", (json.dumps(parcel.note, indent=2) + "\n").encode())
        if parcel.tensors:
            save_tensors(folder / f"{what}.safetensors", parcel.tensors, {})
        packed = pack(parcel)
        about = f"{len(packed.text.encode())} bytes of text, {packed.bytes} of numbers, SHA-256 {packed.digest[:16]}…"
        lines += ["", f"{what}: {about}", f"  {json.dumps(parcel.note)}"]
        lines += [f"  {key}: {_described(tensor)}" for key, tensor in parcel.tensors.items()]
    if data.feature_names:
        lines += ["", f"The columns behind the hash, which are not sent: {', '.join(data.feature_names)}"]
    declared = disclosure(agreement.kind)
    up = "; then ".join(declared.up)
    lines += ["", f"Each round ({agreement.plain()['method']}): {up}, and the same kind of note."]
    lines += [f"Never: {declared.stays}; samples, labels, names of files."]
    lines += ["Why, and what that does not protect from: python -m coterie.deployment.disclosure --page"]
    lines += ["", *_bounds(agreement, site, sent[ROUND])]
    lines += [f"If something fails here, a number and nothing else: {', '.join(map(str, sorted(FAULTS)))}."]
    return lines


def _bounds(agreement: Agreement, site: Site, answer: Parcel) -> Iterator[str]:
    """What keeps any one site from taking over, and what that makes of this one."""
    yield "So that no site takes over:"
    samples = int(site.federation.sizes[site.client])
    if agreement.most_weight:
        whole = math.ceil(samples / agreement.most_weight)
        yield (
            f"  a site counts for at most {agreement.most_weight:g} times the median site: the {samples} samples here "
            f"count in full if that has {whole} or more"
        )
    if agreement.share_limit < 1:
        yield f"  no other site counts for more than {agreement.share_limit:g} of a mix"
    uploads = agreement.kind.uploads(site.federation)
    if agreement.norm_limit and "model" in uploads:
        before = site.federation.layout.columns(uploads["model"]).take(site.federation.initial)
        times = float(answer.tensors["slot.model"].norm() / before.norm())
        yield (
            f"  an answer {agreement.norm_limit:g} times as large as usual is set aside: this one is {times:.3g} times "
            "as large as the first weights"
        )
    if agreement.quarantine:
        yield (
            f"  an answer that jumps by {agreement.quarantine:g} robust deviations is set aside (quarantine), and what "
            f"follows until {agreement.quarantine_rounds} have not: for that the server compares how far answers move"
        )


def _messages(agreement: Agreement, site: Site) -> Iterator[tuple[str, Parcel]]:
    """The hello, the first round's answer and the farewell, each as it would arrive."""
    server = Server(agreement)
    hello: Note = read_text(pack(Parcel({}, site.hello())).text)["note"]
    yield HELLO, Parcel({}, hello)
    name = server.admit(hello)
    if agreement.scale:  # what the others tell of their columns is not known here
        server.put_scale(AgreedScale.standard(Moments.of(whole(site.problem.inputs))))
    answer = site.work(_received(site, server.open_round([name])[name]))
    yield ROUND, answer
    server.receive(name, pack(answer))
    server.close_round()
    yield FAREWELL, site.finish(_received(site, server.farewells([name])[name]))


def _received(site: Site, task: Parcel) -> Parcel:
    packed = pack(task)
    return unpack(packed, site.expected(read_text(packed.text)["note"]))


def _described(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    numbers = f"{tensor.numel():,} numbers ({kind}) of shape {tuple(tensor.shape)}"
    if not tensor.numel() or not tensor.is_floating_point():
        return numbers
    known = tensor[tensor.isfinite()]
    return f"{numbers}, {known.min():.4g} to {known.max():.4g}" if known.numel() else numbers


def page() -> str:
    """The page on what leaves a site, which comes with the package.

    >>> page().splitlines()[0]
    '# What leaves a site'
    """
    return files("coterie.deployment").joinpath("what-leaves-a-site.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    print(page() if sys.argv[1:] == ["--page"] else "\n".join(table()))
