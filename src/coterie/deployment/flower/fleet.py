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

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

PREFIX = "/v1/fleet/"
GET_RUN, GET_APP = f"{PREFIX}get-run", f"{PREFIX}get-fab"
PULL = f"{PREFIX}pull-messages"  # the answer is empty if there are none
ACTIVATE = f"{PREFIX}activate-node"
# What a SuperNode asks for that was registered by its key.
OF_SITES = {
    GET_RUN,
    GET_APP,
    ACTIVATE,
    PULL,
    *(
        f"{PREFIX}{name}"
        for name in (
            "deactivate-node",
            "send-node-heartbeat",
            "push-messages",
            "pull-object",
            "push-object",
            "confirm-message-received",
        )
    ),
}
# Without keys a SuperNode registers itself.
OF_STRANGERS = {f"{PREFIX}register-node", f"{PREFIX}unregister-node"}

KEY, SIGNATURE, TIME = "flwr-public-key", "flwr-signature", "flwr-timestamp"
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
