"""A server and three sites on loopback, with TLS and keys, which all tests of real processes share.

Federations are runs on it, one beside the other if need be: a site does one task after the other, whosever it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.data import Dataset, load
from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.folder import write_app
from coterie.deployment.flower.keys import Keys, accept_key, make_keys, make_site_key, make_task_key
from coterie.deployment.flower.relay import packed_app
from coterie.deployment.flower.server_processes import ServerProcesses
from coterie.deployment.flower.site_processes import SiteProcesses
from coterie.deployment.state_file import STATUS
from coterie.runs.record import Line, lines_in_order
from coterie.runs.store import LOG, ROUNDS
from coterie.runs.tensors import load_tensors
from support import eventually

MARKING = """
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

Path({marker!r}).touch()
app = {kind}()
"""
MARKING_SERVER = """

@app.main()
def main(grid, context):
    nodes = [info.node_id for info in grid.get_nodes()]
    messages = [Message(RecordDict(), dst_node_id=node, message_type="query.hello", ttl=600.0) for node in nodes]
    grid.push_messages(messages)
    Path(context.run_config["sent"]).write_text(str(nodes))
    import time
    time.sleep(600)
"""
SITES = ("site-a", "site-b", "site-c")
DOOMED = "site-d"  # is killed, and so cannot come back for a minute
LIMIT = 900.0  # seconds that any one wait may last, the federations' own included: only what hangs comes near


def own_digits() -> dict[str, Dataset]:
    """Every site has other digits than the next, some in common, and another number of them."""
    digits = load("digits")
    found = {}
    for number, name in enumerate((*SITES, DOOMED)):
        wanted = torch.tensor([(2 * number + step) % 10 for step in range(5)])
        index = torch.nonzero(torch.isin(digits.labels, wanted))[:, 0][number::3][: 60 * (number + 1)]
        found[name] = Dataset(name, digits.inputs[index], digits.labels[index], 10)
    return found


@dataclass
class Ground:
    """The server, its sites, and where their files are."""

    folder: Path
    link: ServerProcesses
    nodes: dict[str, SiteProcesses]
    data: dict[str, Dataset]
    server_key: str = ""
    apps: list[bytes] = field(default_factory=list)

    @property
    def keys(self) -> Keys:
        """The server's keys, and whose it accepts."""
        return Keys(self.folder / "keys")

    def key(self, name: str) -> Path:
        """A site's own key."""
        return self.folder / "own" / name

    def node(self, name: str) -> SiteProcesses:
        """A site's node, ready to be started."""
        state = self.folder / "sites" / name
        settings = {"name": name, "data": str(self.folder / f"{name}.npz"), "state": str(state)}
        return SiteProcesses(state, self.link.address, settings, key=self.key(name), authority=self.keys.authority)

    def agree(self, app: bytes) -> None:
        """Let all sites agree to an app."""
        self.apps.append(app)
        for node in self.nodes.values():
            for each in self.apps:
                node.agree(each)

    def agreement(self, name: str, method: str, **options: Any) -> Agreement:
        given = {
            "sites": SITES,
            "server_key": self.server_key,
            "rounds": 2,
            "deadline": LIMIT,
            "gather": LIMIT,
            "least_sites": 3,
            **options,
        }
        training = {"model": "mlp", "epochs": 2, "batch": 16, "lr": 0.05}
        return Agreement(name=name, shape=(1, 8, 8), classes=10, method=method, **given, **training)

    def start(self, agreement: Agreement) -> tuple[str, Path]:
        """Start a federation's run; its id and the server's folder."""
        app, directory = self.folder / "apps" / agreement.name, self.folder / "runs" / agreement.name
        if not app.exists():
            write_app(app, agreement)
        self.agree(packed_app(app))
        own = self.folder / "apps" / f"{agreement.name}.toml"  # the server's copy, with its own waiting times
        own.write_text(agreement.toml())
        config = {"directory": str(directory), "agreement": str(own), "wake_up": str(self.link.wake_up)}
        config |= {"keys": str(self.keys.folder), "keyed": True}
        return self.link.run(app, config), directory

    def strange_app(self, marker: Path) -> Path:
        """An app that nobody has agreed to, and that leaves a mark wherever it runs."""
        app = self.folder / "strange" / marker.name
        write_app(app, self.agreement("strange", "fedavg"))
        for side, kind in (("client", "ClientApp"), ("server", "ServerApp")):
            text = MARKING.format(marker=f"{marker}.{side}", kind=kind) + (MARKING_SERVER if side == "server" else "")
            (app / "coterie_app" / f"{side}.py").write_text(text)
        project = (app / "pyproject.toml").read_text()
        (app / "pyproject.toml").write_text(f'{project}sent = ""\n')
        return app

    def finish(self, directory: Path) -> list[dict[str, Any]]:
        """Wait for the end of a run; its rounds."""
        wait_for(lambda: status(directory).get("state") in ("finished", "failed"), directory)
        assert status(directory)["state"] == "finished", (directory / LOG).read_text()
        return rounds(directory)

    def final(self, agreement: Agreement, site: str) -> dict[str, torch.Tensor]:
        """What a site holds in the end."""
        return load_tensors(self.kept(agreement, site) / "final.safetensors")[0]

    def kept(self, agreement: Agreement, site: str) -> Path:
        """Where a site keeps what it has of a federation."""
        return self.folder / "sites" / site / agreement.name / site


def wait_for(done: Callable[[], bool], directory: Path) -> None:
    """Wait until something is so; if it never is, show what the server says."""
    log = directory / LOG
    assert eventually(done, LIMIT), log.read_text() if log.is_file() else "the server's app never started"


def status(directory: Path) -> dict[str, Any]:
    path = directory / STATUS
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def rounds(directory: Path) -> list[Line]:
    path = directory / ROUNDS
    return lines_in_order(path.read_bytes(), str(path)) if path.is_file() else []


@contextmanager
def built(folder: Path) -> Iterator[Ground]:
    """A ground with three sites connected, as long as this is open."""
    data = own_digits()
    for name, own in data.items():
        np.savez(folder / f"{name}.npz", x=own.inputs.numpy(), y=own.labels.numpy())
    make_keys(folder / "keys")
    keys = Keys(folder / "keys")
    (folder / "own").mkdir()
    for name in data:
        accept_key(keys, name, make_site_key(folder / "own" / name))
    with ServerProcesses(folder / "link", keys) as link:
        assert link.admit(keys.accepted(data)) == (list(data), [])
        link.open()
        found = Ground(folder, link, {}, data, make_task_key(keys.task_key))
        try:
            for name in SITES:
                found.nodes[name] = found.node(name)
                found.nodes[name].start()
            for node in found.nodes.values():
                node.wait_accepted(LIMIT)
            yield found
        finally:
            for node in found.nodes.values():
                node.terminate()
