"""What goes wrong in a run: its settings. Free of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coterie.files import resolved
from coterie.options import setting
from coterie.typed import TypedOptions


@dataclass(frozen=True, kw_only=True)
class Scenario(metaclass=TypedOptions):
    """Clients that come and go (`coterie.scenarios.presence`), and hostile ones (`coterie.scenarios.hostile`)."""

    presence: str = setting(
        "",
        "Who is there and answers: dropout:0.1, available:0.8, stragglers:0.2, late:0.2, leave:0.2, trace:FILE.csv; "
        "joined by +.",
        "training",
        shown="everybody",
    )
    attack: str = setting(
        "",
        "Hostile clients, NAME:SHARE of them (see docs/hostile-clients.md): label-flip:0.2, sign-flip, scaling, …",
        "defence",
        shown="nobody is",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "presence", placed(self.presence))

    def asked_for(self) -> Iterator[str]:
        """The parts that are asked for, by their places: what takes the place of the sampler first."""
        if self.presence:
            yield "coterie.scenarios.presence:Attendance"
        if self.attack:
            yield "coterie.scenarios.hostile:Hostile"


def traces_in(text: str) -> list[str]:
    """The files of the traces that a run's `presence` names.

    >>> traces_in("dropout:0.1+trace:/data/seen.csv")
    ['/data/seen.csv']
    """
    parts = (part.partition("trace:") for part in text.split("+"))
    return [file.removeprefix("file=") for before, named, file in parts if named and not before]


def placed(text: str) -> str:
    """A run's `presence` whose trace is found from anywhere.

    >>> placed("dropout:0.1"), placed("trace:/data/seen.csv")
    ('dropout:0.1', 'trace:/data/seen.csv')
    """
    parts = [part.partition("trace:") for part in text.split("+")]
    files = (name and f"{name}{resolved(file.removeprefix('file='))}" for _, name, file in parts)
    return "+".join(found or part[0] for found, part in zip(files, parts, strict=True))
