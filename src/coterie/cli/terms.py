"""The options of `federation init`: all that a federation agrees on. What was not given stays `None`.

Nothing heavy is imported here: `coterie --help` must answer at once.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group

from coterie.cli.settings import GROUPS, TRAINING, Given, option, options, parameters
from coterie.deployment.agreement_terms import LINEAGE, FederationTerms

SITES = Group("Sites and their data", sort_key=1)
WAITING = Group("How long the server waits", sort_key=7)

_GROUPS = GROUPS | {"sites": SITES, "waiting": WAITING, "running": TRAINING}
_JOIN = Annotated[float | None, option("The share of sites that take part in a round.", FederationTerms.join, TRAINING)]


@options({**parameters(FederationTerms, _GROUPS, leave_out=("method", *LINEAGE)), "join": _JOIN})
class Terms(Given):
    """Every term of an agreement but its method, each `None` unless it was given."""
