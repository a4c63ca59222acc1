"""The ledger: bytes that a real network would carry for what a method declares."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.engines.base import Trained
from coterie.methods.base import Method
from coterie.rounds.listeners import Listener
from coterie.rounds.report import RoundReport


def tensor_bytes(value: Tensor) -> int:
    """The bytes of a tensor on the wire; booleans travel as bits.

    >>> tensor_bytes(torch.zeros(10)), tensor_bytes(torch.zeros(10, dtype=torch.bool))
    (40, 2)
    """
    if value.dtype == torch.bool:
        return -(-value.numel() // 8)
    return value.numel() * value.element_size()


def declared_bytes(federation: Federation, declared: Mapping[str, str]) -> int:
    """The bytes per client of declared groups of slots, and of declared values."""
    total = 0
    for name, group in declared.items():
        if name in federation.slots:
            total += federation.layout.columns(group).size * federation.initial.element_size()
        else:
            total += tensor_bytes(federation.values[name][0])
    return total


class ByteCounter(Listener):
    """Adds to each report what the round would have moved over a network, up and down."""

    def __init__(self, method: Method, federation: Federation) -> None:
        self._method, self._federation = method, federation

    def drawn(self, report: RoundReport) -> None:
        """Count what the cohort downloads, before anything of it changes."""
        method, federation = self._method, self._federation
        down = sum(declared_bytes(federation, method.received_by(federation, client)) for client in report.cohort)
        peers = sum(len(method.peers(federation, client)) for client in report.cohort)
        down += peers * declared_bytes(federation, {"model": method.uploads(federation).get("model", "")})
        report.bytes["down"] = down

    def trained(self, report: RoundReport, trained: Trained) -> None:
        """Count what the cohort uploads."""
        method, federation = self._method, self._federation
        up = declared_bytes(federation, method.uploads(federation))
        up += sum(tensor_bytes(value[0]) for name, value in trained.probes.items() if name not in method.remembers)
        report.bytes = {"up": up * len(report.cohort), **report.bytes}
