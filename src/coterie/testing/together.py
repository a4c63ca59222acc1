"""A federation in one process: messages are packed and unpacked as on a network, and go nowhere.

The server and every site hold just what has travelled to them. With `poison`, whatever else stands in their copies of
the state is replaced by NaN before they use it: what depends on it shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.core.federation import Federation
from coterie.core.pixels import whole
from coterie.core.training import Training
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.messages import Note, Packed, read_text
from coterie.deployment.server import Report, Server
from coterie.deployment.site import Site
from coterie.deployment.store import Store
from coterie.deployment.wire import Parcel, pack, unpack
from coterie.deployment.workplace import own_split
from coterie.methods.base import Method
from coterie.options import option_fields
from coterie.partition import Partition
from coterie.runs.experiment import Experiment
from coterie.setup.features import FEATURES, settings_of

SITES = ("site-a", "site-b", "site-c")
SIZES = (23, 31, 18)
CLASSES, WIDTH = 3, 6


def site_data(number: int, size: int, shape: tuple[int, ...] = (WIDTH,)) -> Dataset:
    """A site's own samples: classes lie apart, each site sees them from elsewhere."""
    stream = torch.Generator().manual_seed(number)
    labels = torch.arange(size) % CLASSES
    centres = torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(99))
    inputs = centres[labels] + 0.5 * torch.randn(size, *shape, generator=stream) + 0.3 * number
    return Dataset(f"site {number}", inputs, labels, CLASSES)


class TrialAgreement(Agreement):
    """An agreement of sites in this process, which can take a method from a file: it goes nowhere."""

    @staticmethod
    def _require_installed(option: str, text: str) -> None:
        pass


def agreed(method: Method | str, **options: Any) -> Agreement:
    """An agreement of three sites on a few short rounds."""
    training = {"rounds": 3, "epochs": 2, "batch": 8, "lr": 0.05}
    settings = {"shape": (WIDTH,), "model": "mlp", "least_sites": 1, **training, **options}
    return TrialAgreement(name="trial", sites=SITES, classes=CLASSES, method=method, **settings)


class Together:
    """A server and its sites, with data of their own or those given."""

    def __init__(
        self, agreement: Agreement, folder: Path, data: Mapping[str, Dataset] | None = None, poison: bool = False
    ) -> None:
        self.agreement, self.folder, self.data, self.poison = agreement, folder, data, poison
        self.server = Server(agreement)
        self.sites = {name: self.site(name) for name in agreement.sites}
        self.reports: list[Report] = []

    def site(self, name: str) -> Site:
        """A site as it starts: whatever it knows comes from its disk."""
        number = self.agreement.sites.index(name)
        store = Store(self.folder, self.agreement.name, name, self.agreement.fingerprint, self.agreement.former)
        data = self.data[name] if self.data else site_data(number, SIZES[number], self.agreement.shape)
        return Site(self.agreement, name, data, store)

    def admit(self, *names: str) -> None:
        """Let sites say who they are and what they have."""
        for name in names or self.agreement.sites:
            note = read_text(pack(Parcel({}, self.sites[name].hello())).text)["note"]
            self.server.admit(note)

    def answer(self, name: str, task: Parcel) -> Packed:
        """What a site makes of a task, both as messages."""
        packed = pack(task)
        site = self.sites[name]
        note: Note = read_text(packed.text)["note"]
        return pack(site.work(unpack(packed, site.expected(note))))

    def round(self, *present: str, silent: tuple[str, ...] = ()) -> Report:
        """A round with some of the sites, of which some may not answer."""
        if self.poison:
            poison_server(self.server.federation)
        for name, task in self.server.open_round(list(present or self.agreement.sites)).items():
            if name not in silent:
                self.server.receive(name, self.answer(name, task))
        self.reports.append(self.server.close_round())
        return self.reports[-1]

    def finish(self) -> dict[str, Note]:
        """Hand everybody the finished model; how good it is."""
        notes = {}
        for name, task in self.server.farewells(list(self.agreement.sites)).items():
            site, packed = self.sites[name], pack(task)
            note = read_text(packed.text)["note"]
            notes[name] = site.finish(unpack(packed, site.expected(note))).note
        return notes

    def run(self) -> dict[str, Note]:
        """From the first hello to the farewell."""
        self.admit()
        while not self.server.finished:
            self.round()
        return self.finish()


def poison_server(federation: Federation) -> None:
    """Replace what the server cannot know by NaN."""
    for slot in federation.slots.values():
        for stretch in slot.tracks.stretches:
            hidden = stretch.columns & slot.own_columns
            strangers = torch.ones_like(stretch.known) if slot.held_by == "client" else ~stretch.known
            for start, stop in hidden.within(slot.own_columns).spans:
                slot.own[strangers, start:stop] = torch.nan
    for name, kind in federation.kinds.items():
        if kind.held_by == "client" and federation.values[name].is_floating_point():
            federation.values[name] = torch.full_like(federation.values[name], torch.nan)


def simulated(agreement: Agreement, datas: Sequence[Dataset] | None = None) -> Experiment:
    """The same federation as an experiment of the serial engine: the same samples, splits and weights."""
    datas = datas or [site_data(number, size, agreement.shape) for number, size in enumerate(SIZES)]
    starts = np.cumsum([0, *map(len, datas)])
    parts = [
        [index.numpy() + start for index in own_split(agreement, data, client)]
        for client, (data, start) in enumerate(zip(datas, starts, strict=False))
    ]
    inputs, labels = torch.cat([whole(data.inputs) for data in datas]), torch.cat([data.labels for data in datas])
    partition = Partition(
        train=tuple(part[0] for part in parts),
        validation=tuple(part[1] for part in parts),
        test=tuple(part[2] for part in parts),
        names=agreement.sites,
    )
    training = ("seed", *option_fields(Training))
    features = (name for feature in settings_of(FEATURES) for name in option_fields(feature))
    names = ("method", "model", "classifier", "rounds", "join", "sampler", "stages", "scale", *training, *features)
    shared = {name: getattr(agreement, name) for name in names}
    data = Dataset("all", inputs, labels, agreement.classes)
    return Experiment(data=data, partition=partition, threads=1, **shared)


def run_on_messages(agreement: Agreement, poison: bool) -> tuple[Together, dict[str, Note]]:
    """A whole federation on packed messages, in a folder that vanishes."""
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        together = Together(agreement, Path(folder), poison=poison)
        return together, together.run()
