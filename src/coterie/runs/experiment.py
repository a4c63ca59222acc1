"""An experiment: the typed configuration behind the Python API and the command line, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from coterie.display import Displayed
from coterie.models import ModelSpec
from coterie.runs.run import Run
from coterie.runs.running import GivenListener, run
from coterie.setup.config import settings_from
from coterie.setup.prepared import Prepared, prepare
from coterie.setup.settings import Settings
from coterie.typed import typed

WHAT = ("data", "partition", "model")


def _spoken(thing: object) -> str:
    """A method, data, a partition or a model in a few words.

    >>> from coterie.partition import Iid
    >>> _spoken("digits"), _spoken(Iid(clients=4))
    ("'digits'", 'Iid(clients=4)')
    """
    if isinstance(thing, ModelSpec):
        return thing.name
    return type(thing).__name__ if isinstance(thing, nn.Module) else repr(thing)


@dataclass(frozen=True)
class Experiment(Settings, Displayed):
    """One run: a method on a partitioned data set with a model. `Settings` says what each option means.

    >>> from coterie.partition import Iid
    >>> result = Experiment(data="digits", partition=Iid(clients=4), rounds=2, epochs=1).run()
    >>> 0 < result.accuracy().received.mean["best"] <= 1
    True
    """

    def __repr__(self) -> str:
        """In one line: what is run, and every setting that is not the usual one."""
        words = [_spoken(self.method), *(f"{name}={_spoken(getattr(self, name))}" for name in WHAT)]
        words += [f"{name}={value!r}" for name, value in self.changed().items()]
        return " ".join(f"Experiment({', '.join(words)})".split())

    def changed(self) -> dict[str, Any]:
        """The settings that are not the usual ones, but for the first four.

        >>> Experiment(rounds=5, lr=0.01).changed()
        {'rounds': 5}
        """
        values = {item.name: (getattr(self, item.name), item.default) for item in fields(self)}
        return {
            name: value
            for name, (value, default) in values.items()
            if name not in ("method", *WHAT) and value != default
        }

    @typed
    def run(
        self, out: str | Path | None = None, listeners: Sequence[GivenListener] = (), progress: bool = False
    ) -> Run:
        """Run to the end, or until a listener stops it; with `out`, write a run directory there.

        `listeners` are objects, classes or names, such as `"tensorboard"`.
        `progress` shows how far the run is: bars in a terminal or notebook, elsewhere a line about once a second.
        """
        return run(self, None if out is None else Path(out), listeners, progress)

    def prepare(self) -> Prepared:
        """Load the data, draw the partition, build and check the model: everything before round 1."""
        return prepare(self)


def experiment_from(config: Mapping[str, Any]) -> Experiment:
    """The experiment that a configuration describes.

    >>> experiment_from({"method": "fedprox", "alpha": 0.5, "set": {"mu": 1}}).method
    FedProx(mu=1.0)
    """
    return settings_from(config, Experiment)
