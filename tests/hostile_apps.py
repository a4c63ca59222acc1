"""Apps of federations that lie, in what sites answer or in what the server asks; the tests' sites have agreed to them.

Each is the honest app with some lines more, which change what goes out.
"""

from __future__ import annotations

from pathlib import Path

from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.folder import write_app

# Which site it is shows in where its resident listens.
LYING = """
import json

from coterie.deployment.flower import client as flower
from coterie.deployment.messages import Packed

from coterie.deployment.envelopes import Envelope, read_private, sealed

asked = flower.answer_of


def answer_of(resident, request):
    # As it is told, signed with the site's own key.
    site, reply = resident.parent.name, asked(resident, request)
    if not isinstance(reply, Packed):
        return reply
    about = json.loads(reply.seal)
    del about["signature"]
    packed = told(site, reply)
    key = read_private(resident.parents[2] / "own" / site)
    return sealed(packed, Envelope(**about).about(packed, "answer"), key)


flower.answer_of = answer_of
"""
TAMPERED = '''

def told(site, packed):
    """Site b sends one number too many in the first round."""
    if site == "site-b" and '"round": 1' in packed.text and packed.buffers:
        return Packed({"float32": packed.buffers["float32"] + bytes(4)}, packed.text)
    return packed
'''
CLAIMS = '''

def told(site, packed):
    """Site b says that it is very large, site c that it is site a."""
    whole = json.loads(packed.text)
    if "fingerprint" in whole["note"]:
        whole["note"] |= {"site-b": {"samples": 10**12}, "site-c": {"site": "site-a", "samples": 7}}.get(site, {})
    return Packed(packed.buffers, json.dumps(whole))
'''
# Asks every site for nonsense; what came back is written down. It ends like a federation that has finished.
NONSENSE = """
import json
import time

from flwr.app import Message
from flwr.serverapp import ServerApp

from coterie.deployment.agreement import Agreement
from coterie.deployment.envelopes import ServerEnvelopes, read_private
from coterie.deployment.flower.wake_up import wake
from coterie.deployment.flower.records import as_records
from coterie.deployment.messages import Packed

app = ServerApp()
TASK = {"round": 1, "since": 0, "client": 0, "slots": {}, "values": [], "uploads": {"model": "all"}, "measures": []}
TEXTS = ["[]", "{", '{"tensors": 5, "note": {}}', '{"tensors": [], "note": []}', "9" * 5000]
TEXTS += [json.dumps({"tensors": [], "note": TASK | {name: [["x"]]}}) for name in TASK]


@app.main()
def main(grid, context):
    path = Path(str(context.run_config["directory"]))
    path.mkdir(parents=True)
    nodes = {info.node_id: info.name for info in grid.get_nodes() if info.name != "site-d"}
    agreement = Agreement.read(Path(__file__).parent.parent / "federation.toml")
    key = read_private(Path(str(context.run_config["keys"])) / "tasks.key")
    envelopes = ServerEnvelopes(agreement.name, agreement.digest, key)
    found = {}
    for text in TEXTS:
        signed = {node: envelopes.sealed(node, nodes[node], "work", 1, Packed({}, text)) for node in nodes}
        messages = [
            Message(as_records(content), dst_node_id=node, message_type="train", ttl=900.0)
            for node, content in signed.items()
        ]
        sent = dict(zip(grid.push_messages(messages), nodes, strict=True))
        for name in nodes.values():
            wake(Path(str(context.run_config["wake_up"])), name)
        while sent:
            for reply in grid.pull_messages(list(sent)):
                site = nodes[sent.pop(reply.metadata.reply_to_message_id)]
                told = [reply.error.code, reply.error.reason] if reply.has_error() else ["an answer", ""]
                found.setdefault(site, []).append(told)
            time.sleep(0.05)
    (path / "answers.json").write_text(json.dumps(found))
    (path / "status.json").write_text(json.dumps({"state": "finished"}))
"""


def write_hostile_app(kind: str, app: Path, agreement: Agreement) -> None:
    """Write the app of one of the kinds `tampered`, `claims` and `nonsense`."""
    write_app(app, agreement)
    side = app / "coterie_app" / ("server.py" if kind == "nonsense" else "client.py")
    more = NONSENSE if kind == "nonsense" else LYING + {"tampered": TAMPERED, "claims": CLAIMS}[kind]
    side.write_text(side.read_text() + more)
