"""Messages that would have ended a run or changed what others have: each is refused, and nothing else happens."""

from __future__ import annotations

import io
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from tests.deployment.test_coordinator import Behaviour, Tamper, Trial, rewritten

from coterie.deployment.as_run import note_of
from coterie.deployment.flower.client import client_app
from coterie.deployment.flower.records import KIND_OF, as_records, from_records
from coterie.deployment.messages import Note, Packed, RefusedError
from coterie.deployment.resident import SiteSettings
from coterie.deployment.server import Server
from coterie.deployment.wire import Parcel, pack
from coterie.testing.together import SITES, Together, agreed
from residents import resident_in_a_thread

pytestmark = pytest.mark.thorough


def in_text(old: str, new: str) -> Tamper:
    """An answer in whose text something else is written, JSON or not."""

    def tamper(packed: Packed) -> Packed:
        assert old in packed.text
        return Packed(packed.buffers, packed.text.replace(old, new, 1))

    return tamper


def hidden(contents: dict[str, Any]) -> None:
    contents["note"] = {"round": 2, "diverged": False, "x": {"diverged": True}}


def many_lines(contents: dict[str, Any]) -> None:
    contents["tensors"][0][0] = "slot.other\n2026-11-16 INFO site site-b is here"


HOSTILE: dict[str, tuple[Tamper, str]] = {
    "a number of 5,000 digits": (in_text('"seconds": ', '"more": ' + "9" * 5000 + ', "seconds": '), "not JSON"),
    "not a number": (in_text('"loss": ', '"loss": NaN, "l": '), "NaN is no number"),
    "infinity": (in_text('"loss": ', '"loss": -Infinity, "l": '), "-Infinity is no number"),
    "diverged, said elsewhere": (lambda packed: rewritten(hidden)(Packed({}, packed.text)), "bytes long"),
    "several lines": (rewritten(many_lines), "slot.other 2026-11-16 INFO site site-b is here"),
    "nothing": (lambda packed: Packed({}, "{}"), "lacks the list of tensors"),
    "deep": (lambda packed: Packed({}, "[" * 100_000), "not JSON"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_one_answer_never_ends_a_run(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tamper, reason = HOSTILE[kind]
    trial = Trial(tmp_path, site_b=Behaviour(tamper={2: tamper}))
    with caplog.at_level(logging.WARNING, logger="coterie"):
        trial.run()
    assert trial.status["state"] == "finished"
    assert reason in note_of(trial.lines[1]).refused["site-b"]
    assert [note_of(line).answered for line in trial.lines] == [
        list(SITES),
        ["site-a", "site-c"],
        list(SITES),
        list(SITES),
    ]
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_whatever_goes_wrong_with_an_answer_is_its_senders_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = Server.expected_answer, list[int]()

    def broken_once(self: Server) -> dict[str, Any]:
        calls.append(self.federation.round)
        if len(calls) == 1:
            raise ZeroDivisionError("nobody thought of this")
        return whole(self)

    monkeypatch.setattr(Server, "expected_answer", broken_once)
    trial = Trial(tmp_path)
    trial.run()
    assert trial.status["state"] == "finished"
    assert list(note_of(trial.lines[0]).refused.values()) == ["it cannot be read (ZeroDivisionError)"]
    assert len(note_of(trial.lines[0]).answered) == 2


def test_a_farewell_without_samples_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    def nothing_tested(contents: dict[str, Any]) -> None:
        if "seconds" not in contents["note"]:  # the farewell, not the round's answer
            contents["note"]["received"] |= {"samples": 0, "correct": 0}

    trial = Trial(tmp_path, site_b=Behaviour(tamper={4: rewritten(nothing_tested)}))
    trial.run()
    summary = json.loads((tmp_path / "server" / "summary.json").read_text())
    assert summary["finished"]["site-b"] is None
    others = [summary["finished"][name] for name in ("site-a", "site-c")]
    assert summary["accuracy"]["received"]["mean"]["last"] == pytest.approx(sum(others) / 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_server_that_ends_is_not_running(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path)

    def end(self: Server) -> None:
        raise error

    monkeypatch.setattr(Server, "close_round", end)
    with pytest.raises(error):
        trial.run()
    assert trial.status["state"] == "failed"
    assert error.__name__ in trial.status["message"]


def hello_of(server: Server, folder: Path, name: str = "site-b", **changes: object) -> Note:
    site = Together(server.agreement, folder).sites[name]
    return {**site.hello(), **changes}


@pytest.mark.parametrize(
    ("changes", "registered", "message"),
    [
        ({"samples": 7}, "site-a", "the node with the key of site-a says it is site-b"),
        (
            {"samples": 10**12},
            "site-b",
            "site site-b says it has 1,000,000,000,000 training samples; most_samples is 1,000,000",
        ),
        ({"samples": 10**7, "site": "site-x"}, "", "'site-x' is not among"),
        ({"site": "site-b\nINFO all is well"}, "", "'site-b INFO all is well' is not among"),
        ({"samples": -1}, "", "says it has"),
        ({"samples": True}, "", "says it has"),
        ({"snapshots": "none"}, "", "does not say which rounds"),
    ],
)
def test_a_refused_hello_changes_nothing(
    changes: dict[str, object], registered: str, message: str, tmp_path: Path
) -> None:
    server = Server(agreed("fedper"))
    before = {name: tensor.clone() for name, tensor in server.federation.state()}
    sizes = server.federation.sizes.clone()
    with pytest.raises(RefusedError, match=message):
        server.admit(hello_of(server, tmp_path, **changes), registered)
    assert not server.standing
    assert torch.equal(server.federation.sizes, sizes)
    for name, tensor in server.federation.state():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def test_a_site_that_took_part_keeps_the_weight_it_began_with(tmp_path: Path) -> None:
    together = Together(agreed("fedper"), tmp_path)
    together.admit()
    together.round()
    server, hello = together.server, together.sites["site-b"].hello()
    assert server.admit(hello) == "site-b"
    with pytest.raises(RefusedError, match="it must go on with the data that it began with"):
        server.admit({**hello, "samples": hello["samples"] + 1})


def forged(header: bytes, content: bytes = b"abc") -> RecordDict:
    """Flower's records whose array says something untrue of itself."""
    array = Array(np.frombuffer(content, np.uint8))
    array.data = header + content
    return RecordDict({"arrays": ArrayRecord({"float32": array}), "text": ConfigRecord({"json": "{}"})})


def claimed(shape: str, kind: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": (3,)})
    return file.getvalue().replace(b"(3,)", shape.encode())


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\x05\x00{'a'",
        claimed("(100000000000000000,)"),
        claimed("(-1,)"),
        claimed("(3,1)"),
        claimed("(3,)", "|O"),
        claimed("(3,)", "<f4"),
    ],
)
def test_arrays_that_lie_about_themselves_are_refused(header: bytes) -> None:
    with pytest.raises(RefusedError, match="its array 'float32'"):
        from_records(forged(header), 1000)


def test_honest_arrays_are_read() -> None:
    assert from_records(forged(claimed("(3,)")), 1000).buffers == {"float32": b"abc"}


@pytest.mark.parametrize("purpose", KIND_OF)
def test_a_site_keeps_the_text_of_its_errors(
    purpose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "patients-with-a-diagnosis.npz"
    agreement = agreed("fedper")
    (tmp_path / "federation.toml").write_text(agreement.toml())
    resident = resident_in_a_thread(tmp_path, SiteSettings("site-a", str(secret), str(tmp_path / "state")))
    known = {"resident": str(resident)}
    context = Context(run_id=1, node_id=2, node_config=known, state=RecordDict(), run_config={})
    about = Metadata(
        run_id=1,
        message_id="asked",
        src_node_id=1,
        dst_node_id=2,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=60.0,
        message_type=KIND_OF[purpose],
    )
    asked = Message(content=as_records(pack(Parcel())), metadata=about)
    with caplog.at_level(logging.ERROR, logger="coterie"):
        reply = client_app(tmp_path / "federation.toml")(asked, context)
    assert reply.has_error()
    assert "diagnosis" not in str(vars(reply.error)) + str(reply.error.reason)
    assert "diagnosis" in caplog.text


def asked_for(change: dict[str, Any], method: str = "fedper") -> None:
    """A site is given a task whose note says something else."""
    with tempfile.TemporaryDirectory() as folder:
        together = Together(agreed(method), Path(folder))
        together.admit()
        task = together.server.open_round(list(SITES))["site-b"]
        together.answer("site-b", Parcel(task.tensors, {**task.note, **change}))


def test_a_server_gets_no_columns_that_were_not_agreed_to() -> None:
    """FedPer's classifiers stay at the sites, whatever a server asks for."""
    asked_for({})
    with pytest.raises(
        RefusedError, match=r"asks for \{'model': 'all'\}; what the method sends is \{'model': 'extractor'\}"
    ):
        asked_for({"uploads": {"model": "all"}})
    with pytest.raises(RefusedError, match="uploads or peers that are none"):
        asked_for({"uploads": {"model": None}})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": 0, "since": -1}, "the task is of round"),
        ({"round": 99}, "the task is of round"),
        ({"since": 2}, "the task is of round"),
        ({"rounds_taken": -1}, "the task is of round"),
        ({"peers": [7]}, "that are none"),
        ({"peers": ["a"]}, "that are none"),
        ({"values": [1]}, "that are none"),
        ({"measures": [None]}, "that are none"),
    ],
)
def test_a_task_that_cannot_be_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        asked_for(change)
