"""For authors of methods and engines: the checks that Coterie's own pass.

>>> from coterie.methods import FedAvg
>>> from coterie.testing import check_method
>>> check_method(FedAvg(), only=["value", "travel"])
"""

from __future__ import annotations

from coterie.testing.engine import check_engine
from coterie.testing.method import METHOD_CHECKS, CheckFailedError, check_method

__all__ = ["METHOD_CHECKS", "CheckFailedError", "check_engine", "check_method"]
