"""What a federation's server leaves on disk: its last checkpoints, a line per round, and how it stands."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from torch import Tensor

from coterie.deployment.admission import Standing
from coterie.deployment.agreement import Agreement
from coterie.deployment.carry import carry_over
from coterie.deployment.server import Report, Server
from coterie.errors import CoterieError, require
from coterie.experiment.directory import RunDirectory, load_metadata, load_tensors, save_tensors
from coterie.experiment.kept import CHECKPOINT, MIXES, ROUNDS, SUMMARY
from coterie.files import link_whole, remove_partial, write_whole

log = logging.getLogger("coterie")

STATUS = "status.json"
CHECKPOINTS = "checkpoints"

State = Literal["waiting", "running", "finished", "failed"]


class Logbook:
    """The server's folder."""

    def __init__(self, path: Path, agreement: Agreement) -> None:
        self.path, self.agreement = path, agreement
        for folder in (MIXES, CHECKPOINTS):
            (path / folder).mkdir(parents=True, exist_ok=True)
            remove_partial(path / folder)
        remove_partial(path)
        self._directory = RunDirectory(path)

    def checkpoint(self, server: Server) -> None:
        """Save everything that the next round starts from, beside that of the rounds before, to go back to."""
        about = {
            "round": str(server.federation.round),
            "fingerprint": self.agreement.fingerprint,
            "sites": json.dumps(self.agreement.sites),
            "standing": json.dumps({name: asdict(standing) for name, standing in server.standing.items()}),
        }
        path = self._kept(server.federation.round)
        save_tensors(path, dict(server.federation.state()), about)
        link_whole(path, self.path / CHECKPOINT)
        counted = [round for round in self.checkpoints() if round <= server.federation.round]
        for round in set(self.checkpoints()) - set(
            counted[-self.agreement.checkpoints :]
        ):  # later ones were taken back
            self._kept(round).unlink(missing_ok=True)

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
            _, about = load_tensors(path)
        except SafetensorError as error:
            raise CoterieError(f"'{path}' is damaged ({error}); go back to another round") from None
        self._require_same(path, about)
        later = [line["round"] for line in self._directory.lines() if line["round"] > round] if self._has_lines else []
        link_whole(path, self.path / CHECKPOINT)
        (self.path / SUMMARY).unlink(missing_ok=True)
        values = {"state": "waiting", "round": round, "rounds": self.agreement.rounds, "present": []}
        self._write_status(values | {"message": f"went back to round {round}; start the server"})
        return later

    def _kept(self, round: int) -> Path:
        return self.path / CHECKPOINTS / f"{round:05d}.safetensors"

    @property
    def _has_lines(self) -> bool:
        return (self.path / ROUNDS).is_file()

    def _require_same(self, path: Path, about: Mapping[str, str]) -> None:
        require(
            about.get("fingerprint") == self.agreement.fingerprint,
            f"'{path}' is of another agreement than federation.toml; restore that, or begin in another folder",
        )

    def restore(self, server: Server) -> bool:
        """Bring a server back to the last checkpoint; whether there was one."""
        path = self.path / CHECKPOINT
        if not path.is_file():
            return False
        state, about = load_tensors(path)
        standing = {name: Standing(**values) for name, values in json.loads(about["standing"]).items()}
        server.standing = {name: known for name, known in standing.items() if name in self.agreement.sites}
        if about.get("fingerprint") in self.agreement.former:
            self._take_over(server, state, about)
        else:
            self._require_same(path, about)
            server.federation.restore(state)
            server.federation.round = int(about["round"])
        self._remove_former()
        if self._has_lines:
            self._directory.cut_back(server.federation.round)
        for round in self._directory.recorded_rounds():
            if round > server.federation.round:
                self._directory.remove_mixes(round)
        return True

    def _take_over(self, server: Server, state: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Go on from a former version of the agreement; what is kept of it goes, and with it all of sites that left."""
        before, federation = json.loads(about["sites"]), server.federation
        for name, known in server.standing.items():
            federation.sizes[self.agreement.sites.index(name)] = known.samples
        carry_over(state, before, int(about["round"]), self.agreement, federation)
        left = [site for site in before if site not in self.agreement.sites]
        if left:
            self._forget(left)
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
            if load_metadata(self._kept(round)).get("fingerprint") in self.agreement.former:
                self._kept(round).unlink()

    def _forget(self, sites: list[str]) -> None:
        """Delete what files say of sites that left, but for the rounds in which they took part."""
        for round in self._directory.recorded_rounds():
            self._directory.remove_mixes(round)  # they number the sites as they were then
        path = self.path / SUMMARY
        if path.is_file():
            summary = json.loads(path.read_text(encoding="utf-8"))
            name = self.agreement.task.primary.scale.name
            summary[name] = {site: value for site, value in summary[name].items() if site not in sites}
            write_whole(path, (json.dumps(summary, indent=2) + "\n").encode())

    def add(self, report: Report) -> None:
        """Record a round."""
        line = {name: value for name, value in asdict_without_mixes(report).items() if value not in ({}, [])}
        if report.mixes:
            self._directory.add_mixes(report.round, report.mixes)
        self._directory.add_line(line)  # last: what fails before can be done again

    def status(self, state: State, server: Server, present: list[str], message: str = "") -> None:
        """Say how the federation stands, for whoever watches."""
        values: dict[str, Any] = {
            "state": state,
            "round": server.federation.round,
            "rounds": self.agreement.rounds,
            "present": sorted(present),
            "message": message,
            **({"quarantined": server.quarantined} if server.quarantined else {}),
        }
        self._write_status(values)

    def _write_status(self, values: dict[str, Any]) -> None:
        write_whole(self.path / STATUS, json.dumps(values).encode())

    def finish(self, server: Server) -> None:
        """Record how good every site's finished model is; whoever got its model earlier keeps its line."""
        path = self.path / SUMMARY
        metric = self.agreement.task.primary
        name = metric.scale.name
        known: dict[str, float | None] = json.loads(path.read_text(encoding="utf-8"))[name] if path.is_file() else {}
        found = {site: metric.value(sums) if sums else math.nan for site, sums in server.finals.items()}
        # A site without test samples has no number, and JSON has none for that.
        sites = known | {site: None if math.isnan(value) else value for site, value in found.items()}
        sites = dict(sorted(sites.items()))
        judged = [value for value in sites.values() if value is not None]
        summary = {
            "federation": self.agreement.name,
            "method": self.agreement.plain()["method"],
            "rounds": server.federation.round,
            name: sites,
            "mean": sum(judged) / len(judged) if judged else None,
            **self._privacy(),
        }
        write_whole(path, (json.dumps(summary, indent=2) + "\n").encode())

    def _privacy(self) -> dict[str, Any]:
        """What each site says that it has spent, and what that means; nothing without a promise."""
        promise = self.agreement.promise
        if promise.privacy is None:
            return {}
        spent: dict[str, float | None] = {}
        for line in self._directory.lines() if self._has_lines else []:
            spent |= line.get("epsilon", {})
        return {"privacy": {**promise.described(), "delta": promise.delta, "sites": dict(sorted(spent.items()))}}


def asdict_without_mixes(report: Report) -> dict[str, Any]:
    """A report as plain values; who learned from whom has a file of its own."""
    return {name: value for name, value in vars(report).items() if name != "mixes"}
