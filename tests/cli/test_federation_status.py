"""A real federation as its commands show it: pages, health and numbers at the server and at each site."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_tools import finish, start

import coterie as ct
from coterie.cli import main
from support import eventually

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
pytestmark = [pytest.mark.real, pytest.mark.slow]

SITES = ("site-a", "site-b")
PAGE = re.compile(r"how it goes: (http://127\.0\.0\.1:\d+/)")


def got(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def page_of(process: subprocess.Popen[str]) -> str:
    """The address that a command says on stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if match := PAGE.search(line):
            return match[1]
    raise AssertionError("the command said nothing of a page")


def test_a_federation_can_be_watched_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    digits = ct.load("digits")
    for number, site in enumerate(SITES):
        mine = np.arange(number, 400, 2)
        np.savez(f"{site}.npz", x=digits.inputs[mine].numpy(), y=digits.labels[mine].numpy())
    terms = "--shape 1,8,8 --classes 10 --method fedper --model mlp --rounds 2 --lr 0.1 --gather 600 --deadline 900"
    assert main(["federation", "init", "fed", "--sites", ",".join(SITES), *terms.split()]) == 0
    running = [start("federation", "server", "fed", "--insecure", "--port", "0", "--keep-running")]
    try:
        assert running[0].stderr is not None
        of_server = page_of(running[0])
        connects = next(line for line in running[0].stderr if "sites connect by" in line)
        (port,) = re.findall(r"127\.0\.0\.1:(\d+)", connects)
        pages = {}
        for site in SITES:
            words = ("fed", "--name", site, "--data", f"{site}.npz", "--insecure", "--server", f"127.0.0.1:{port}")
            running.append(start("federation", "client", *words))
            pages[site] = page_of(running[-1])

        def state() -> dict[str, Any]:
            return dict(json.loads(got(of_server, "status")[1]))

        assert eventually(lambda: state()["status"].get("state") in ("finished", "failed"), seconds=900)
        content = state()
        assert content["status"]["state"] == "finished", content["status"]
        assert [line["answered"] for line in content["lines"]] == [list(SITES)] * 2
        assert content["run"]["learning"]["rounds"] == [2]
        assert got(of_server, "health") == (200, '{"status": "ok"}')
        assert 'coterie_federation_state{state="finished"} 1' in got(of_server, "metrics")[1]
        for site, address in pages.items():
            own = json.loads(got(address, "status")[1])
            assert [entry["round"] for entry in own["entries"]] == [1, 2, 2]
            assert own["newest"]["finished"]
            assert "points of accuracy" in own["newest"]["gain"]["sentence"]
            assert got(address, "health")[0] == 200
            assert f"coterie_site_test_samples {own['newest']['test_samples']}" in got(address, "metrics")[1]
            place = [one["name"] for one in content["sites"]].index(site)
            assert content["sites"][place]["received"] == own["newest"]["received"]["accuracy"]
        run = ct.open_run(tmp_path / "fed" / "server")
        assert (run.status, run.done) == ("finished", 2)
        running[0].send_signal(signal.SIGTERM)
        assert finish(running.pop(0)).code == 143
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            finish(process)
