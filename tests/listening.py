"""Listeners for tests: one that calls a function, and one at which the power goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coterie.rounds.listeners import Listener, RoundReport


class EachRound(Listener):
    """Calls a function after each round."""

    def __init__(self, function: Callable[[RoundReport], object]) -> None:
        self._function = function

    def round(self, report: RoundReport) -> None:
        self._function(report)


class PowerCutError(Exception):
    """The run is killed."""


@contextmanager
def power_cut(directory: Path, round: int) -> Iterator[list[Listener]]:
    """Listeners at which a run is killed after a round: its directory is then left as it was at that moment."""
    image = directory.with_name(f"{directory.name}.image")

    def kill(report: RoundReport) -> None:
        if report.round == round:
            shutil.copytree(directory, image)
            raise PowerCutError

    with pytest.raises(PowerCutError):
        yield [EachRound(kill)]
    shutil.rmtree(directory)
    image.rename(directory)
