"""The ledger: bytes that a real network would carry for what a method declares."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.core.federation import Federation


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
