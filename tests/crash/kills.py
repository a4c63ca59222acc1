"""A process that is killed at its n-th file operation: an open, a write half done, an fsync, a rename, an unlink …

Installed in a process of its own (a fork), which then ends by SIGKILL: no buffer is flushed, nothing is cleaned up.
With `power`, what was never flushed to the disk is lost as well, as in a power cut.
"""

# What stands in for that which pathlib calls cannot call pathlib.
# ruff: noqa: PTH100, PTH110, PTH115, PTH202

from __future__ import annotations

import builtins
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITING = frozenset("wax+")


class Killer:
    """Counts the file operations below a folder, and ends this process at one of them (none, if that is 0)."""

    def __init__(self, folder: Path, at: int = 0, power: bool = False) -> None:
        self.folder, self.at, self.power = str(folder.resolve()), at, power
        self.seen: list[str] = []
        self._safe: dict[str, int] = {}
        """Of each file that was written: how much of it is on the disk for certain."""

    def install(self) -> None:
        """Count from here on, for the rest of this process's life."""
        opened = io.open
        builtins.open = io.open = lambda *args, **options: self._open(opened, *args, **options)
        for name in ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir"):
            setattr(os, name, self._counted(name, getattr(os, name)))
        os.fsync = self._fsync(os.fsync)
        os.ftruncate = self._descriptor("truncate", os.ftruncate)

    def reach(self, kind: str, path: str, half: Callable[[], object] | None = None) -> None:
        """An operation is about to happen. `half` does it by half, which is how a kill may leave it."""
        if not path.startswith(self.folder):
            return
        self.seen.append(f"{kind} {path.removeprefix(self.folder)}")
        if len(self.seen) == self.at:
            if half is not None:
                half()
            if self.power:
                self._cut_power()
            os.kill(os.getpid(), signal.SIGKILL)

    def _cut_power(self) -> None:
        for path, safe in self._safe.items():
            if os.path.exists(path):
                os.truncate(path, min(safe, os.path.getsize(path)))

    def _open(self, opened: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if isinstance(file, int) or not WRITING & set(mode):
            return opened(file, mode, *args, **options)
        path = os.path.realpath(os.fspath(file))
        self.reach("open", path)
        found = opened(file, mode, *args, **options)
        if path.startswith(self.folder):
            # What was there before is on the disk; what is begun anew is not.
            self._safe.setdefault(path, os.path.getsize(path))
            if "w" in mode:
                self._safe[path] = 0
        return _Watched(found, path, self)

    def _counted(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(path: Any, *more: Any, **options: Any) -> Any:
            if isinstance(path, int):
                return call(path, *more, **options)
            place = os.path.abspath(os.fspath(path))
            self.reach(kind, place)
            result = call(path, *more, **options)
            if kind in ("replace", "rename", "link") and place in self._safe:
                target = os.path.abspath(os.fspath(more[0]))
                self._safe[target] = self._safe[place] if kind == "link" else self._safe.pop(place)
            elif kind in ("unlink", "remove"):
                self._safe.pop(place, None)
            return result

        return counted

    def _descriptor(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(file: Any, *more: Any) -> Any:
            self.reach(kind, _path_of(file))
            return call(file, *more)

        return counted

    def _fsync(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def flushed(file: Any) -> None:
            path = _path_of(file)
            self.reach("fsync", path)
            call(file)
            if path in self._safe:
                self._safe[path] = os.path.getsize(path)

        return flushed


def _path_of(file: Any) -> str:
    return os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")


class _Watched:
    """An open file whose writes are counted."""

    def __init__(self, file: Any, path: str, killer: Killer) -> None:
        self._file, self._path, self._killer = file, path, killer

    def write(self, content: Any) -> Any:
        def half() -> None:
            self._file.write(content[: len(content) // 2])
            self._file.flush()

        self._killer.reach("write", self._path, half)
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Watched:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Any:
        return iter(self._file)
