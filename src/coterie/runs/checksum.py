"""Whether what is on disk is, bit for bit, what was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.errors import require

KEY = "sha256"


def sealed(about: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """What is said, and the SHA-256 of that (and of every bit of tensors that it is said about).

    >>> sealed({"round": 2}).keys()
    dict_keys(['round', 'sha256'])
    """
    return {**about, KEY: _checksum(tensors or {}, json.dumps(about))}


def with_checksum(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """What is said about tensors, as JSON, with the SHA-256 of that and of every bit of the tensors.

    >>> json.loads(with_checksum({"row": torch.zeros(3)}, {"round": 2})).keys()
    dict_keys(['round', 'sha256'])
    """
    return json.dumps(sealed(about, tensors))


def require_intact(what: str, tensors: Mapping[str, Tensor], text: str) -> None:
    """An error if tensors, or what is said about them, are not what was written; older files have no checksum.

    >>> written = with_checksum({"row": torch.zeros(3)}, {"round": 2})
    >>> require_intact("rows", {"row": torch.zeros(3)}, written)
    >>> require_intact("rows", {"row": torch.ones(3)}, written)
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: rows is damaged (its SHA-256 is another)
    """
    about = json.loads(text)
    written = about.pop(KEY, None)
    require(
        written is None or written == _checksum(tensors, json.dumps(about)),
        f"{what} is damaged (its SHA-256 is another)",
    )


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
