"""`coterie federation rollback`: let a federation go on from an earlier round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def rollback(
    folder: Annotated[Path, Parameter(name="DIR", help="The federation's folder.")],
    round: Annotated[
        int | None,
        Parameter(name="ROUND", help="The round to go on from.", show_default="the rounds that are kept are listed"),
    ] = None,
    /,
) -> None:
    """Go back to an earlier round: the server's next start goes on from there, and sites follow."""
    from coterie.deployment.agreement import Agreement
    from coterie.deployment.flower.folder import SERVER, require_folder
    from coterie.deployment.flower.processes import Lock
    from coterie.deployment.logbook import Logbook
    from coterie.errors import require
    from coterie.report.terminal import print_result

    agreement, path = Agreement.read(require_folder(folder)), folder / SERVER
    require(path.is_dir(), f"folder = {folder}: its server has not been started yet; there is nothing to go back to")
    lock = Lock(path / "lock", "the server", patience=0)
    try:
        logbook = Logbook(path, agreement)
        if round is None:
            kept = ", ".join(map(str, logbook.checkpoints())) or "none"
            print_result(f"rounds that are kept: {kept}; 'coterie federation rollback {folder} ROUND' goes back to one")
            return
        later = logbook.go_back(round)
    finally:
        lock.release()
    taken = f"; what came after it, up to round {later[-1]}, is forgotten then" if later else ""
    print_result(
        f"The next start of the server goes on after round {round}{taken}.",
        "Sites follow by themselves: each goes on from its own last round until then.",
    )
