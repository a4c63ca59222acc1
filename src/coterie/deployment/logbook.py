"""What a federation's server leaves on disk: a checkpoint after every round, a line per round, and how it stands."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from coterie.deployment.agreement import Agreement
from coterie.deployment.server import Report, Server, Standing
from coterie.errors import CoterieError
from coterie.experiment.directory import RunDirectory, load_tensors, save_tensors
from coterie.experiment.kept import CHECKPOINT, MIXES, ROUNDS, SUMMARY
from coterie.files import write_whole

STATUS = "status.json"

State = Literal["waiting", "running", "finished", "failed"]


class Logbook:
    """The server's folder."""

    def __init__(self, path: Path, agreement: Agreement) -> None:
        self.path, self.agreement = path, agreement
        (path / MIXES).mkdir(parents=True, exist_ok=True)
        self._directory = RunDirectory(path)

    def checkpoint(self, server: Server) -> None:
        """Save everything that the next round starts from; the old checkpoint is replaced at once."""
        about = {
            "round": str(server.federation.round),
            "fingerprint": self.agreement.fingerprint,
            "standing": json.dumps({name: asdict(standing) for name, standing in server.standing.items()}),
        }
        save_tensors(self.path / CHECKPOINT, dict(server.federation.state()), about)

    def restore(self, server: Server) -> bool:
        """Bring a server back to the last checkpoint; whether there was one."""
        path = self.path / CHECKPOINT
        if not path.is_file():
            return False
        state, about = load_tensors(path)
        if about.get("fingerprint") != self.agreement.fingerprint:
            raise CoterieError(
                f"'{path}' is of another agreement than federation.toml; restore that, or begin in another folder"
            )
        server.federation.restore(state)
        server.federation.round = int(about["round"])
        server.standing = {name: Standing(**values) for name, values in json.loads(about["standing"]).items()}
        if (self.path / ROUNDS).is_file():
            self._directory.cut_back(server.federation.round)
        return True

    def add(self, report: Report) -> None:
        """Record a round."""
        line = {name: value for name, value in asdict_without_mixes(report).items() if value not in ({}, [])}
        self._directory.add_line(line)
        if report.mixes:
            self._directory.add_mixes(report.round, report.mixes)

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
        write_whole(self.path / STATUS, json.dumps(values).encode())

    def finish(self, server: Server) -> None:
        """Record how good every site's finished model is; whoever got its model earlier keeps its line."""
        path = self.path / SUMMARY
        metric = self.agreement.task.primary
        name = metric.scale.name
        known: dict[str, float | None] = json.loads(path.read_text(encoding="utf-8"))[name] if path.is_file() else {}
        found = {site: metric.value(sums) for site, sums in server.finals.items()}
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
        }
        write_whole(path, (json.dumps(summary, indent=2) + "\n").encode())


def asdict_without_mixes(report: Report) -> dict[str, Any]:
    """A report as plain values; who learned from whom has a file of its own."""
    return {name: value for name, value in vars(report).items() if name != "mixes"}
