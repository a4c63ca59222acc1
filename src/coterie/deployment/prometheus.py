"""Numbers as Prometheus reads them: its text format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KIND = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "coterie_"


@dataclass
class Gauge:
    """A number that has a name, a meaning and, for each set of labels, a value; a counter if it only ever grows."""

    name: str
    help: str
    counter: bool = False
    values: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def at(self, value: float | None, **labels: str) -> Gauge:
        """Add a value; one that is not known is left out."""
        if value is not None and math.isfinite(value):
            self.values.append((labels, value))
        return self


def prometheus_text(gauges: Iterable[Gauge]) -> str:
    r"""All values, each number with its meaning and kind.

    >>> round = Gauge("round", "Rounds that are over.").at(3)
    >>> print(prometheus_text([round, Gauge("accuracy", "At a site.").at(0.5, site='the "old" one')]), end="")
    # HELP coterie_round Rounds that are over.
    # TYPE coterie_round gauge
    coterie_round 3
    # HELP coterie_accuracy At a site.
    # TYPE coterie_accuracy gauge
    coterie_accuracy{site="the \"old\" one"} 0.5
    """
    lines = []
    for gauge in gauges:
        if gauge.values:
            name = PREFIX + gauge.name
            lines += [f"# HELP {name} {gauge.help}", f"# TYPE {name} {'counter' if gauge.counter else 'gauge'}"]
            lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in gauge.values]
    return "".join(f"{line}\n" for line in lines)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _labels(labels: Mapping[str, str]) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{told}}}" if told else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
