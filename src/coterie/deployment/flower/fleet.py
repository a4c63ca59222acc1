"""What Flower 1.41 says between a SuperNode and its SuperLink: the one file that knows Flower's non-public messages.

Flower's public interfaces cannot tell a site which app is about to run there, nor a server who sends a request before
its body is read. Both stand in messages over HTTP: the paths, the headers by which a node proves itself, and the
answers to two requests. If another release of Flower changes them, this file changes, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

PREFIX = "/v1/fleet/"
GET_RUN, GET_APP = f"{PREFIX}get-run", f"{PREFIX}get-fab"
PULL = f"{PREFIX}pull-messages"  # the answer is empty if there are none
PUSH, PUSH_OBJECT = f"{PREFIX}push-messages", f"{PREFIX}push-object"
ACTIVATE = f"{PREFIX}activate-node"
# What a SuperNode asks for that was registered by its key.
OF_SITES = {
    GET_RUN,
    GET_APP,
    ACTIVATE,
    PULL,
    PUSH,
    PUSH_OBJECT,
    *(
        f"{PREFIX}{name}"
        for name in (
            "deactivate-node",
            "send-node-heartbeat",
            "pull-object",
            "confirm-message-received",
        )
    ),
}
# Without keys a SuperNode registers itself.
OF_STRANGERS = {f"{PREFIX}register-node", f"{PREFIX}unregister-node"}

KEY, SIGNATURE, TIME = "flwr-public-key", "flwr-signature", "flwr-timestamp"
SERVER_NODE = 1  # the SuperLink's own number
NOT_ACTIVATED = 2004  # Flower's number for a node that it does not let in
RUN_IS_OVER = 403  # the status at which a SuperNode drops a message, and goes on


def signer(headers: Mapping[str, str]) -> bytes | None:
    """The public key that signed a request's time, as DER; nothing if none did.

    When that was is the SuperLink's to check, which sees the same headers.
    """
    try:
        key = load_pem_public_key(base64.b64decode(headers[KEY], validate=True))
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return None
        signature = base64.b64decode(headers[SIGNATURE], validate=True)
        key.verify(signature, headers[TIME].encode("ascii"), ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, TypeError, binascii.Error, InvalidSignature):
        return None
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def not_activated(words: str) -> bytes:
    """The body of an answer that a SuperNode takes for its SuperLink's refusal."""
    return json.dumps({"code": NOT_ACTIVATED, "detail": words}).encode()


class PushedReply(NamedTuple):
    """A node's reply: its own id, that of the message to which it replies, and whose node it is."""

    message: str
    reply_to: str
    node: int


def given_messages(request: bytes, answer: bytes) -> tuple[int, list[str]]:
    """Which node was given which messages, by a request to `PULL` and the answer to it."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse

    asked, given = PullMessagesRequest(), PullMessagesResponse()
    try:
        asked.ParseFromString(request)
        given.ParseFromString(answer)
    except Exception:  # what protobuf raises has no types
        return 0, []
    return int(asked.node.node_id), [str(message.metadata.message_id) for message in given.messages_list]


def pushed_reply(request: bytes) -> PushedReply:
    """The reply in a request to `PUSH`; a `ValueError` if that is anything else than one message to the server."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    pushed = PushMessagesRequest()
    try:
        pushed.ParseFromString(request)
    except Exception:  # what protobuf raises has no types
        raise ValueError("cannot be read") from None
    if len(pushed.messages_list) != 1 or len(pushed.message_object_trees) != 1:
        raise ValueError(f"is {len(pushed.messages_list)} messages")
    about, node = pushed.messages_list[0].metadata, int(pushed.node.node_id)
    if about.src_node_id != node:
        raise ValueError(f"says it is from node {about.src_node_id}")
    if about.dst_node_id != SERVER_NODE:
        raise ValueError(f"is to node {about.dst_node_id}")
    if not about.message_id or not about.reply_to_message_id:
        raise ValueError("replies to nothing")
    return PushedReply(str(about.message_id), str(about.reply_to_message_id), node)


def app_of_run(content: bytes) -> str:
    """The hash of the app that a run is of, given the answer to `GET_RUN`."""
    from flwr.proto.run_pb2 import GetRunResponse

    answer = GetRunResponse()
    answer.ParseFromString(content)
    return str(answer.run.fab_hash)


def sent_app(content: bytes) -> bytes:
    """The app in the answer to `GET_APP`."""
    from flwr.proto.fab_pb2 import GetFabResponse

    answer = GetFabResponse()
    answer.ParseFromString(content)
    return bytes(answer.fab.content)


def app_message(app: bytes, mark: str) -> bytes:
    """The answer to `GET_APP` with an app and its hash, and nothing else."""
    from flwr.proto.fab_pb2 import Fab, GetFabResponse

    return bytes(GetFabResponse(fab=Fab(hash_str=mark, content=app)).SerializeToString())
