"""Listeners that tell other programs how a run goes, and what there is to tell them.

>>> from coterie.rounds.listeners import RoundReport
>>> scalars(RoundReport(3, cohort=[0, 1], bytes={"up": 10, "down": 5}))
{'bytes/up': 10.0, 'bytes/down': 5.0, 'clients/diverged': 0.0}
"""

from __future__ import annotations

from coterie.loggers.contents import matrices, over_clients, scalars

__all__ = ["matrices", "over_clients", "scalars"]
