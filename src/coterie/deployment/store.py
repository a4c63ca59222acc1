"""A site's own disk: its rows after the last rounds that counted, and its last answer."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from coterie.deployment.intact import DamagedError, load_intact, save_intact
from coterie.deployment.messages import Note
from coterie.errors import CoterieError
from coterie.files import remove_partial, require_format
from coterie.runs.tensors import load_metadata

log = logging.getLogger("coterie")

FINAL = "final.safetensors"
ANSWER = "answer.safetensors"
DAMAGED = ".damaged"
FORMAT = 1


def require_readable(path: Path, about: Mapping[str, str]) -> None:
    """An error if a site's file was written in another format than this version's."""
    require_format(f"'{path}'", about.get("format"), FORMAT, "remove the site's folder to begin anew")


class Store:
    """The folder of one site in one federation: `folder / federation / site`.

    The server says which round of a site's work it counted last; that snapshot is the one to go on from. A newer one
    is from a round whose result never reached the server. Snapshots of `former` versions of the agreement, which the
    present one names, count as its own.
    """

    def __init__(
        self, folder: Path, federation: str, site: str, fingerprint: str, former: Collection[str] = ()
    ) -> None:
        self._former = former
        self.path = folder / federation / site
        self.path.mkdir(parents=True, exist_ok=True)
        remove_partial(self.path)
        self._about = {"format": str(FORMAT), "federation": federation, "site": site, "fingerprint": fingerprint}

    def snapshot(self, round: int) -> dict[str, Tensor] | None:
        """What was saved after a round, if it is still here and as it was written; what is not is put aside."""
        path = self._file(round)
        try:
            return self._read(path) if path.is_file() else None
        except DamagedError as error:
            log.error("%s; it is put aside", error)
            path.rename(path.with_suffix(DAMAGED))
            return None

    def newest(self, before: int) -> dict[str, Tensor] | None:
        """The newest of what was saved before a round that is as it was written."""
        for round in reversed([other for other in self.rounds() if other < before]):
            if (saved := self.snapshot(round)) is not None:
                log.error("what was kept after round %d is whole", round)
                return saved
        return None

    def former_sites(self, round: int) -> list[str] | None:
        """The sites of the version of the agreement that a snapshot is of; none if that is the present one."""
        about = load_metadata(self._file(round))
        if about.get("fingerprint") == self._about["fingerprint"]:
            return None
        return list(tomllib.loads(about["agreement"])["sites"])

    def save(
        self,
        round: int,
        state: dict[str, Tensor],
        since: int,
        agreement: str = "",
        back: int = 1,
        features: Sequence[str] = (),
    ) -> None:
        """Save the state after a round, the agreement's TOML, and what the inputs of the site's models are called.

        `since` is the last round that the server counted. What lies between never counted, and what is later than this
        round the server took back. Of the rounds that counted those stay from which the site would go on if the server
        went back, to any of its last `back` rounds.
        """
        about = {"round": str(round), "agreement": agreement, "feature_names": json.dumps(features)}
        save_intact(self._file(round), state, self._about | about)
        counted = [other for other in self.rounds() if other <= since]
        needed = [other for other in counted if other > round - back]
        stay = {*needed, *[other for other in counted if other <= round - back][-1:], round}
        for other in self.rounds():
            if other not in stay:
                self._file(other).unlink(missing_ok=True)

    def keep_answer(self, round: int, task: str, tensors: Mapping[str, Tensor], note: Note) -> None:
        """Keep what was answered to a task (its digest), in place of any former answer."""
        about = {"round": str(round), "task": task, "note": json.dumps(note, allow_nan=False)}
        save_intact(self.path / ANSWER, tensors, self._about | about)

    def answer(self, round: int, task: str) -> tuple[dict[str, Tensor], Note] | None:
        """What was answered to just this task before, if that is still here, and so is what came of it."""
        path = self.path / ANSWER
        if not path.is_file() or not self._file(round).is_file():
            return None
        try:
            tensors, about = load_intact(path)
        except DamagedError:
            return None  # it is only there to save time
        if any(about.get(key) != self._about[key] for key in ("format", "fingerprint")) or about.get("task") != task:
            return None
        return tensors, json.loads(about["note"])

    def rounds(self) -> list[int]:
        """The rounds whose snapshots are here."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self.path.glob("round-*.safetensors"))

    def save_final(self, state: dict[str, Tensor], about: dict[str, str]) -> None:
        """Save the state at the federation's end."""
        save_intact(self.path / FINAL, state, self._about | about)

    def final(self) -> dict[str, Tensor] | None:
        """The state at the federation's end, if it came to that here."""
        return self._read(self.path / FINAL) if (self.path / FINAL).is_file() else None

    def _file(self, round: int) -> Path:
        return self.path / f"round-{round:05d}.safetensors"

    def _read(self, path: Path) -> dict[str, Tensor]:
        with suppress(SafetensorError):  # what is damaged is of no format
            require_readable(path, load_metadata(path))
        tensors, about = load_intact(path)
        if about.get("fingerprint") not in (self._about["fingerprint"], *self._former):
            raise CoterieError(
                f"'{path}' is of another federation of the same name; give the new one another name, or remove the file"
            )
        return tensors
