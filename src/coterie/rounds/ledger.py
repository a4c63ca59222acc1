"""The ledger: bytes that a real network would carry."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.client.recipe import measures
from coterie.core.downloads import owed_bytes, tensor_bytes
from coterie.core.federation import Federation
from coterie.engines.base import PeersOf, Trained, Work
from coterie.methods.base import Method
from coterie.rounds.listeners import Listener, RoundReport
from coterie.rounds.stages import Coding, packed


def bytes_down(federation: Federation, clients: Tensor, peers: PeersOf, uploads: Mapping[str, str]) -> int:
    """What the clients download in all: what they are owed, and their peers' models as these upload them."""
    models = sum(map(len, peers.values()))
    model = {"model": uploads["model"]} if "model" in uploads else {}
    return int(owed_bytes(federation, clients).sum()) + models * bytes_of_groups(federation, model)


def bytes_up(
    federation: Federation, uploads: Mapping[str, str], measured: Mapping[str, Tensor], coding: Coding | None = None
) -> int:
    """What one client uploads: groups of slots, and what it measured, `[m, ...]` each (m may be 0: all diverged)."""
    each = [values.new_zeros(values.shape[1:]) for values in measured.values()]
    if coding is None:
        return bytes_of_groups(federation, uploads) + sum(map(tensor_bytes, each))
    rows = [torch.zeros(federation.layout.columns(group).size) for group in uploads.values()]
    return sum(tensor_bytes(packed(coding, values)) for values in (*rows, *each))


def bytes_of_groups(federation: Federation, groups: Mapping[str, str]) -> int:
    """The bytes per client of groups of slots."""
    columns = sum(federation.layout.columns(group).size for group in groups.values())
    return columns * federation.initial.element_size()


class ByteCounter(Listener):
    """Adds to each report what the round would have moved over a network, up and down."""

    def __init__(self, method: Method, federation: Federation, coding: Coding | None = None) -> None:
        self._method, self._federation, self._coding = method, federation, coding

    def delivered(self, report: RoundReport, work: Work) -> None:
        """Count what all who were asked download, before anything of it changes."""
        self._uploads = self._method.uploads(self._federation)
        asked = torch.tensor([*report.cohort, *report.missing], dtype=torch.int64)
        report.bytes["down"] = bytes_down(self._federation, asked, work.peers, self._uploads)
        self._kept = {measure.name for measure in measures(work.recipe) if measure.keep}

    def trained(self, report: RoundReport, trained: Trained) -> None:
        """Count what the cohort uploads."""
        sent = {name: values for name, values in trained.measured.items() if name not in self._kept}
        up = bytes_up(self._federation, self._uploads, sent, self._coding)
        report.bytes = {"up": up * len(report.cohort), **report.bytes}
