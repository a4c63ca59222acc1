"""A server and sites with addresses of their own, on lines that are cut, stay half open and come back as others.

One of them reaches the server by a slow line, which has an address of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.store import Store
from coterie.runs.store import CHECKPOINT
from coterie.runs.tensors import load_tensors
from coterie.testing.together import Together
from networks import PREFIX, SLOW_LINE, Network, remove_left_overs
from support import PATIENCE, eventually
from towns import Town, few_digits

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.xdist_group("networks"),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]

SITES = ("site-a", "site-b", "site-c", "site-d")
LIMIT = 3600.0  # seconds for the whole of it, on the busiest machine
PORT = 8000
HALF_OPEN = 75.0  # seconds: Flower gives a silent node up after a minute
WALLED = 10  # rounds
AT_FIRST, LATER = 600.0, 10.0  # seconds that a round waits for a site that is silent


@pytest.fixture
def network() -> Iterator[Network]:
    remove_left_overs()
    found = Network(f"{PREFIX}-{os.getpid()}", dict(zip(("server", *SITES), (1, 11, 12, 13, 14), strict=True)))
    try:
        found.build()
    except AssertionError as error:
        found.remove()
        pytest.skip(f"no network namespaces here: {error}")
    yield found
    found.remove()


def test_lines_that_break_in_every_way_change_nothing(network: Network, tmp_path: Path) -> None:
    data = few_digits(*SITES, side=16)
    town = Town(tmp_path, data)
    training = {"method": "scaffold", "model": "mlp", "rounds": 22, "epochs": 1, "batch": 16, "lr": 0.05}
    waiting = {"least_sites": 2, "gather": PATIENCE, "deadline": AT_FIRST, "patience": LIMIT, "checkpoints": 3}
    agreement = Agreement(name="fed", sites=SITES, shape=(1, 16, 16), classes=10, **training, **waiting)
    town.agree(agreement, ["10.77.0.1", f"10.77.0.{SLOW_LINE}"])
    marker = tmp_path / "something-large-goes-up"
    words = [f"10.77.0.{SLOW_LINE}", str(PORT), "10.77.0.1", str(PORT), str(marker)]
    script = Path(__file__).parents[1] / "slowline.py"
    line = subprocess.Popen(
        [*network.within("switch"), sys.executable, str(script), *words], stdout=(tmp_path / "line.log").open("wb")
    )
    try:
        town.start("server", f"federation server fed --host 10.77.0.1 --port {PORT}", network.within("server"))
        for site, number in (("site-a", 1), ("site-b", SLOW_LINE), ("site-c", 1), ("site-d", 1)):
            town.connect(site, f"10.77.0.{number}:{PORT}", network.within(site))

        def come_to(round: int) -> None:
            reached = eventually(lambda: len(town.rounds()) >= round or town.ended("server") is not None, LIMIT)
            assert reached, town.said("server")
            assert town.ended("server") is None, town.said("server")

        come_to(2)
        # A line is cut in the middle of an upload, and comes back.
        marker.unlink(missing_ok=True)
        assert eventually(marker.exists, LIMIT), town.said("site-b")
        network.plug("site-b", False)
        time.sleep(5)
        network.plug("site-b", True)
        hurry(town)
        come_to(len(town.rounds()) + 2)
        # One site is walled off for ten rounds. Meanwhile another's line is silent for so long that the server gives
        # the site up, and comes back with another address.
        network.plug("site-c", False)
        network.plug("site-a", False)
        time.sleep(HALF_OPEN)
        network.move("site-a", 211)
        network.plug("site-a", True)
        without = eventually(
            lambda: (
                sum("site-c" not in note_of(line).answered for line in town.rounds()) >= WALLED
                or town.ended("server") is not None
            ),
            LIMIT,
        )
        assert without, town.said("server")
        network.plug("site-c", True)
        assert eventually(lambda: town.ended("server") is not None, LIMIT), town.said("server")
        assert town.ended("server") == 0, town.said("server")
    finally:
        town.close()
        line.kill()
        line.wait()
    replayed(town, data, tmp_path / "undisturbed")


def hurry(town: Town) -> None:
    """Let rounds wait less for who is silent; the server reads its file again while it runs."""
    path = town.folder / "fed" / "federation.toml"
    text = path.read_text()
    assert text.count(f"deadline = {AT_FIRST}\n") == 1
    path.write_text(text.replace(f"deadline = {AT_FIRST}\n", f"deadline = {LATER}\n"))


def replayed(town: Town, data: dict[str, Dataset], folder: Path) -> None:
    """The same rounds with the same sites, in one process: everything ends with the same bits."""
    agreement = Agreement.read(town.folder / "fed" / "federation.toml")
    lines = town.rounds()
    assert [line.round for line in lines] == list(range(1, agreement.rounds + 1))
    assert sum("site-c" not in note_of(line).answered for line in lines) >= WALLED
    assert "site-c" in note_of(lines[0]).answered
    finished = json.loads((town.server / "summary.json").read_text())["finished"]
    assert set(finished) == set(SITES), "who was given up and who was walled off have come back"
    torch.set_num_threads(1)
    together = Together(agreement, folder, data)
    together.admit()
    for line in lines:
        assert not note_of(line).refused, line
        together.round(
            *note_of(line).asked,
            silent=tuple(site for site in note_of(line).asked if site not in note_of(line).answered),
        )
    together.finish()
    state = load_tensors(town.server / CHECKPOINT)[0]
    for name, tensor in together.server.federation.state():
        assert torch.equal(state[name], tensor), name
    for site in SITES:
        path = town.folder / "fed" / "sites" / agreement.name / site / "final.safetensors"
        if site in note_of(lines[-1]).answered:
            expected = Store(folder, agreement.name, site, agreement.fingerprint).final()
            assert expected is not None
            found = load_tensors(path)[0]
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items()), site
