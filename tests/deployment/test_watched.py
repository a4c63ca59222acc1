"""A real federation as its commands show it: pages, health and numbers at the server and at each site.

It has no keys, and somebody joins under the name of a site that is there.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import coterie as ct
from coterie.deployment.as_run import note_of
from coterie.runs.store import CHECKPOINT
from coterie.runs.tensors import load_tensors
from support import PATIENCE, eventually
from towns import Town, few_digits

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.xdist_group("watched")]

SITES = ("site-a", "site-b")
LIMIT = 900.0
PAGE = re.compile(r"how it goes: (http://127\.0\.0\.1:\d+/)")


def got(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def page_of(town: Town, name: str) -> str:
    """The address that a command says."""
    assert eventually(lambda: PAGE.search(town.said(name)) is not None), town.said(name)
    (address,) = PAGE.findall(town.said(name))
    return str(address)


def log_of(town: Town) -> str:
    path = town.server / "log.txt"
    return path.read_text() if path.is_file() else ""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A federation of two rounds that is over, its server and its clients still there."""
    found = Town(tmp_path_factory.mktemp("watched"), few_digits(*SITES))
    terms = "--shape 1,8,8 --classes 10 --method fedper --model mlp --rounds 2 --lr 0.1 --gather 600 --deadline 900"
    found.run(f"federation init fed --sites {','.join(SITES)} --least-sites 2 {terms}")
    try:
        found.start("server", f"federation server fed --insecure --port {found.port} --keep-running")
        found.connect("site-b", more="--insecure")
        assert eventually(lambda: "site site-b is here" in log_of(found), LIMIT), found.said("server")
        found.connect("site-b", more="--insecure --state elsewhere", name="double")
        assert eventually(lambda: "already, as another node" in log_of(found), LIMIT), found.said("server")
        found.connect("site-a", more="--insecure")
        assert eventually(lambda: found.status().get("state") in ("finished", "failed"), LIMIT), found.said("server")
        yield found
    finally:
        found.close()


def test_a_federation_can_be_watched_at_both_ends(town: Town) -> None:
    of_server = page_of(town, "server")
    content = dict(json.loads(got(of_server, "status")[1]))
    assert content["status"]["state"] == "finished", content["status"]
    assert [line["answered"] for line in content["lines"]] == [list(SITES)] * 2
    assert content["run"]["learning"]["rounds"] == [2]
    assert got(of_server, "health") == (200, '{"status": "ok"}')
    assert 'coterie_federation_state{state="finished"} 1' in got(of_server, "metrics")[1]
    for site in SITES:
        address = page_of(town, site)
        own: dict[str, Any] = json.loads(got(address, "status")[1])
        assert [entry["round"] for entry in own["entries"]] == [1, 2, 2]
        assert own["newest"]["finished"]
        assert "points of accuracy" in own["newest"]["gain"]["sentence"]
        assert got(address, "health")[0] == 200
        assert f"coterie_site_test_samples {own['newest']['test_samples']}" in got(address, "metrics")[1]
        place = [one["name"] for one in content["sites"]].index(site)
        assert content["sites"][place]["received"] == own["newest"]["received"]["accuracy"]
    run = ct.open_run(town.server)
    assert (run.status, run.done) == ("finished", 2)


def test_a_second_node_under_a_live_name_does_not_end_an_insecure_run(town: Town) -> None:
    assert "site site-b is here already, as another node" in log_of(town)
    assert len(town.rounds()) == 2
    assert not (town.folder / "elsewhere" / "fed" / "site-b" / "final.safetensors").exists()


def test_control_is_closed_without_keys_too(town: Town) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", town.port, timeout=PATIENCE)
    connection.request("POST", "/v1/control/list-runs", b"")
    assert connection.getresponse().status == 404
    connection.close()
    assert any(line.get("path") == "/v1/control/list-runs" for line in town.audit())


def test_a_signal_ends_a_server_that_has_nothing_left_to_do(town: Town) -> None:
    assert town.end("server") == 143


def test_a_round_that_is_taken_back_is_done_again_with_the_same_bits(town: Town) -> None:
    """The server ends; its sites do not, and find it again. Whoever else wants the name of one has gone."""
    for name in ("server", "double"):
        if town.ended(name) is None:
            town.end(name)
    before = load_tensors(town.server / CHECKPOINT)[0]
    assert "rounds that are kept: 1, 2;" in town.run("federation rollback fed")
    town.run("federation rollback fed 1")
    assert (town.status()["state"], town.status()["round"]) == ("waiting", 1)
    town.start("server", f"federation server fed --insecure --port {town.port}")
    assert eventually(lambda: town.ended("server") is not None, LIMIT), town.said("server")
    assert town.ended("server") == 0, town.said("server")
    assert "resumed after round 1" in log_of(town)
    assert [note_of(line).answered for line in town.rounds()] == [list(SITES)] * 2
    after = load_tensors(town.server / CHECKPOINT)[0]
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
