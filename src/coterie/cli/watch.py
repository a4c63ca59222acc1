"""`coterie watch`: a page on this machine that follows runs."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from coterie.report.serving import WatchServer
from coterie.report.terminal import print_result


def watch_command(folder: Path, port: int) -> None:
    """Serve the page until Ctrl-C."""
    with WatchServer(folder, port) as server, suppress(KeyboardInterrupt):
        print_result(f"Watching {folder} at {server.address} (Ctrl-C ends)")
        sys.stdout.flush()
        server.serve_forever()
