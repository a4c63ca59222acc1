"""What a federation's server leaves on disk: its last checkpoints, a line per round, and how it stands."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from safetensors import SafetensorError
from torch import Tensor

from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import (
    about_of,
    config_of,
    lines_with,
    note_of,
    partition_of,
    renumbered,
    summary_so_far,
    with_received,
)
from coterie.deployment.bounds import bounded_sizes
from coterie.deployment.claims import Standing
from coterie.deployment.intact import DamagedError, load_intact, save_intact
from coterie.deployment.server import Report, Server
from coterie.deployment.state_file import UNDER_WAY, State, write_state
from coterie.deployment.versions import carry_over
from coterie.errors import CoterieError, require
from coterie.files import json_text, link_whole, remove_partial, write_whole
from coterie.runs.about import session
from coterie.runs.directory import RunDirectory
from coterie.runs.record import PRIVACY, Line, RunAbout, lines_in_order, read_lines
from coterie.runs.store import ABOUT, CHECKPOINT, MIXES, PARTITION, ROUNDS, SUMMARY
from coterie.runs.tensors import load_metadata, sealed

log = logging.getLogger("coterie")

CHECKPOINTS = "checkpoints"
LINES = "lines"
"""What a checkpoint calls the lines of the rounds until then."""
FINISHED = "finished"
"""Where the summary tells how good every site's finished model is."""


class Logbook:
    """The server's folder."""

    def __init__(self, path: Path, agreement: Agreement) -> None:
        self.path, self.agreement = path, agreement
        for folder in (MIXES, CHECKPOINTS):
            (path / folder).mkdir(parents=True, exist_ok=True)
            remove_partial(path / folder)
        remove_partial(path)
        self._directory = RunDirectory(path)
        self._told: RunAbout | None = None  # what the folder says of the federation as a whole
        self._known: list[Line] | None = None  # the lines of all rounds, once they were read or written

    def checkpoint(self, server: Server) -> None:
        """Save everything that the next round starts from, beside that of the rounds before, to go back to."""
        about = {
            "round": str(server.federation.round),
            "fingerprint": self.agreement.fingerprint,
            "sites": json.dumps(self.agreement.sites),
            "halvings": str(server.halvings),
            "standing": json.dumps({name: asdict(standing) for name, standing in server.standing.items()}),
        }
        path = self._kept(server.federation.round)
        told = (self.path / ROUNDS).read_bytes() if self._has_lines else b""
        lines = {LINES: torch.frombuffer(bytearray(told), dtype=torch.uint8) if told else torch.empty(0).byte()}
        save_intact(path, dict(server.federation.state()) | lines, about)
        link_whole(path, self.path / CHECKPOINT)
        counted = [round for round in self.checkpoints() if round <= server.federation.round]
        for round in set(self.checkpoints()) - set(
            counted[-self.agreement.checkpoints :]
        ):  # later ones were taken back
            self._kept(round).unlink(missing_ok=True)
        self._describe(server)

    def _describe(self, server: Server) -> None:
        """Let the folder be opened like a run's: how it is set up, and what is known of the sites so far."""
        first = not self._directory.store.has(ABOUT)
        known = [] if first else self._directory.about().sessions
        sessions = known if self._told else [*known, session(server.federation.round - 1)]
        about = about_of(server, sessions)
        if about != self._told:
            partition_of(server).save(self.path / PARTITION)
            self._directory.write_about(about)
            self._directory.write_config(config_of(self.agreement))
            self._told = about

    def checkpoints(self) -> list[int]:
        """The rounds that can be gone back to."""
        return sorted(
            int(path.stem) for path in (self.path / CHECKPOINTS).glob("*.safetensors") if path.stem.isdecimal()
        )

    def go_back(self, round: int) -> list[int]:
        """Let the next start begin after a round; the later rounds that are taken back.

        Nothing is lost before that start: until then the same brings the later rounds back.
        """
        listed = self.checkpoints()
        require(
            round in listed,
            f"round = {round}: is not kept; those that are: {', '.join(map(str, listed)) or 'none'} (the last "
            f"{self.agreement.checkpoints}: checkpoints in the agreement)",
        )
        path = self._kept(round)
        try:
            _, about = load_intact(path)
        except DamagedError as error:
            raise CoterieError(f"{error}; go back to another round") from None
        self._require_same(path, about)
        later = [line.round for line in self._lines() if line.round > round]
        link_whole(path, self.path / CHECKPOINT)
        (self.path / SUMMARY).unlink(missing_ok=True)
        values = {"round": round, "rounds": self.agreement.rounds, "present": []}
        write_state(self.path, "waiting", **values, message=f"went back to round {round}; start the server")
        return later

    def _kept(self, round: int) -> Path:
        return self.path / CHECKPOINTS / f"{round:05d}.safetensors"

    @property
    def _has_lines(self) -> bool:
        return (self.path / ROUNDS).is_file()

    def _lines(self) -> list[Line]:
        """The lines of all rounds: once they are known, whatever becomes of their file."""
        if self._known is None:
            self._known = self._directory.lines() if self._has_lines else []
        return self._known

    def _write_lines(self, lines: list[Line]) -> None:
        self._directory.write_lines(lines)
        self._known = lines

    def _require_same(self, path: Path, about: Mapping[str, str]) -> None:
        require(
            about.get("fingerprint") == self.agreement.fingerprint,
            f"'{path}' is of another agreement than federation.toml; restore that, or begin in another folder",
        )

    def restore(self, server: Server) -> bool:
        """Bring a server back to the last checkpoint that is as it was written; whether there was any."""
        path = self._intact_checkpoint()
        if path is None:
            self._known = []  # whatever a former start has left is done again
            return False
        state, about = load_intact(path)
        standing = {name: Standing(**values) for name, values in json.loads(about["standing"]).items()}
        server.standing = {name: known for name, known in standing.items() if name in self.agreement.sites}
        self._heal_lines(state[LINES].numpy().tobytes())
        if about.get("fingerprint") in self.agreement.former:
            self._take_over(server, state, about)
        else:
            self._require_same(path, about)
            server.federation.restore(state)
            server.federation.round = int(about["round"])
            server.halve_rates(int(about["halvings"]))
        self._remove_former()
        for round in self._directory.recorded_rounds():
            if round > server.federation.round:
                self._directory.remove_mixes(round)
        return True

    def _heal_lines(self, told: bytes) -> None:
        """Bring the lines of rounds back to where they stood at the checkpoint; later rounds are done again.

        Of the last one the file may know more: how good what sites received was, which they tell when they are next
        asked. Whatever else differs is damage, which is said.
        """
        kept = [renumbered(line, self.agreement) for line in lines_in_order(told, CHECKPOINT)]
        content = (self.path / ROUNDS).read_bytes() if self._has_lines else b""
        read = [line for _, line in read_lines(content) if isinstance(line, Line)][: len(kept)]
        found = [renumbered(line, self.agreement) for line in read]
        if _without_received(found) == _without_received(kept):
            kept = found
        else:
            log.error("'%s' is damaged; its lines are those of the checkpoint", self.path / ROUNDS)
        if kept or content:
            self._write_lines(kept)

    def _intact_checkpoint(self) -> Path | None:
        """The last checkpoint, or the newest one before it that is as it was written; none if there never was one."""
        last, kept = self.path / CHECKPOINT, [self._kept(round) for round in reversed(self.checkpoints())]
        # The last one is a second name of one that is kept; whatever is newer was taken back.
        places = [place for place, path in enumerate(kept) if last.is_file() and path.samefile(last)]
        tried = [last, *kept[places[0] + 1 :]] if places else [last, *kept]
        for path in tried:
            if not path.is_file():
                continue
            try:
                _, about = load_intact(path)
            except DamagedError as error:
                log.error("%s", error)
                continue
            if path != last:
                link_whole(path, last)
                log.error("the server goes on from round %s, the last that is whole on the disk", about["round"])
            return last
        require(
            not any(path.is_file() for path in tried),
            f"no checkpoint in '{self.path}' is as it was written; bring it back from a back-up, or begin in another "
            "folder",
        )
        return None

    def _take_over(self, server: Server, state: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Go on from a former version of the agreement; what is kept of it goes, and with it all of sites that left."""
        before, federation = json.loads(about["sites"]), server.federation
        samples = [server.standing.get(name, Standing()).samples for name in self.agreement.sites]
        federation.sizes.copy_(bounded_sizes(torch.tensor(samples), self.agreement.most_weight))
        carry_over(state, before, int(about["round"]), self.agreement, federation)
        left = [site for site in before if site not in self.agreement.sites]
        (self.path / SUMMARY).unlink(missing_ok=True)  # it goes on, and has no end yet
        if left:
            self._forget()
        self.checkpoint(server)
        log.info(
            "version %d of the agreement takes over after round %d%s",
            self.agreement.version,
            federation.round,
            f"; the rows and values of {', '.join(left)} are deleted" if left else "",
        )

    def _remove_former(self) -> None:
        """Remove the checkpoints of former versions: sites that left are in them."""
        for round in self.checkpoints() if self.agreement.former else ():
            with suppress(SafetensorError):  # a damaged one is never gone back to
                if load_metadata(self._kept(round)).get("fingerprint") in self.agreement.former:
                    self._kept(round).unlink()

    def _forget(self) -> None:
        """Delete what numbers sites that have left; the names of who took part in a round stay in its line."""
        for round in self._directory.recorded_rounds():
            self._directory.remove_mixes(round)

    def add(self, report: Report) -> None:
        """Record a round."""
        if report.mixes:
            self._directory.add_mixes(report.round, report.mixes)
        self._write_lines(lines_with(self._lines(), report, self.agreement))  # last: what fails can be done again

    def status(
        self, state: State, server: Server, present: list[str], message: str = "", passing: bool = False
    ) -> None:
        """Say how the federation stands, for whoever watches; of a failure, whether the next start may mend it."""
        values: dict[str, Any] = {
            "round": server.federation.round,
            "rounds": self.agreement.rounds,
            "present": sorted(present),
            "message": message,
            **({"quarantined": server.quarantined} if server.quarantined else {}),
            **({"passing": True} if passing else {}),
            **({"pid": os.getpid()} if state in UNDER_WAY else {}),
        }
        write_state(self.path, state, **values)

    def finish(self, server: Server) -> None:
        """Record how good every site's finished model is; whoever got its model earlier keeps its line."""
        lines = self._lines()
        finals = {site: sums for site, sums in server.finals.items() if sums}  # under a promise of privacy none is told
        if lines and finals:
            lines = [*lines[:-1], with_received(lines[-1], finals, self.agreement)]
            self._write_lines(lines)
        self._describe(server)
        last = lines[-1].received if lines else None
        name = self.agreement.task.primary.scale.name
        scores = {} if last is None else dict(zip(self.agreement.sites, last.values[name], strict=True))
        here = [site for site in self.agreement.sites if scores.get(site) is not None or site in server.finals]
        told = {site: scores.get(site) for site in here}
        summary = {
            **summary_so_far(server, lines),
            "federation": self.agreement.name,
            FINISHED: told,
            **self._privacy(),
        }
        write_whole(self.path / SUMMARY, json_text(sealed(summary)).encode())

    def _privacy(self) -> dict[str, Any]:
        """What each site says that it has spent, and what that means; nothing without a promise."""
        promises = [part.described() for part in self.agreement.parts if part.name == PRIVACY]
        if not promises:
            return {}
        spent: dict[str, float | None] = {}
        for line in self._lines():
            spent |= note_of(line).epsilon
        return {PRIVACY: {**promises[0], "sites": dict(sorted(spent.items()))}}


def _without_received(lines: Sequence[Line]) -> list[Line]:
    """Lines of which the last lacks what comes in later."""
    return [*lines[:-1], *(replace(line, received=None) for line in lines[-1:])]
