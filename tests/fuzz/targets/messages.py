"""Messages between server and sites, and agreements: refused in a line, and nothing else changes."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import strategies as st
from tests.fuzz.bases import damaged, damages, odd_texts, spoilt_json
from tests.fuzz.trial import Case, Target, must, quiet, refused

from coterie.deployment.agreement import Agreement
from coterie.deployment.envelopes import TASK, Envelope, PrivateKey, opened, sealed
from coterie.deployment.flower.records import from_records
from coterie.deployment.messages import Packed, read_text
from coterie.deployment.server import Server
from coterie.deployment.site import Site
from coterie.deployment.wire import pack, unpack
from coterie.testing.together import SITES, Together, agreed

METHODS = ("fedper", "fedrema", "fedcac", "fedproto", "pfedsim")
KINDS = ("float32", "float64", "int64", "bool", "float16", "")


class Scene:
    """A federation whose first round is over and whose second is open: tasks are sent, nobody has answered."""

    def __init__(self, method: str) -> None:
        folder = tempfile.TemporaryDirectory(prefix="coterie-fuzz-scene-")
        self.kept = folder  # as long as the scene is
        self.together = Together(agreed(method, rounds=3, epochs=1), Path(folder.name))
        self.together.admit()
        self.together.round()
        self.hello = self.together.sites["site-b"].hello()
        self.tasks = {name: pack(task) for name, task in self.together.server.open_round(list(SITES)).items()}
        self.answers = {
            name: self.together.answer(name, unpacked(self.together.sites[name], packed))
            for name, packed in self.tasks.items()
        }


def unpacked(site: Site, packed: Packed) -> Any:
    """A task as its site reads it."""
    return unpack(packed, site.expected(read_text(packed.text)["note"]))


@cache
def scene(method: str) -> Scene:
    """Made once: nothing that is refused changes it."""
    with torch.random.fork_rng(devices=[]):
        return Scene(method)


@st.composite
def spoilt_messages(draw: st.DrawFn, whole: Packed) -> Case:
    """A message whose text or whose numbers are not what they were."""
    text, buffers = whole.text, dict(whole.buffers)
    kind = draw(st.sampled_from(("note", "note", "list", "text", "numbers", "length", "buffers")))
    if kind in ("note", "list"):
        contents = json.loads(text)
        key = "note" if kind == "note" else "tensors"
        contents[key] = draw(spoilt_json(contents[key]))
        text = json.dumps(contents)
    elif kind == "text":
        text = damaged(text.encode(), draw(damages(len(text)))).decode(errors="replace")
    elif kind == "numbers" and buffers:
        name = draw(st.sampled_from(sorted(buffers)))
        odd = draw(st.sampled_from((math.nan, math.inf, -math.inf, 1e38)))
        numbers = np.frombuffer(buffers[name], np.uint8).copy()
        place = draw(st.integers(0, max(len(numbers) // 4 - 1, 0))) * 4
        numbers[place : place + 4] = np.frombuffer(np.float32(odd).tobytes(), np.uint8)[: len(numbers) - place]
        buffers[name] = numbers.tobytes()
    elif kind == "length" and buffers:
        name = draw(st.sampled_from(sorted(buffers)))
        buffers[name] = damaged(buffers[name], draw(damages(len(buffers[name]))))
    else:
        name = draw(st.sampled_from(KINDS) | odd_texts)
        buffers[name] = draw(st.binary(max_size=8))
        if draw(st.booleans()):
            buffers.pop(draw(st.sampled_from(sorted(buffers))))
    return {"text": text, "buffers": {name: content.hex() for name, content in buffers.items()}}


@st.composite
def answers(draw: st.DrawFn) -> Case:
    """Answers of a site to its server."""
    method, name = draw(st.sampled_from(METHODS)), draw(st.sampled_from(SITES))
    return {"method": method, "site": name, **draw(spoilt_messages(scene(method).answers[name]))}


@st.composite
def tasks(draw: st.DrawFn) -> Case:
    """Tasks of a server for its site."""
    method, name = draw(st.sampled_from(METHODS)), draw(st.sampled_from(SITES))
    return {"method": method, "site": name, **draw(spoilt_messages(scene(method).tasks[name]))}


@st.composite
def hellos(draw: st.DrawFn) -> Case:
    """What a site says of itself."""
    method = draw(st.sampled_from(METHODS))
    return {"method": method, "hello": draw(spoilt_json(scene(method).hello))}


def packed(case: Case) -> Packed:
    """The message of a case."""
    return Packed({name: bytes.fromhex(content) for name, content in case["buffers"].items()}, case["text"])


def state_of(server: Server) -> dict[str, torch.Tensor]:
    """All that a server knows."""
    return {name: tensor.clone() for name, tensor in server.federation.state()} | {
        "sizes": server.federation.sizes.clone()
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two states are the same, bit for bit."""
    return one.keys() == other.keys() and all(
        tensor.equal(other[name])
        or (bool(tensor.isnan().any()) and tensor.nan_to_num().equal(other[name].nan_to_num()))
        for name, tensor in one.items()
    )


def check_answer(case: Case, folder: Path) -> None:
    """An answer is refused and named, or its numbers are finite and of its round; what others said stays."""
    server, name = scene(case["method"]).together.server, case["site"]
    opened = server._open
    assert opened is not None
    before = state_of(server)
    with quiet():
        server.receive(name, packed(case))
    report = opened.report
    try:
        why = report.refused.get(name)
        if why is not None:
            must("\n" not in why and 0 < len(why) < 1000, f"a reason of another kind: {why!r}")
            must("cannot be read" not in why, f"nobody thought of this: {why}")
            must(name not in opened.answers, "refused and counted")
        elif name in opened.answers:
            answer = opened.answers[name]
            must(answer.note["round"] == report.round, "an answer to another round")
            for part, tensor in answer.tensors.items():
                unknown = part.startswith("measured.")  # may be NaN: a class without samples has no mean
                must(not bool(tensor.isinf().any()), f"{part} is infinite")
                must(unknown or not bool(tensor.isnan().any()), f"{part} is NaN")
            json.dumps([report.received, report.trained], allow_nan=False)
        else:
            must(name in report.diverged or name in report.lost, "an answer that nobody noticed")
        if name not in report.lost:
            must(same(before, state_of(server)), "an answer changed the state before the round was over")
    finally:
        opened.answers.clear()
        report.refused.clear()
        del report.diverged[:]
        if report.lost:  # the site begins anew, which changes what the server knows of it
            scene.cache_clear()


def check_hello(case: Case, folder: Path) -> None:
    """A hello is refused and changes nothing, or it is the site's own."""
    place = scene(case["method"])
    server, before = place.together.server, state_of(place.together.server)
    standing = dict(server.standing)

    def say() -> None:
        must(isinstance(case["hello"], dict), "a hello that is no table")
        server.admit(case["hello"])

    if not isinstance(case["hello"], dict):
        return  # read_text lets no other through
    if refused(say) is not None:
        must(same(before, state_of(server)), "a refused hello changed the state")
        must(server.standing == standing, "a refused hello changed who is known")
    else:
        must(case["hello"]["samples"] == place.hello["samples"], "another number of samples than before")
        scene.cache_clear()


def check_task(case: Case, folder: Path) -> None:
    """A task is refused, or the site answers it with finite numbers, and nothing but what its method uploads."""
    place = scene(case["method"])
    site = place.together.sites[case["site"]]

    def work() -> None:
        task = unpacked(site, packed(case))
        with torch.random.fork_rng(devices=[]):
            answer = site.work(task)
        must(not any(bool(tensor.isinf().any()) for tensor in answer.tensors.values()), "numbers are infinite")
        federation, uploads = site.federation, site.agreement.kind.uploads(site.federation)
        declared = {f"slot.{slot}": federation.layout.columns(group).size for slot, group in uploads.items()}
        sent = {name: len(tensor) for name, tensor in answer.tensors.items() if name.startswith("slot.")}
        must(not sent or sent == declared, f"other columns were sent than the method uploads: {sent}, not {declared}")
        json.dumps(answer.note, allow_nan=False)

    refused(work)


@cache
def signing() -> tuple[PrivateKey, Packed]:
    """A key, and a message that it signed."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    message = Packed({"float32": bytes(8)}, '{"tensors": [], "note": {}}')
    about = {"kind": TASK, "purpose": "work", "federation": "trial", "agreement": "0" * 64, "site": "site-a"}
    envelope = Envelope(**cast(Any, about), round=3, number=7, nonce="n", content=message.digest)
    return key, sealed(message, envelope, key)


@st.composite
def envelopes(draw: st.DrawFn) -> Case:
    """Envelopes in which something is not as it was signed."""
    return {"seal": draw(st.one_of(odd_texts, spoilt_json(json.loads(signing()[1].seal)).map(json.dumps)))}


def check_envelope(case: Case, folder: Path) -> None:
    """An envelope is refused, or says just what was signed."""
    key, message = signing()
    whole = {name: value for name, value in json.loads(message.seal).items() if name != "signature"}

    def read() -> None:
        found = opened(replace(message, seal=case["seal"]), key.public_key(), {})
        must(asdict(found) == whole, "an envelope that nobody signed")

    refused(read)


@st.composite
def records(draw: st.DrawFn) -> Case:
    """Flower's records with arrays that say odd things of themselves."""
    array = Array(np.frombuffer(bytes(range(24)), np.uint8))
    content = damaged(array.data, draw(damages(len(array.data))))
    return {"data": content.hex(), "json": draw(odd_texts), "most": draw(st.sampled_from((0, 24, 1000)))}


def check_records(case: Case, folder: Path) -> None:
    """Records are refused, or hold bytes within what is allowed."""
    array = Array(np.frombuffer(bytes(3), np.uint8))
    array.data = bytes.fromhex(case["data"])
    given = RecordDict({"arrays": ArrayRecord({"float32": array}), "text": ConfigRecord({"json": case["json"]})})

    def read() -> None:
        found = from_records(given, case["most"])
        must(found.bytes <= max(case["most"], len(array.data)), f"{found.bytes} bytes")

    refused(read)


@st.composite
def agreements(draw: st.DrawFn) -> Case:
    """A federation's terms in which something is not as it was."""
    return {"terms": draw(spoilt_json(agreed("fedper").plain()))}


def check_agreement(case: Case, folder: Path) -> None:
    """Terms are refused, or a server can begin with them, and say them again."""
    if not isinstance(case["terms"], dict):
        return

    def begin() -> None:
        agreement = Agreement.parse(case["terms"])
        again = Agreement.parse(agreement.plain())
        must(again.fingerprint == agreement.fingerprint, "said again, it is another agreement")
        if math.prod(agreement.shape) <= 10_000 and len(agreement.sites) <= 10 and agreement.classes <= 1000:
            Server(agreement)

    refused(begin)


TARGETS = (
    Target("answers", answers(), check_answer, 110),
    Target("hellos", hellos(), check_hello, 30),
    Target("tasks", tasks(), check_task, 60),
    Target("envelopes", envelopes(), check_envelope, 50),
    Target("records", records(), check_records, 50),
    Target("agreements", agreements(), check_agreement, 60),
)
