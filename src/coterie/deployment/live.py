"""The terms that may change while a federation runs: its file is looked at again whenever it has changed."""

from __future__ import annotations

import logging
from pathlib import Path

from coterie.deployment.agreement import Agreement
from coterie.errors import CoterieError, require

log = logging.getLogger("coterie")


def with_own_terms(agreement: Agreement, path: str) -> Agreement:
    """The agreement of an app, with the terms of one's own copy that may change; in all else both must be the same."""
    if not path:
        return agreement
    own = Agreement.read(Path(path))
    require(own.fingerprint == agreement.fingerprint, f"{path}: was changed after this app was packed; start again")
    return own


class LiveTerms:
    """An agreement whose waiting times follow its file, if it has one; on what results depend cannot change."""

    def __init__(self, agreement: Agreement, path: Path | None = None) -> None:
        self._agreement, self._path = agreement, path
        self._seen = self._stamp()

    def now(self) -> Agreement:
        """The terms as they are now; a file that cannot be read, or changes more, is named and changes nothing."""
        stamp = self._stamp()
        if stamp == self._seen or self._path is None:
            return self._agreement
        self._seen = stamp
        if stamp is None:
            return self._agreement
        try:
            found = Agreement.read(self._path)
        except (CoterieError, OSError) as error:
            log.warning("%s has changed and cannot be used, the former terms hold: %s", self._path.name, error)
            return self._agreement
        if self._agreement.fingerprint in found.former:
            log.info("%s has changed: version %d takes over after this round", self._path.name, found.version)
            return self._agreement
        if found.fingerprint != self._agreement.fingerprint:
            log.warning("%s has changed in more than waiting times; the former terms hold", self._path.name)
            return self._agreement
        log.info("%s has changed: %s", self._path.name, _differences(self._agreement, found) or "nothing that matters")
        self._agreement = found
        return found

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = None if self._path is None else self._path.stat()
        except OSError:
            return None
        return None if found is None else (found.st_mtime_ns, found.st_size)


def _differences(before: Agreement, after: Agreement) -> str:
    old, new = before.plain(), after.plain()
    return ", ".join(f"{name} = {value} (was {old.get(name)})" for name, value in new.items() if value != old.get(name))
