"""What a run's defences need before its first round, and what they cannot defend."""

from __future__ import annotations

from coterie.core.applying import no_share_defined
from coterie.core.federation import Federation
from coterie.methods.base import Method
from coterie.rounds.quarantine import begin_watch


def set_up_defences(method: Method, federation: Federation) -> None:
    """Make room for what they remember, or refuse the method; nothing without defences.

    What a method does besides shows when it does it: see `coterie.core.applying.apply`, `coterie.rounds.delivery`.
    """
    begin_watch(federation)
    if not federation.defence.reduces:
        return
    name = type(method).__name__
    for value, kind in federation.kinds.items():
        if kind.held_by == "both":
            raise no_share_defined(federation, name, f"the value '{value}'")
    for slot, rows in federation.slots.items():
        if rows.held_by == "server" and rows.follows is None:
            raise no_share_defined(federation, name, f"what follows from its '{slot}'")
    uploads = method.uploads(federation)
    shared = federation["model"].shared_columns
    if not shared <= federation.layout.columns(uploads.get("model", "")):
        raise no_share_defined(federation, name, "shared columns that nobody uploads")
