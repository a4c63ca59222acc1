"""How things show themselves in notebooks. Drawn in a layer above, which is loaded when a notebook asks for it."""

from __future__ import annotations

from coterie.registry import later


class Displayed:
    """Shows itself as a small card of HTML (`coterie.report.cards`)."""

    def _repr_html_(self) -> str:
        return str(later("coterie.report.cards:card")(self))
