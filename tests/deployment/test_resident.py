"""The resident of a site: one process for all messages, which answers as a new one would for each."""

from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import numpy as np
import pytest

from coterie.deployment import channel, resident
from coterie.deployment.agreement import Agreement
from coterie.deployment.channel import Reading, Request, answer, ask, connected, listening
from coterie.deployment.messages import DATA, GONE, REFUSED, Packed, RefusedError, read_text
from coterie.deployment.resident import SiteSettings
from coterie.deployment.site_data import data_stamp
from coterie.deployment.wire import Parcel, pack
from coterie.testing.together import SITES, SIZES, Together, site_data
from residents import resident_in_a_thread

HELLO = pack(Parcel())


def agreed(method: str) -> Agreement:
    """An agreement as it stands in a file."""
    options = {"rounds": 3, "epochs": 2, "batch": 8, "lr": 0.05, "model": "mlp", "least_sites": 1}
    return Agreement(name="trial", sites=SITES, shape=(6,), classes=3, method=method, **options)


def write_data(folder: Path, size: int = SIZES[0]) -> Path:
    path, own = folder / "own.npz", site_data(0, size)
    np.savez(path, x=own.inputs.numpy(), y=own.labels.numpy())
    return path


def settings(folder: Path) -> SiteSettings:
    return SiteSettings("site-a", str(folder / "own.npz"), str(folder / "state"))


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_message_comes_through_as_it_was(tmp_path: Path) -> None:
    sent = Packed({"float32": os.urandom(3_000_001), "bool": b""}, '{"ä": 1}')
    found: list[Request] = []
    with listening(tmp_path / "socket") as listener:

        def other_side() -> None:
            connection, _ = listener.accept()
            with connection:
                found.append(Reading(connection).request(4_000_000))
                answer(connection, sent)

        thread = in_a_thread(other_side)
        assert ask(tmp_path / "socket", Request("work", "an agreement", sent)) == sent
        thread.join()
    assert found == [Request("work", "an agreement", sent)]


def test_nobody_else_reaches_the_socket_however_deep_its_folder_is(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30) / ("deeper" * 30)
    folder.mkdir(parents=True)
    for _ in range(2):  # the second finds what the first has left
        with listening(folder / "socket"), connected(folder / "socket"):
            assert stat.S_IMODE((folder / "socket").stat().st_mode) == 0o600
    with pytest.raises(ConnectionRefusedError):
        connected(folder / "socket")


def test_no_more_is_read_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall((1 << 40).to_bytes(channel.LENGTH))
        with pytest.raises(RefusedError, match="a head of"):
            Reading(there)
    here, there = socket.socketpair()
    with here, there:
        answer(here, Packed({"float32": bytes(1000)}, "{}"))
        reading = Reading(there)
        with pytest.raises(RefusedError, match="1,000 bytes; at most 999"):
            reading.content(999)
        reading.skip()
        here.close()
        with pytest.raises(channel.BrokenOffError):
            Reading(there)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["pfedcs", "fedcac", "scaffold"])
def test_answers_are_those_of_a_site_that_starts_anew_for_each(tmp_path: Path, method: str) -> None:
    """Bit for bit, over rounds that build on each other."""
    write_data(tmp_path)
    agreement = agreed(method)
    path = resident_in_a_thread(tmp_path, settings(tmp_path))
    together = Together(agreement, tmp_path / "others")
    together.admit()

    def assert_same(purpose: str, packed: Packed, own: Packed) -> None:
        other = ask(path, Request(purpose, agreement.toml(), packed))
        assert isinstance(other, Packed)
        assert other.buffers == own.buffers
        assert timeless(other) == timeless(own)

    while not together.server.finished:
        for name, task in together.server.open_round(list(SITES)).items():
            together.sites[name] = together.site(name)
            own = together.answer(name, task)
            if name == "site-a":
                assert_same("work", pack(task), own)
            together.server.receive(name, own)
        together.server.close_round()
    farewell = together.server.farewells(["site-a"])["site-a"]
    assert_same("finish", pack(farewell), pack(together.site("site-a").finish(farewell)))


def timeless(packed: Packed) -> object:
    """A message's text without what a clock says."""
    text = read_text(packed.text)
    text["note"].pop("seconds", None)
    return text


def test_the_site_is_built_once_and_again_when_its_data_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built = []
    load = resident.load_site_data
    monkeypatch.setattr(resident, "load_site_data", lambda *given: built.append(1) or load(*given))
    data = write_data(tmp_path)
    path = resident_in_a_thread(tmp_path, settings(tmp_path))
    request = Request("hello", agreed("fedper").toml(), HELLO)
    first = ask(path, request)
    assert ask(path, request) == first
    assert len(built) == 1
    os.utime(data, ns=(1, 1))
    with caplog.at_level(logging.WARNING, logger="coterie"):
        assert ask(path, request) == first
    assert len(built) == 2
    assert "have changed; they are read again" in caplog.text
    write_data(tmp_path, SIZES[0] + 8)
    after = ask(path, request)
    assert isinstance(first, Packed)
    assert isinstance(after, Packed)
    assert read_text(after.text)["note"]["samples"] > read_text(first.text)["note"]["samples"]
    other = ask(path, Request("hello", agreed("fedavg").toml(), HELLO))
    assert isinstance(other, Packed)
    assert read_text(other.text)["note"]["fingerprint"] == agreed("fedavg").fingerprint


def test_a_change_anywhere_in_a_folder_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "1.png").write_bytes(b"1")
    seen = {data_stamp(tmp_path)}
    (tmp_path / "cats" / "2.png").write_bytes(b"2")
    seen.add(data_stamp(tmp_path))
    (tmp_path / "cats" / "2.png").write_bytes(b"20")
    seen.add(data_stamp(tmp_path))
    (tmp_path / "cats" / "1.png").unlink()
    seen.add(data_stamp(tmp_path))
    assert len(seen) == 4
    assert data_stamp(tmp_path) in seen


def test_what_cannot_be_done_is_a_number_and_the_resident_goes_on(tmp_path: Path) -> None:
    path = resident_in_a_thread(tmp_path, settings(tmp_path))
    toml, large = agreed("fedper").toml(), Packed({"float32": bytes(5_000_000)}, HELLO.text)
    assert ask(path, Request("work", toml, large)) == DATA  # there is none
    write_data(tmp_path)
    assert ask(path, Request("dance", toml, HELLO)) == REFUSED
    assert ask(path, Request("work", toml, HELLO)) == REFUSED  # it says nothing of a round
    assert ask(path, Request("work", toml, Packed({"float32": bytes(80 << 20)}, HELLO.text))) == REFUSED  # too long
    assert isinstance(ask(path, Request("hello", toml, HELLO)), Packed)


def test_whoever_talks_nonsense_is_left_alone(tmp_path: Path) -> None:
    write_data(tmp_path)
    path = resident_in_a_thread(tmp_path, settings(tmp_path))
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", (2).to_bytes(channel.LENGTH) + b"[]", bytes(20)):
        with connected(path) as connection:
            connection.sendall(words)
    assert isinstance(ask(path, Request("hello", agreed("fedper").toml(), HELLO)), Packed)


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets are found from their folder, and threads have one between them: in reality these are two processes."""
    lock = threading.Lock()

    @contextmanager
    def alone(path: Path) -> Iterator[None]:
        with lock, chdir(path):
            yield

    monkeypatch.setattr(channel, "chdir", alone)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_at_a_time")
def test_a_resident_that_dies_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
    from coterie.deployment.flower import client

    write_data(tmp_path)
    path, request = tmp_path / ".resident.socket", Request("hello", agreed("fedper").toml(), HELLO)
    found: list[Packed | int] = []

    def die_once(then: Callable[[], object]) -> None:
        with listening(path) as listener:
            thread = in_a_thread(lambda: found.append(client.answer_of(path, request)))
            connection, _ = listener.accept()
            Reading(connection).request(1000)
            path.unlink()
            connection.close()
        then()
        thread.join()

    die_once(lambda: resident_in_a_thread(tmp_path, settings(tmp_path)))
    assert isinstance(found[0], Packed)
    monkeypatch.setattr(client, "START", 0.2)
    die_once(lambda: None)
    assert found[1] == GONE


@pytest.mark.thorough
def test_what_flower_starts_for_a_message_needs_no_pytorch() -> None:
    pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
    code = "import sys, coterie.deployment.flower.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
