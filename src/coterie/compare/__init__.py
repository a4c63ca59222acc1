"""Several methods on the same partitions, over several seeds, one after the other or side by side.

The folder has the name of what it is for: `coterie.compare(...)` is `coterie.compare.table.compare`, whether or not the
folder has been imported (which puts it in the place of the function).

>>> import coterie as ct
>>> from coterie.partition import Iid
>>> few = {"partition": Iid(clients=3), "rounds": 1, "epochs": 1}
>>> ct.compare({"local": ct.Experiment("local", **few)}, seeds=[0], jobs=1).methods
['local']
"""

from __future__ import annotations

import sys
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class _Folder(ModuleType):
    @property
    def __signature__(self) -> Signature:
        """The function's, which notebooks show."""
        from coterie.compare.table import compare

        return signature(compare)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from coterie.compare.table import compare

        return compare(*args, **kwargs)


sys.modules[__name__].__class__ = _Folder
