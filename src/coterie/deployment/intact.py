"""Files of tensors that tell whether they are as they were written: each carries the SHA-256 of all that is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from coterie.deployment.messages import one_line
from coterie.errors import CoterieError
from coterie.runs.tensors import SEAL, load_tensors, require_intact, save_tensors, sealed


class DamagedError(CoterieError):
    """A file that is not as it was written: torn, flipped or cut off."""


def save_intact(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write named tensors and texts, whole or not at all, with a checksum of both."""
    save_tensors(path, tensors, sealed(dict(sorted(about.items())), tensors))


def load_intact(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_intact` wrote; a `DamagedError` if a bit of it is another.

    >>> import tempfile, torch
    >>> path = Path(tempfile.mkdtemp(), "rows")
    >>> save_intact(path, {"row": torch.zeros(3)}, {"round": "2"})
    >>> load_intact(path)[0]["row"]
    tensor([0., 0., 0.])
    >>> written = path.read_bytes()
    >>> _ = path.write_bytes(written[:-1] + b"\\x01")
    >>> load_intact(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.deployment.intact.DamagedError: '...rows' is damaged (its SHA-256 is another)
    """
    try:
        tensors, about = load_tensors(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedError(f"'{path}' is damaged ({one_line(error)})") from None
    written = about.pop(SEAL, "")
    try:
        require_intact(f"'{path}'", tensors, json.dumps({**dict(sorted(about.items())), SEAL: written}))
    except CoterieError as error:
        raise DamagedError(str(error)) from None
    return tensors, about
