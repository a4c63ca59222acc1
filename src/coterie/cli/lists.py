"""The commands that list what there is by name. They import what they need when they run."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter


def _list(kind: str) -> None:
    from coterie.cli.listing import listing, problems
    from coterie.report.terminal import print_result

    print_result(listing(kind))
    for problem in problems(kind):
        print(f"coterie: warning: {problem}", file=sys.stderr)


def methods(
    name: Annotated[str | None, Parameter(help="A method to tell all about.", show_default=False)] = None, /
) -> None:
    """List the methods: what is personal, what travels, what it costs, the paper; or all about one method."""
    if name is None:
        _list("methods")
        return
    from coterie.cli.listing import method_details

    print(method_details(name))


def protocols(
    name: Annotated[str | None, Parameter(help="A protocol to tell all about.", show_default=False)] = None, /
) -> None:
    """List the papers' protocols, for --protocol; or one's settings, with what its paper does not state."""
    if name is None:
        _list("protocols")
        return
    from coterie.cli.listing import protocol_details
    from coterie.report.terminal import print_result

    print_result(*protocol_details(name))


def datasets() -> None:
    """List the data sets known by name."""
    _list("datasets")


def models() -> None:
    """List the models."""
    _list("models")


def partitions() -> None:
    """List the partition rules, with their options and defaults."""
    _list("partitions")
