"""Pages, health and numbers of a federation's server and sites: read-only, for this machine unless told otherwise."""

from __future__ import annotations

import http.client
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_coordinator import Trial

from coterie.deployment.inspection import FederationFacts
from coterie.deployment.journal import Journal
from coterie.deployment.server_status import FederationStatus
from coterie.deployment.site_status import SiteStatus, site_journal
from coterie.deployment.status import Gauge, StatusServer, StatusSource, prometheus_text, served_status, status_address
from coterie.errors import CoterieError, PassingError
from coterie.testing.together import SITES, agreed


def asked(server: StatusServer, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.getheader("Content-Type") or "", answer.read().decode()


@contextmanager
def served(source: StatusSource, host: str = "127.0.0.1") -> Iterator[StatusServer]:
    with served_status(source, (host, 0)) as server:
        assert server is not None
        yield server


def values(text: str) -> dict[str, float]:
    """What a monitor reads: every line must be one that Prometheus takes."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# "):
            assert re.fullmatch(r"# (HELP coterie_\w+ .+|TYPE coterie_\w+ (gauge|counter))", line), line
            continue
        match = re.fullmatch(r'(coterie_\w+(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})?) (\S+)', line)
        assert match, line
        found[match[1]] = float(match[2])
    return found


def site_status(folder: Path, connected: bool = True) -> SiteStatus:
    return SiteStatus(
        "site-a", "trial", "example.org:8000", "fedper", 4, Journal(folder), lambda: connected, ["x", "y"]
    )


def test_a_site_before_its_first_round(tmp_path: Path) -> None:
    with served(site_status(tmp_path)) as server:
        assert asked(server, "/health")[::2] == (200, '{"status": "ok"}')
        assert json.loads(asked(server, "/status")[2])["entries"] == []
        numbers = values(asked(server, "/metrics")[2])
        assert numbers["coterie_site_connected"] == 1
        assert numbers["coterie_site_round"] == 0
        status, kind, page = asked(server, "/")
        assert (status, kind) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in page
        assert "connect-src 'self'" in page
        assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_site_that_is_not_connected_is_not_healthy(tmp_path: Path) -> None:
    with served(site_status(tmp_path, connected=False)) as server:
        status, _, text = asked(server, "/health")
        assert status == 503
        assert json.loads(text) == {"status": "failing", "problem": "not connected to example.org:8000"}


def test_nothing_can_be_changed_and_nobody_else_is_answered(tmp_path: Path) -> None:
    with served(site_status(tmp_path)) as server:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
            assert asked(server, "/status", method)[0] == 405
        assert asked(server, "/journal.jsonl")[0] == 404
        assert asked(server, "/../journal.jsonl")[0] == 404
        for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", "127.0.0.1:1"):
            assert asked(server, "/status", host=host)[0] == 403
        assert asked(server, "/status", host=f"localhost:{server.server_port}")[0] == 200
        assert server.server_address[0] == "127.0.0.1"
    with served(site_status(tmp_path), "0.0.0.0") as server:
        assert asked(server, "/health", host="monitor.example")[0] == 200, "its owner let others in"


@pytest.mark.parametrize("text", ["", "9464", ":9464", "localhost:", "host:70000", "host/:1", "on"])
def test_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(CoterieError, match=r"must be HOST:PORT, such as 127\.0\.0\.1:9464, or off"):
        status_address(text)


def test_answers_are_not_kept_and_not_shared_with_other_pages(tmp_path: Path) -> None:
    with served(site_status(tmp_path)) as server, urllib.request.urlopen(f"{server.address}status") as answer:
        assert answer.headers["Access-Control-Allow-Origin"] is None
        assert answer.headers["Cache-Control"] == "no-store"


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    """A supervisor may try again: exit code 1."""
    with served(site_status(tmp_path)) as server:
        for port in (server.server_port, 99999):
            with pytest.raises(PassingError, match=rf"port = {port}: cannot be used on 127\.0\.0\.1"):  # noqa: SIM117
                with served_status(site_status(tmp_path), ("127.0.0.1", port)):
                    pass


def test_names_cannot_break_out_of_a_label() -> None:
    text = prometheus_text([Gauge("x", "X.").at(1, site='a"} 5\ncoterie_y 1')])
    assert text.splitlines()[-1] == 'coterie_x{site="a\\"} 5\\ncoterie_y 1"} 1'
    assert prometheus_text([Gauge("x", "X.").at(None).at(float("nan"))]) == ""
    assert prometheus_text([Gauge("x", "X.").at(1794900000.25)]).endswith(" 1794900000.25\n")


def facts(trial: Trial) -> FederationFacts:
    return FederationFacts("trial", list(SITES), trial.agreement.rounds, "fedper")


def server_status(trial: Trial, gone: str | None = None) -> FederationStatus:
    return FederationStatus(trial.folder / "server", facts(trial), lambda: gone, lambda: 12)


def test_a_server_before_anything_is_written(tmp_path: Path) -> None:
    source = FederationStatus(tmp_path, FederationFacts("trial", ["a"], 3, "fedavg"), lambda: None, lambda: None)
    with served(source) as server:
        content = json.loads(asked(server, "/status")[2])
        assert (content["lines"], content["run"], content["status"]) == ([], None, {})
        assert values(asked(server, "/metrics")[2])["coterie_federation_round"] == 0
        assert asked(server, "/health")[0] == 200


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder = tmp_path_factory.mktemp("federation")
    trial = Trial(folder, agreed("fedper", rounds=3, deadline=30.0, gather=10.0, patience=200.0))
    trial.run()
    return trial


@pytest.mark.thorough
def test_what_the_server_tells(trial: Trial) -> None:
    with served(server_status(trial)) as server:
        content: dict[str, Any] = json.loads(asked(server, "/status")[2])
        numbers = values(asked(server, "/metrics")[2])
    assert content["status"]["state"] == "finished"
    assert content["run"]["clients"] == list(SITES)
    assert content["run"]["learning"]["rounds"] == [3]
    weights = trial.folder / "server" / "mixes" / "00003.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(b"just being written")
    assert server_status(trial).content()["run"]["learning"] is None
    weights.write_bytes(whole)
    last = trial.lines[-1]
    for place, one in enumerate(content["sites"]):
        assert (one["name"], one["here"], one["last_round"]) == (SITES[place], True, 3)
        assert one["received"] == last.received.values["accuracy"][place]
        assert (
            one["counts"]["answered"]
            == numbers[f'coterie_federation_site_answered_total{{site="{SITES[place]}"}}']
            == 3
        )
        assert one["samples"]["train"] == trial.server.standing[SITES[place]].samples
    assert numbers['coterie_federation_state{state="finished"}'] == 1
    assert numbers['coterie_federation_bytes_total{way="up"}'] == sum(line.bytes.up for line in trial.lines)
    assert numbers["coterie_federation_certificate_days_left"] == 12


@pytest.mark.thorough
def test_what_a_site_tells(trial: Trial) -> None:
    journal = site_journal(trial.folder / "sites", "trial", "site-a")
    source = SiteStatus("site-a", "trial", "example.org:8000", "fedper", 3, journal, lambda: True)
    with served(source) as server:
        content = json.loads(asked(server, "/status")[2])
        numbers = values(asked(server, "/metrics")[2])
    entries = journal.entries()
    assert [entry["round"] for entry in content["entries"]] == [1, 2, 3, 3]
    assert content["newest"] == entries[-1]
    assert "recall" not in content["entries"][-1]["received"]
    assert numbers['coterie_site_accuracy{model="alone"}'] == entries[-1]["alone"]["accuracy"]
    assert numbers["coterie_site_gain_points"] == entries[-1]["gain"]["points"]
    assert numbers['coterie_site_round_seconds{part="baseline"}'] == entries[-2]["seconds"]["baseline"]
    assert numbers['coterie_site_bytes_total{way="up"}'] == sum(entry["bytes"]["up"] for entry in entries)


@pytest.mark.thorough
def test_a_server_that_failed_or_lost_a_process_is_not_healthy(trial: Trial, tmp_path: Path) -> None:
    with served(server_status(trial, gone="the gateway ended with code 1")) as server:
        assert asked(server, "/health")[0] == 503
        assert json.loads(asked(server, "/status")[2])["problem"] == "the gateway ended with code 1"
    (tmp_path / "status.json").write_text('{"state": "failed", "message": "too few sites"}')
    source = FederationStatus(tmp_path, facts(trial), lambda: None, lambda: None)
    assert source.problem() == "the federation failed: too few sites"
