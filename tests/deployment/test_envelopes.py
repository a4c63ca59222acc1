"""Who said what: tasks and answers that are signed, and what becomes of all others."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.channel import Request, ask
from coterie.deployment.coordinator import Answer, Coordinator
from coterie.deployment.envelopes import (
    ANSWER,
    HEARD,
    LAST_TASK,
    LONGEST_SEAL,
    TASK,
    Envelope,
    PrivateKey,
    ServerEnvelopes,
    SiteEnvelopes,
    opened,
    read_private,
    read_public,
    sealed,
)
from coterie.deployment.flower.keys import make_site_key, make_task_key
from coterie.deployment.logbook import Logbook
from coterie.deployment.messages import REFUSED, Packed, Purpose, RefusedError, read_text
from coterie.deployment.resident import SiteSettings
from coterie.deployment.server import Server
from coterie.deployment.wire import Parcel, pack
from coterie.errors import CoterieError
from coterie.files import sealed_line
from coterie.runs.record import Line, lines_in_order
from coterie.testing.together import SITES, SIZES, site_data
from residents import resident_in_a_thread

CONTENT = Packed({"float32": b"1234"}, '{"tensors": [], "note": {}}')
ABOUT = Envelope(
    kind=TASK,
    purpose="work",
    federation="trial",
    agreement="0" * 64,
    site="site-a",
    round=3,
    number=7,
    nonce="n",
    content=CONTENT.digest,
)


@pytest.fixture(params=[make_task_key, make_site_key])
def key(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PrivateKey, str]:
    public = request.param(tmp_path / "key")
    return read_private(tmp_path / "key"), public


def test_what_is_signed_is_read_by_whoever_knows_the_key(key: tuple[PrivateKey, str]) -> None:
    message = sealed(CONTENT, ABOUT, key[0])
    assert message.digest == CONTENT.digest
    assert opened(message, read_public("key", key[1]), {"site": "site-a", "round": 3}) == ABOUT


OTHERS: dict[str, tuple[Callable[[Packed], Packed], str]] = {
    "no envelope": (lambda message: replace(message, seal=""), "it is not signed"),
    "no JSON": (lambda message: replace(message, seal="{"), "cannot be read"),
    "no object": (lambda message: replace(message, seal="[1]"), "cannot be read"),
    "nothing": (lambda message: replace(message, seal="{}"), "cannot be read"),
    "deep": (lambda message: replace(message, seal="[" * LONGEST_SEAL), "cannot be read"),
    "too long": (lambda message: replace(message, seal=" " * LONGEST_SEAL + message.seal), "cannot be read"),
    "something more": (lambda message: said(message, more=1), "cannot be read"),
    "a text for a number": (lambda message: said(message, round="3"), "cannot be read"),
    "yes for a number": (lambda message: said(message, number=True), "cannot be read"),
    "another round": (lambda message: said(message, round=4), "not signed by the key that counts"),
    "another signature": (lambda message: said(message, signature="00" * 64), "not signed by the key that counts"),
    "another text": (lambda message: replace(message, text="{}"), "its envelope is of content"),
    "other numbers": (lambda message: replace(message, buffers={"float32": b"1235"}), "its envelope is of content"),
}


def said(message: Packed, **values: Any) -> Packed:
    return replace(message, seal=json.dumps({**json.loads(message.seal), **values}))


@pytest.mark.parametrize("kind", OTHERS)
def test_a_message_is_refused_whatever_is_wrong_with_its_envelope(kind: str, key: tuple[PrivateKey, str]) -> None:
    change, reason = OTHERS[kind]
    with pytest.raises(RefusedError, match=reason):
        opened(change(sealed(CONTENT, ABOUT, key[0])), read_public("key", key[1]), {})


@pytest.mark.parametrize("name", ["kind", "purpose", "federation", "agreement", "site", "round", "number", "nonce"])
def test_every_part_of_an_envelope_is_compared(name: str, key: tuple[PrivateKey, str]) -> None:
    """Each is signed by the right key, and of something else."""
    other = 99 if name in ("round", "number") else "other"
    message = sealed(CONTENT, replace(ABOUT, **cast(Any, {name: other})), key[0])
    with pytest.raises(RefusedError, match=f"its envelope is of {name} "):
        opened(message, read_public("key", key[1]), {name: getattr(ABOUT, name)})


def test_another_key_does_not_count(tmp_path: Path, key: tuple[PrivateKey, str]) -> None:
    make_task_key(tmp_path / "other")
    with pytest.raises(RefusedError, match="not signed by the key that counts"):
        opened(sealed(CONTENT, ABOUT, read_private(tmp_path / "other")), read_public("key", key[1]), {})


def test_keys_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("nothing")
    with pytest.raises(CoterieError, match=r"key: cannot be read as a private key"):
        read_private(tmp_path / "key")
    with pytest.raises(CoterieError, match="server_key = nothing: must be a public key"):
        read_public("server_key", "nothing")


class Sides:
    """A server's envelopes and those of site-a."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server_key = read_public("server_key", make_task_key(folder / "tasks.key"))
        self.public = read_public("site-a", make_site_key(folder / "site-a.key"))
        self.now = 1000
        self.server = self.begun()

    def begun(self) -> ServerEnvelopes:
        """The server's, as it starts."""
        key = read_private(self.folder / "tasks.key")
        return ServerEnvelopes("trial", "0" * 64, key, lambda _: self.public, lambda: self.now)

    def site(self, name: str = "site-a", federation: str = "trial", agreement: str = "0" * 64) -> SiteEnvelopes:
        """A site's, as it starts."""
        key = read_private(self.folder / "site-a.key")
        return SiteEnvelopes(federation, agreement, name, self._server_key, key, self.folder)

    def task(self, round: int = 1, purpose: Purpose = "work", site: str = "site-a") -> Packed:
        return self.server.sealed(7, site, purpose, round, CONTENT)


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    return Sides(tmp_path)


def test_a_task_is_taken_once_and_an_old_one_never_again(sides: Sides) -> None:
    first, second = sides.task(), sides.task(2)
    for _ in range(2):  # who carries it may bring it again, also after a restart
        assert sides.site().opened("work", first).round == 1
    assert sides.site().opened("work", second).round == 2
    with pytest.raises(RefusedError, match="an old task"):
        sides.site().opened("work", first)
    again = sides.task(1)  # the server went back
    assert sides.site().opened("work", again).number > sides.site().opened("work", again).round
    forged = sealed(
        replace(CONTENT, text="{}"),
        replace(ABOUT, number=sides.site().last, content=replace(CONTENT, text="{}").digest),
        read_private(sides.folder / "tasks.key"),
    )
    with pytest.raises(RefusedError, match="an old task, or another one"):
        sides.site().opened("work", forged)


def test_a_task_for_somebody_else_is_refused(sides: Sides) -> None:
    for other, what in (
        (sides.site("site-b"), "of site 'site-a', not 'site-b'"),
        (sides.site(federation="other"), "of federation 'trial'"),
        (sides.site(agreement="1" * 64), "of agreement '0000"),
    ):
        with pytest.raises(RefusedError, match=what):
            other.opened("work", sides.task())
    with pytest.raises(RefusedError, match="of purpose 'work', not 'finish'"):
        sides.site().opened("finish", sides.task())
    with pytest.raises(RefusedError, match="of kind 'answer'"):
        sides.site().opened(
            "work", sealed(CONTENT, replace(ABOUT, kind=ANSWER), read_private(sides.folder / "tasks.key"))
        )


def test_whoever_asks_who_is_there_asks_anybody(sides: Sides) -> None:
    """Without keys the server does not know a node's name before it has answered."""
    assert sides.site().opened("hello", sides.task(purpose="hello", site="")).site == ""
    with pytest.raises(RefusedError, match="of site ''"):
        sides.site().opened("work", sides.task(site=""))


def test_a_server_whose_clock_went_back_goes_on(sides: Sides) -> None:
    sides.site().opened("work", sides.task())
    sides.now = 10
    sides.server = sides.begun()
    with pytest.raises(RefusedError, match="an old task"):
        sides.site().opened("work", sides.task())
    sides.server.heard("site-a", {HEARD: sides.site().last})
    assert sides.site().opened("work", sides.task()).number == sides.site().last
    for nonsense in (-1, 1 << 62, "1", True, None):
        with pytest.raises(RefusedError, match="which task it took last"):
            sides.server.heard("site-a", {HEARD: nonsense})


def test_an_answer_answers_one_task_of_its_own_site(sides: Sides) -> None:
    first = sides.site().opened("work", sides.task())
    answer = sides.site().sealed(first, CONTENT)
    sides.server.check(7, answer)
    with pytest.raises(RefusedError, match="nobody asked"):
        sides.server.check(8, answer)
    with pytest.raises(RefusedError, match="of kind 'task'"):
        sides.server.check(7, sealed(CONTENT, first, read_private(sides.folder / "site-a.key")))
    sides.task(2)
    with pytest.raises(RefusedError, match="of round 1, not 2"):
        sides.server.check(7, answer)
    sides.task()
    with pytest.raises(RefusedError, match=r"of (number|nonce)"):
        sides.server.check(7, answer)


def test_of_a_damaged_record_of_the_last_task_its_time_is_left(sides: Sides) -> None:
    old = sides.task()
    sides.site().opened("work", old)
    whole = (sides.folder / LAST_TASK).read_bytes()
    wrong = sealed_line(b'{"number":"x","nonce":"","content":""}')
    for text in (b"", b"[]", whole[:30], whole.replace(b'"number":', b'"number":-'), wrong):
        (sides.folder / LAST_TASK).write_bytes(text)
        with pytest.raises(RefusedError, match="an old task"):
            sides.site().opened("work", old)
        sides.now = time.time_ns()
        assert sides.site().opened("work", sides.task()).number >= sides.now


class Carrier:
    """Three residents with keys, and a network on which anybody may change what is carried."""

    def __init__(self, folder: Path, method: str = "fedper", **terms: Any) -> None:
        self.folder = folder
        training = {"rounds": 3, "epochs": 1, "batch": 8, "model": "mlp", "least_sites": 2, "baseline": False}
        waiting = {"gather": 20.0, "deadline": 60.0, "patience": 5.0}
        self.agreement = Agreement(
            name="trial",
            sites=SITES,
            shape=(6,),
            classes=3,
            method=method,
            server_key=make_task_key(folder / "tasks.key"),
            **{**training, **waiting, **terms},
        )
        self.sockets, self.public = {}, {}
        for place, name in enumerate(SITES):
            own = folder / name
            own.mkdir()
            data = site_data(place, SIZES[place])
            np.savez(own / "data.npz", x=data.inputs.numpy(), y=data.labels.numpy())
            self.public[name] = read_public(name, make_site_key(own / "key"))
            settings = SiteSettings(name, str(own / "data.npz"), str(own), key=str(own / "key"))
            self.sockets[name] = resident_in_a_thread(own, settings)
        self.tasks: dict[tuple[str, int], Packed] = {}  # all that were sent, by site and round
        self.answers_kept: dict[tuple[str, int], Packed] = {}
        self.change: Callable[[str, int, Packed], Packed] = lambda name, round, answer: answer
        self._coming: list[Answer] = []
        self._busy: set[int] = set()

    def nodes(self) -> dict[int, str]:
        return {node: name for node, name in enumerate(SITES) if node not in {one.node for one in self._coming}}

    def ask(self, name: str, purpose: Purpose, content: Packed) -> Packed | int:
        return ask(self.sockets[name], Request(purpose, self.agreement.toml(), content))

    def send(self, node: int, purpose: Purpose, content: Packed, seconds: float) -> None:
        name, round = SITES[node], json.loads(content.seal)["round"]
        reply = self.ask(name, purpose, content)
        if purpose == "work":
            self.tasks[name, round] = content
        if isinstance(reply, int):
            self._coming.append(Answer(node, purpose, f"fault {reply}", replied=True))
            return
        if purpose == "work":
            self.answers_kept[name, round] = reply
            reply = self.change(name, round, reply)
        self._coming.append(Answer(node, purpose, reply))

    def answers(self) -> list[Answer]:
        coming, self._coming = self._coming, []
        return coming

    def run(self) -> Server:
        server, logbook = Server(self.agreement), Logbook(self.folder / "server", self.agreement)
        key = read_private(self.folder / "tasks.key")
        envelopes = ServerEnvelopes(self.agreement.name, self.agreement.digest, key, self.public.__getitem__)
        Coordinator(server, self, logbook, time.monotonic, lambda _: time.sleep(0.001), envelopes=envelopes).run()
        return server

    @property
    def lines(self) -> list[Line]:
        path = self.folder / "server" / "rounds.jsonl"
        return lines_in_order(path.read_bytes(), str(path))

    def kept(self, name: str) -> dict[str, bytes]:
        """All files of a site but the record of its last task."""
        own = self.folder / name / "trial" / name
        return {path.name: path.read_bytes() for path in own.iterdir() if path.name != LAST_TASK}


def test_a_signed_federation_runs_and_takes_no_orders_from_others(tmp_path: Path) -> None:
    """A stored message whose sender is said to be the server is no instruction: nothing at the site changes."""
    carrier = Carrier(tmp_path)
    carrier.run()
    assert [note_of(line).answered for line in carrier.lines] == [list(SITES)] * 3
    before = carrier.kept("site-a")
    assert "final.safetensors" in before
    task = carrier.tasks["site-a", 3]
    note = read_text(task.text)["note"]
    about = Envelope(**{name: value for name, value in json.loads(task.seal).items() if name != "signature"})
    attacker, later = read_private(tmp_path / "site-c" / "key"), replace(about, number=about.number + 10**15)
    forged = {
        "unsigned": replace(task, seal=""),
        "signed by another site": sealed(task, later, attacker),
        "signed, then changed": replace(task, text=task.text.replace('"round": 3', '"round": 2')),
        "from long ago": carrier.tasks["site-a", 1],
        "for another site": carrier.tasks["site-b", 3],
    }
    for kind, message in forged.items():
        for purpose in cast(tuple[Purpose, ...], ("work", "finish")):
            assert carrier.ask("site-a", purpose, message) == REFUSED, (kind, purpose)
    erasing = pack(Parcel({}, note | {"round": 3, "since": 0, "slots": {}, "values": []}))
    for key in (attacker, None):
        message = erasing if key is None else sealed(erasing, replace(later, content=erasing.digest), key)
        assert carrier.ask("site-a", "finish", message) == REFUSED
    assert carrier.kept("site-a") == before


def test_answers_by_others_and_old_ones_cost_their_site_a_round_and_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    carrier = Carrier(tmp_path, rounds=4)
    key = read_private(tmp_path / "site-c" / "key")

    def change(name: str, round: int, answer: Packed) -> Packed:
        if name != "site-a":
            return answer
        values = {name: value for name, value in json.loads(answer.seal).items() if name != "signature"}
        return {
            2: lambda: carrier.answers_kept["site-a", 1],
            3: lambda: sealed(answer, Envelope(**values).about(answer, ANSWER), key),
        }.get(round, lambda: answer)()

    carrier.change = change
    with caplog.at_level(logging.WARNING, logger="coterie"):
        carrier.run()
    assert [note_of(line).answered for line in carrier.lines] == [
        list(SITES),
        ["site-b", "site-c"],
        ["site-b", "site-c"],
        list(SITES),
    ]
    assert "site site-a did not do its task: its message is refused: its envelope is of round 1, not 2" in caplog.text
    assert "its envelope is not signed by the key that counts" in caplog.text


def test_a_site_with_a_key_does_not_join_where_no_key_of_the_server_is_named(tmp_path: Path) -> None:
    carrier = Carrier(tmp_path)
    carrier.agreement = replace(carrier.agreement, server_key="")
    assert isinstance(carrier.ask("site-a", "hello", pack(Parcel())), int)
