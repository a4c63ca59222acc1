"""Partition rules: how the samples of one data set are shared among clients.

A rule is a frozen dataclass of options; calling it gives a `Partition`:

>>> import torch
>>> from coterie.data.dataset import Dataset
>>> data = Dataset("toy", torch.zeros(400, 1), torch.arange(400) % 4, classes=4)
>>> part = PARTITIONS["dirichlet"](clients=4, alpha=0.5)(data, seed=1, split=Split(test=0.5))
>>> part.clients, part.rule, part.parameters["alpha"]
(4, 'dirichlet', 0.5)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from coterie.errors import require
from coterie.partition.from_file import FromFile as FromFile
from coterie.partition.partition import Partition as Partition
from coterie.partition.rule import Rule as Rule
from coterie.partition.rule import Split as Split
from coterie.registry import Registry, deferred, on_first_use, subclasses_of

if TYPE_CHECKING:  # the rules: a class's name, in small letters, is the rule's
    from coterie.partition.chosen_classes import Dominant as Dominant
    from coterie.partition.chosen_classes import Pathological as Pathological
    from coterie.partition.dirichlet import Dirichlet as Dirichlet
    from coterie.partition.dirichlet import ExtendedDirichlet as ExtendedDirichlet
    from coterie.partition.dirichlet import Iid as Iid
    from coterie.partition.dirichlet import Quantile as Quantile
    from coterie.partition.dirichlet import Quantity as Quantity
    from coterie.partition.origin import DirichletPerClient as DirichletPerClient
    from coterie.partition.origin import TwoClass as TwoClass
    from coterie.partition.owners import ByClient as ByClient
    from coterie.partition.owners import ByDomain as ByDomain

__getattr__ = on_first_use(__name__, __file__)


def _rule(name: str, thing: object) -> type[Rule]:
    rule: type[Rule] = subclasses_of(Rule)(name, thing)
    require(isinstance(getattr(rule, "name", None), str), f"'{name}' must have a name (name: ClassVar[str])")
    return rule


PARTITIONS: Registry[type[Rule]] = Registry(
    "partition",
    "coterie.partitions",
    {re.sub(r"\B([A-Z])", r"_\1", name).lower(): text for name, text in deferred(__file__).items()},
    _rule,
)
"""Every rule by name: a class that extends `Rule`. `FromFile` is none of them: a file stands for it."""
