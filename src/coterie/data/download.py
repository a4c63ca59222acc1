"""Downloads that are checked while they stream in, and appear under their name only when they are right."""

from __future__ import annotations

import hashlib
import http.client
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.data.progress import progress_bar
from coterie.errors import CoterieError, require

CHUNK_BYTES = 1 << 18
MOST_BYTES = 4 << 30
"""No published archive that Coterie fetches is larger than this."""
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Remote:
    """One published file: where it is, what it is called here, and the checksum its publisher (or a
    long-standing mirror) states for it.

    >>> Remote("https://example.org/a/b.tar.gz", "md5", "0" * 32).file
    'b.tar.gz'
    """

    url: str
    kind: Literal["sha256", "md5"]
    digest: str

    @property
    def file(self) -> str:
        """The file's name, the last part of its address."""
        return self.url.rsplit("/", 1)[-1]


def download(remote: Remote, folder: Path, progress: bool = True) -> Path:
    """Fetch one file into `folder`: streamed into a `.part` file, checked, then renamed.

    A wrong checksum or a broken connection leaves nothing behind.
    """
    require(remote.url.startswith(("https://", "http://")), f"url = {remote.url}: must be http or https")
    target = folder / remote.file
    part: Path | None = None
    # MD5 only guards against damage here; it is used where nothing stronger is published.
    checksum = hashlib.new(remote.kind, usedforsecurity=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=remote.file + ".", suffix=".part", delete=False) as file:
            part = Path(file.name)
            with urllib.request.urlopen(remote.url, timeout=TIMEOUT_SECONDS) as answer:
                expected = _length(answer.headers.get("Content-Length"))
                received = 0
                with progress_bar(f"downloading {remote.file}", expected, progress, in_bytes=True) as advance:
                    while block := answer.read(CHUNK_BYTES):
                        received += len(block)
                        require(received <= MOST_BYTES, f"{remote.url} is larger than {MOST_BYTES >> 30} GiB")
                        checksum.update(block)
                        file.write(block)
                        advance(len(block))
        if checksum.hexdigest() != remote.digest:
            raise CoterieError(
                f"{remote.url} has {remote.kind} {checksum.hexdigest()}, not the published {remote.digest}"
            )
        part.chmod(0o644)
        part.replace(target)
    except (OSError, http.client.HTTPException) as error:
        reason: object = error
        if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
            reason = error.reason
        raise CoterieError(f"could not download {remote.url} ({_one_line(reason)})") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return target


def _length(header: str | None) -> int | None:
    return int(header) if header is not None and header.isdecimal() else None


def _one_line(reason: object) -> str:
    return " ".join(str(reason).split()) or type(reason).__name__
