"""Partition rules: how the samples of one data set are shared among clients.

A rule is a frozen dataclass of options; calling it gives a `Partition`:

>>> import torch
>>> from coterie.data.dataset import Dataset
>>> data = Dataset("toy", torch.zeros(400, 1), torch.arange(400) % 4, classes=4)
>>> part = PARTITIONS["dirichlet"](clients=4, alpha=0.5)(data, seed=1, split=Split(test=0.5))
>>> part.clients, part.rule, part.parameters["alpha"]
(4, 'dirichlet', 0.5)
"""

from coterie.errors import require
from coterie.partition.dirichlet import Dirichlet
from coterie.partition.dominant import Dominant
from coterie.partition.extended import ExtendedDirichlet
from coterie.partition.from_file import FromFile
from coterie.partition.iid import Iid
from coterie.partition.origin import DirichletPerClient, TwoClass
from coterie.partition.owners import ByClient, ByDomain
from coterie.partition.partition import Partition
from coterie.partition.pathological import Pathological
from coterie.partition.quantile import Quantile
from coterie.partition.quantity import Quantity
from coterie.partition.rule import Rule
from coterie.partition.split import Split
from coterie.registry import Registry, subclasses_of

_OWN: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Iid,
        Quantity,
        Pathological,
        Dirichlet,
        ExtendedDirichlet,
        DirichletPerClient,
        TwoClass,
        Dominant,
        Quantile,
        ByDomain,
        ByClient,
    )
}


def _rule(name: str, found: object) -> type[Rule]:
    rule: type[Rule] = subclasses_of(Rule)(name, found)
    require(isinstance(getattr(rule, "name", None), str), f"'{name}' must have a name (name: ClassVar[str])")
    return rule


PARTITIONS: Registry[type[Rule]] = Registry("partition", "coterie.partitions", _OWN, _rule)
"""Every rule by name: a class that extends `Rule`. `FromFile` has none: a file stands for it."""

__all__ = [
    "PARTITIONS",
    "ByClient",
    "ByDomain",
    "Dirichlet",
    "DirichletPerClient",
    "Dominant",
    "ExtendedDirichlet",
    "FromFile",
    "Iid",
    "Partition",
    "Pathological",
    "Quantile",
    "Quantity",
    "Rule",
    "Split",
    "TwoClass",
]
