"""The app of a federation as Flower packs it: the bytes that a site agrees to, and their hash."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from coterie.deployment.flower.processes import environment, flower_command
from coterie.errors import CoterieError
from coterie.files import private_folder, write_whole

APP = "app"
AGREED = "agreed"
PACKED = ".fab"


def packed_app(folder: Path) -> bytes:
    """The app in a folder, packed by Flower: its files in order, uncompressed and without dates, so that the same
    files give the same bytes anywhere.
    """
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [flower_command("flwr"), "build", "--app", str(folder.resolve())],
            cwd=empty,
            env=environment(Path(empty) / "home"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        found = list(Path(empty).glob(f"*{PACKED}"))
        if done.returncode or len(found) != 1:
            raise CoterieError(f"Flower cannot pack {folder}: {' '.join((done.stderr or done.stdout).split())}")
        return found[0].read_bytes()


def app_hash(app: bytes) -> str:
    """The SHA-256 of a packed app, by which server and sites compare what they run."""
    return hashlib.sha256(app).hexdigest()


def agree(folder: Path, app: bytes) -> str:
    """Keep a packed app among those that a site agreed to; its hash."""
    mark = app_hash(app)
    write_whole(private_folder(folder) / f"{mark}{PACKED}", app)
    return mark


def agreed(folder: Path, mark: str) -> bytes | None:
    """The app of a hash, if a site agreed to that: the bytes on its disk count only if they still have the hash."""
    path = folder / f"{mark}{PACKED}"
    if not mark.isalnum() or not path.is_file():
        return None
    app = path.read_bytes()
    return app if app_hash(app) == mark else None
