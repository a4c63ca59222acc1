"""Local training: no client learns from any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.training import StatsPolicy
from coterie.methods.base import Method


@dataclass(frozen=True)
class Local(Method):
    """Every client trains alone, from the common initial model; nothing travels.

    With partial participation only the clients of a round's cohort train in it.

    >>> Local().shared
    ''
    """

    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"
