"""What commands say on stderr while they run for days: lines with the time, or JSON objects for machines to read."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime

VARIABLE, JSON = "COTERIE_LOG", "json"
WARNING = "warning"


def as_json() -> bool:
    """Whether `COTERIE_LOG=json` asks for JSON."""
    return os.environ.get(VARIABLE) == JSON


def tell(line: str, level: str = "info") -> None:
    """A line on stderr, with the time; what begins with 'warning:' is one."""
    if not as_json():
        print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
        return
    if line.startswith(f"{WARNING}: "):
        level, line = WARNING, line.removeprefix(f"{WARNING}: ")
    _print_object(level, line)


def complain(line: str) -> None:
    """The last words of a command that did not end well."""
    if as_json():
        _print_object("error", line)
    else:
        print(f"coterie: {line}", file=sys.stderr)


def _print_object(level: str, message: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    print(json.dumps({"time": now, "level": level, "message": message}), file=sys.stderr, flush=True)
