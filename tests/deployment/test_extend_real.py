"""A federation that runs, by its own commands: a site leaves, one comes, rounds are added, and nothing is restarted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import eventually
from towns import Town, few_digits

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = [pytest.mark.real, pytest.mark.slow]

LIMIT = 900.0


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    found = Town(tmp_path, few_digits("site-a", "site-b", "site-c", "site-d"))
    yield found
    found.close()


def test_a_running_federation_is_extended_and_nobody_is_restarted(town: Town) -> None:
    terms = "--method pfedsim --model mlp --rounds 400 --epochs 1 --least-sites 2 --gather 300"
    town.run(f"federation init fed --sites site-a,site-b,site-c --shape 1,8,8 --classes 10 {terms}")
    town.run("federation keys fed")
    for site in ("site-a", "site-b", "site-c"):
        town.join(site)
    town.start("server", f"federation server fed --port {town.port}")
    for site in ("site-a", "site-b", "site-c"):
        town.connect(site)
    assert eventually(lambda: len(town.rounds()) >= 2, LIMIT), town.said("server")
    assert all(line["answered"] == ["site-a", "site-b", "site-c"] for line in town.rounds())

    # The sites accept the next version one after the other while the server goes on with the present one.
    done = len(town.rounds())
    said = town.run(f"federation extend fed --rounds {done + 6} --remove site-b --add site-d --term gather=600")
    assert "site-b is no site any more" in said
    for site in ("site-a", "site-c"):
        town.run(f"federation join fed --name {site} --changed")
    town.join("site-d")
    town.connect("site-d")

    assert eventually(lambda: town.ended("server") is not None, LIMIT), town.said("server")
    assert town.ended("server") == 0, town.said("server")
    lines = town.rounds()
    assert lines[-1]["round"] == done + 6
    assert set(lines[-1]["answered"]) == {"site-a", "site-c", "site-d"}
    assert set(json.loads((town.server / "summary.json").read_text())["finished"]) == {"site-a", "site-c", "site-d"}
    assert all(town.ended(site) is None for site in ("site-a", "site-c", "site-d")), "no client was restarted"
    assert "version 2 of the agreement takes over" in (town.server / "log.txt").read_text()
    assert "site-b has left: all that the SuperLink kept is forgotten" in town.said("server")
    events = town.audit()
    versions = [line["version"] for line in events if line["event"] == "started"]
    assert (versions[0], versions[-1]) == (1, 2)
    first = next(line["round"] for line in lines if "site-b" not in line["asked"])
    refused = [line for line in events if line["event"] == "refused"]
    assert any("a key that the federation does not know" in line["reason"] for line in refused), "site-b tries on"
    assert all("site-b" not in line["asked"] for line in lines if line["round"] >= first)
