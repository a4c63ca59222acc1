"""A site's own disk: its rows after each round that counts, never more than two rounds of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from coterie.errors import CoterieError
from coterie.experiment.directory import load_tensors, save_tensors
from coterie.files import require_format

FINAL = "final.safetensors"
FORMAT = 1


def require_readable(path: Path, about: Mapping[str, str]) -> None:
    """An error if a site's file was written in another format than this version's."""
    require_format(f"'{path}'", about.get("format"), FORMAT, "remove the site's folder to begin anew")


class Store:
    """The folder of one site in one federation: `folder / federation / site`.

    The server says which round of a site's work it counted last; that snapshot is the one to go on from. A newer one
    is from a round whose result never reached the server.
    """

    def __init__(self, folder: Path, federation: str, site: str, fingerprint: str) -> None:
        self.path = folder / federation / site
        self.path.mkdir(parents=True, exist_ok=True)
        self._about = {"format": str(FORMAT), "federation": federation, "site": site, "fingerprint": fingerprint}

    def snapshot(self, round: int) -> dict[str, Tensor] | None:
        """What was saved after a round, if it is still here."""
        path = self._file(round)
        return self._read(path) if path.is_file() else None

    def save(self, round: int, state: dict[str, Tensor], keep: int, agreement: str = "") -> None:
        """Save the state after a round, and the agreement's TOML; of earlier rounds only `keep` stays."""
        save_tensors(self._file(round), state, self._about | {"round": str(round), "agreement": agreement})
        for other in self.rounds():
            if other not in (round, keep):
                self._file(other).unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """The rounds whose snapshots are here."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self.path.glob("round-*.safetensors"))

    def save_final(self, state: dict[str, Tensor], about: dict[str, str]) -> None:
        """Save the state at the federation's end."""
        save_tensors(self.path / FINAL, state, self._about | about)

    def final(self) -> dict[str, Tensor] | None:
        """The state at the federation's end, if it came to that here."""
        return self._read(self.path / FINAL) if (self.path / FINAL).is_file() else None

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round:05d}.safetensors"

    def _read(self, path: Path) -> dict[str, Tensor]:
        tensors, about = load_tensors(path)
        require_readable(path, about)
        if about.get("fingerprint") != self._about["fingerprint"]:
            raise CoterieError(
                f"'{path}' is of another federation of the same name; give the new one another name, or remove the file"
            )
        return tensors
