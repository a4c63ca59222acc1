"""What a client computes in a round, counted where it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Effort:
    """The gradients that a client computed, by what they train (`Phase.moves`), and its forward passes.

    `forward` counts samples that went through an extractor, with a gradient or without: one pass over a client's data
    is as many as it has. What was only tested is left out.

    >>> effort = Effort()
    >>> effort.begin("classifier")
    >>> effort.step("model"); effort.step("model"); effort.forward += 64
    >>> effort.now()
    Effort(steps={'classifier': 0, 'model': 2}, forward=64)
    """

    steps: dict[str, int] = field(default_factory=dict)
    forward: int = 0

    def begin(self, moves: str) -> None:
        """There is a phase of this kind, though it may take no step."""
        self.steps.setdefault(moves, 0)

    def step(self, moves: str) -> None:
        """A gradient was computed."""
        self.steps[moves] = self.steps.get(moves, 0) + 1

    @property
    def total(self) -> int:
        """All gradients."""
        return sum(self.steps.values())

    def now(self) -> Effort:
        """What it is at this moment, kinds of gradients in alphabetical order: the same with every engine."""
        return Effort(dict(sorted(self.steps.items())), self.forward)


EffortColumns = dict[str, list[int]]
"""Clients' efforts number by number, in alphabetical order: samples `forward`, and gradients by what they train."""
FORWARD = "forward"
STEPS = "steps."
"""Begins the names of gradients among the numbers of efforts."""


def effort_columns(efforts: Sequence[Effort]) -> EffortColumns:
    """Clients' efforts as columns; who has not done what another did, did it 0 times.

    >>> effort_columns([Effort({"model": 2}, 64), Effort({}, 8)])
    {'forward': [64, 8], 'steps.model': [2, 0]}
    """
    if not efforts:
        return {}
    kinds = sorted({moves for effort in efforts for moves in effort.steps})
    by_kind = {f"{STEPS}{moves}": [effort.steps.get(moves, 0) for effort in efforts] for moves in kinds}
    return {FORWARD: [effort.forward for effort in efforts], **by_kind}


def joined_columns(parts: Sequence[EffortColumns]) -> EffortColumns:
    """The efforts of several parts of a cohort, one after the other.

    >>> joined_columns([{"forward": [64], "steps.model": [2]}, {"forward": [8]}])
    {'forward': [64, 8], 'steps.model': [2, 0]}
    """
    names = sorted({name for part in parts for name in part})
    return {name: [count for part in parts for count in part.get(name, [0] * len(part[FORWARD]))] for name in names}
