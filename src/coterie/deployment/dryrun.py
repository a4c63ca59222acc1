"""Everything that a site would send, shown to it alone: its server is in this process, and nothing listens or connects.

The messages are real ones: what the site would answer to the hello, to a first round from the first weights, and to the
farewell. What later rounds hold is what the method declares.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.disclosure import disclosure
from coterie.deployment.faults import FAULTS
from coterie.deployment.packed import Note, read_text
from coterie.deployment.server import Server
from coterie.deployment.site import Site
from coterie.deployment.store import Store
from coterie.deployment.wire import Parcel, pack, unpack
from coterie.files import private_folder, write_whole
from coterie.runs.directory import save_tensors

HELLO, ROUND, FAREWELL = "hello", "round-1", "farewell"


def dry_run(agreement: Agreement, name: str, data: Dataset, folder: Path) -> list[str]:
    """Write the messages of a site to `folder` as they would be sent; what they hold, in lines for whoever decides."""
    with tempfile.TemporaryDirectory() as state:
        site = Site(agreement, name, data, Store(Path(state), agreement.name, name, agreement.fingerprint))
        sent = dict(_messages(agreement, site))
    private_folder(folder)
    lines = [f"What {name} would send; nothing was sent. The messages themselves are in {folder}."]
    for what, parcel in sent.items():
        write_whole(folder / f"{what}.json", (json.dumps(parcel.note, indent=2) + "\n").encode())
        if parcel.tensors:
            save_tensors(folder / f"{what}.safetensors", parcel.tensors, {})
        packed = pack(parcel)
        about = f"{len(packed.text.encode())} bytes of text, {packed.bytes} of numbers, SHA-256 {packed.digest[:16]}…"
        lines += ["", f"{what}: {about}", f"  {json.dumps(parcel.note)}"]
        lines += [f"  {key}: {_spoken(tensor)}" for key, tensor in parcel.tensors.items()]
    if data.feature_names:
        lines += ["", f"The columns behind the hash, which are not sent: {', '.join(data.feature_names)}"]
    told = disclosure(agreement.kind)
    lines += ["", f"Each round ({agreement.plain()['method']}): {'; then '.join(told.up)}, and the same kind of note."]
    lines += [f"Never: {told.stays}; samples, labels, names of files."]
    lines += [f"If something fails here, a number and nothing else: {', '.join(map(str, sorted(FAULTS)))}."]
    return lines


def _messages(agreement: Agreement, site: Site) -> Iterator[tuple[str, Parcel]]:
    """The hello, the first round's answer and the farewell, each as it would arrive."""
    server = Server(agreement)
    hello: Note = read_text(pack(Parcel({}, site.hello())).text)["note"]
    yield HELLO, Parcel({}, hello)
    name = server.admit(hello)
    answer = site.work(_received(site, server.open_round([name])[name]))
    yield ROUND, answer
    server.receive(name, pack(answer))
    server.close_round()
    yield FAREWELL, site.finish(_received(site, server.farewells([name])[name]))


def _received(site: Site, task: Parcel) -> Parcel:
    packed = pack(task)
    return unpack(packed, site.expected(read_text(packed.text)["note"]))


def _spoken(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    numbers = f"{tensor.numel():,} numbers ({kind}) of shape {tuple(tensor.shape)}"
    if not tensor.numel() or not tensor.is_floating_point():
        return numbers
    known = tensor[tensor.isfinite()]
    return f"{numbers}, {known.min():.4g} to {known.max():.4g}" if known.numel() else numbers
