"""Runs that are followed: nothing is read twice, nothing outside the folder is read, nobody else is answered."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, browser
from report_tools import CLIENTS, ROUNDS, content_of, lines_of, small_run

from coterie.errors import CoterieError
from coterie.report import watching
from coterie.report.serving import WatchServer
from coterie.report.watching import MOST_POINTS, Watch
from support import eventually

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "runs" / "deep" / "one")
    return tmp_path / "runs"


def overview(watch: Watch) -> list[dict[str, Any]]:
    """What is told of all runs when everything is read, however busy the machine."""
    while watch.read_on():
        pass
    found: list[dict[str, Any]] = json.loads(watch.overview())["runs"]
    return found


def write_rounds(run: Path, lines: list[dict[str, Any]], tail: str = "") -> None:
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)


def test_what_is_known_of_a_run(folder: Path) -> None:
    watch = Watch(folder)
    (run,) = overview(watch)
    lines = lines_of(folder / "deep" / "one")
    assert (run["name"], run["method"], run["data"], run["seed"]) == ("deep/one", "fedrema", "digits", 0)
    assert (run["done"], run["planned"], run["state"]) == (ROUNDS, ROUNDS, "finished")
    assert run["curve"]["mean"] == [round(line["received"]["mean"], 5) for line in lines]
    found = json.loads(watch.details("deep/one") or "")
    assert found["curves"]["trained"]["worst"] == [round(line["trained"]["worst_decile"], 5) for line in lines]
    assert (found["learning"]["group"], found["learning"]["rounds"]) == ("classifier", [ROUNDS])
    assert found["clients"] == [str(client) for client in range(CLIENTS)]
    assert watch.details("../runs/deep/one") is None


def test_rounds_are_read_as_they_come_and_only_once(folder: Path) -> None:
    run = folder / "deep" / "one"
    (run / "summary.json").unlink()
    lines = lines_of(run)
    write_rounds(run, lines[:2], tail='{"round": 3, "co')
    watch = Watch(folder)
    (seen,) = overview(watch)
    assert (seen["done"], seen["state"]) == (2, "")
    # The line is finished. What was read before is not read again: nobody notices that it has changed.
    path = run / "rounds.jsonl"
    rest = json.dumps(lines[2])
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"x" * before.index(b"\n"))
        file.seek(before.rindex(b"\n") + 1)
        file.write(rest.encode() + b"\n")
    # Whoever looks at the run first does not take the news from the others.
    assert json.loads(watch.details("deep/one") or "")["curves"]["received"]["rounds"] == [1, 2, 3]
    (seen,) = overview(watch)
    assert (seen["done"], seen["curve"]["rounds"]) == (3, [1, 2, 3])
    (run / "summary.json").write_text("{}")
    assert overview(watch)[0]["state"] == "finished"


def test_a_run_that_is_carried_on_from_a_checkpoint_is_read_anew(folder: Path) -> None:
    run = folder / "deep" / "one"
    lines = lines_of(run)
    watch = Watch(folder)
    overview(watch)
    # As `RunDirectory.lines` cuts them back: into a new file. It has grown longer than before by the next look.
    (run / "new").write_text("".join(json.dumps({**line, "round": line["round"] + 10}) + "\n" for line in lines * 2))
    (run / "new").replace(run / "rounds.jsonl")
    assert overview(watch)[0]["curve"]["rounds"] == [11, 12, 13, 14] * 2
    write_rounds(run, lines[:1])
    assert overview(watch)[0]["curve"]["rounds"] == [1]


def test_damaged_runs_harm_nobody_and_runs_come_and_go(folder: Path) -> None:
    watch = Watch(folder)
    (folder / "bad").mkdir()
    (folder / "bad" / "config.toml").write_text("[")
    shutil.copytree(folder / "deep" / "one", folder / "two")
    (folder / "two" / "rounds.jsonl").write_text('[]\n{"round": "?"}\nnull\n\xff\n')
    (folder / "two" / "mixes" / "00004.safetensors").write_text("nothing")
    assert [run["name"] for run in overview(watch)] == ["deep/one", "two"]
    assert json.loads(watch.details("two") or "")["learning"] is None
    shutil.rmtree(folder / "two")
    assert [run["name"] for run in overview(watch)] == ["deep/one"]


def test_a_line_counts_as_a_whole_and_browsers_can_read_every_answer(folder: Path) -> None:
    run = folder / "deep" / "one"
    lines = lines_of(run)
    lines[1]["received"]["worst_decile"] = "?"
    lines[2]["received"]["mean"] = float("nan")
    write_rounds(run, lines)
    watch = Watch(folder)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    (seen,) = json.loads(watch.overview(), parse_constant=refuse)["runs"]
    assert seen["curve"]["rounds"] == [1, 3, 4]
    assert seen["curve"]["mean"][1] is None
    curves = json.loads(watch.details("deep/one") or "", parse_constant=refuse)["curves"]
    assert {len(values) for curve in curves.values() for values in curve.values()} == {3}


def test_curves_of_the_overview_are_thinned_out_and_end_with_the_newest(folder: Path) -> None:
    run = folder / "deep" / "one"
    (line, *_) = lines_of(run)
    write_rounds(run, [{**line, "round": round} for round in range(1, 501)])
    rounds = overview(Watch(folder))[0]["curve"]["rounds"]
    assert len(rounds) <= MOST_POINTS
    assert rounds[-1] == 500


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.copytree(folder / "deep" / "one", secret)
    (secret / "log.txt").write_text("a secret")
    (folder / "link").symlink_to(secret)
    run = folder / "deep" / "one"
    for name in ("log.txt", "rounds.jsonl", "partition.safetensors"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret / name)
    watch = Watch(folder)
    (seen,) = overview(watch)
    assert (seen["name"], seen["done"]) == ("deep/one", 0)
    found = json.loads(watch.details("deep/one") or "")
    assert (found["log"], found["curves"], found["learning"]) == ([], {}, None)


@pytest.fixture
def server(folder: Path) -> Iterator[WatchServer]:
    with WatchServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: WatchServer, path: str, method: str = "GET", host: str = ""
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.headers
    connection.close()
    return found


def test_what_the_server_answers(server: WatchServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, text, headers = ask(server, "/")
    assert status == 200
    assert "connect-src 'self'" in text
    assert content_of(text)["title"].startswith("Runs in ")
    assert headers["Access-Control-Allow-Origin"] is None
    assert headers["Cache-Control"] == "no-store"
    status, text, _ = ask(server, "/runs")
    assert [run["name"] for run in json.loads(text)["runs"]] == ["deep/one"]
    assert json.loads(ask(server, "/run?name=deep%2Fone")[1])["name"] == "deep/one"
    assert ask(server, "/runs", host=f"localhost:{server.server_port}")[0] == 200


def test_what_the_server_refuses(server: WatchServer) -> None:
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", "127.0.0.1:1"):
        assert ask(server, "/runs", host=host)[0] == 403
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        assert ask(server, "/runs", method)[0] == 405
    ask(server, "/runs")
    for path in (
        "/../secret",
        "/deep/one/config.toml",
        "/run",
        "/run?name=../../etc/passwd",
        "/run?name=deep/one/../one",
        "/run?name=%2Fetc",
        "//runs/x",
    ):
        assert ask(server, path)[0] == 404


def test_what_cannot_be_served_says_why(folder: Path, tmp_path: Path, server: WatchServer) -> None:
    with pytest.raises(CoterieError, match=r"nowhere: there is no such folder"):
        WatchServer(tmp_path / "nowhere")
    for port in (server.server_port, 99999):
        with pytest.raises(CoterieError, match=rf"port = {port}: cannot be used"):
            WatchServer(folder, port)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium), and there is none")
def test_the_page_follows_a_run(server: WatchServer, folder: Path, tmp_path: Path) -> None:
    run = folder / "deep" / "one"
    lines = lines_of(run)
    write_rounds(run, lines[:2])
    (run / "summary.json").unlink()
    with browser(tmp_path / "profile") as tab:
        tab.visit(server.address)
        tab.until("document.querySelector('tbody td button')")
        tab.ask("document.querySelector('tbody td button').click()")
        tab.until("document.querySelectorAll('#run figure .plot svg').length === 3")
        assert "2 of 4" in tab.ask("document.querySelector('tbody').textContent")
        write_rounds(run, lines)
        tab.until("document.querySelector('tbody').textContent.includes('4 of 4')")
        assert tab.complaints() == []
        assert all(address.startswith(server.address) for address in tab.requests())


def test_an_answer_does_not_wait_for_all_that_is_there_to_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers stop early and go on where they stopped, each time with another run; long lines are read whole."""
    monkeypatch.setattr(watching, "PATIENCE", 0.0)
    monkeypatch.setattr(watching, "AT_ONCE", 10)
    shutil.copytree(folder / "deep" / "one", folder / "two")
    watch = Watch(folder)
    for done in ([1, 0], [1, 1]):
        assert [run["done"] for run in json.loads(watch.overview())["runs"]] == done
    assert [run["done"] for run in overview(watch)] == [ROUNDS, ROUNDS]


def test_the_server_reads_on_by_itself(server: WatchServer) -> None:
    # As a list: the server's own thread may add to them meanwhile.
    assert eventually(lambda: [run.done for run in list(server.watch._runs.values())] == [ROUNDS])
