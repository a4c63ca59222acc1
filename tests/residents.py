"""A site's resident within a test's own process."""

from __future__ import annotations

import threading
from pathlib import Path

from coterie.deployment.channel import listening
from coterie.deployment.resident import Resident, SiteSettings, serve


def resident_in_a_thread(folder: Path, settings: SiteSettings) -> Path:
    """The socket of a resident that answers until the tests are over."""
    path = folder / ".resident.socket"
    listener = listening(path)
    threading.Thread(target=serve, args=(listener, Resident(settings)), daemon=True).start()
    return path
