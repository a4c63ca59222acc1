"""Several of Flower's commands in one process: starting it takes seconds, a command itself hardly any.

Run as `python -m coterie.deployment.flower.commands`: it reads lines, each the words of a `flwr` command as JSON, and
answers each with a line of what the command printed. The commands are Flower's own, found by their public name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Self

from coterie.errors import PassingError

PATIENCE = 120.0  # seconds within which a command must answer


def loaded(command: str) -> Callable[[], object]:
    """One of Flower's commands as a function, with all that it imports."""
    (found,) = entry_points(group="console_scripts", name=command)
    function: Callable[[], object] = found.load()
    return function


class UnansweredError(PassingError):
    """A command that ended without an answer, or had none in time."""


class Commands:
    """A process that runs `flwr` commands, as long as this is open."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment, self._folder = dict(environment), folder
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=self._environment,
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def printed(self, words: Sequence[str]) -> str:
        """What `flwr` prints, given these words."""
        if self._process.poll() is not None:  # it was ended over the last ones
            self._process.communicate()
            self._process = self._started()
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        alarm = threading.Timer(PATIENCE, self._process.kill)
        alarm.start()
        try:
            to.write(json.dumps(list(words)) + "\n")
            to.flush()
            answer = back.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            alarm.cancel()
        if not answer:
            raise UnansweredError(
                f"'flwr {words[0]}' ended without an answer, or had none within {PATIENCE:g} s; start the server again"
            )
        return str(json.loads(answer))


def main() -> None:
    """Answer line after line."""
    with os.fdopen(os.dup(1), "w") as out, tempfile.TemporaryFile() as said:
        # Whatever a command prints, by whatever way it prints, goes to the file.
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
        command = loaded("flwr")
        for line in sys.stdin:
            said.seek(0)
            said.truncate()
            sys.argv = ["flwr", *json.loads(line)]
            try:
                command()
            except SystemExit:
                pass  # every command ends so
            except Exception as error:  # what went wrong is the answer
                print(error)
            sys.stdout.flush()
            sys.stderr.flush()
            said.seek(0)
            print(json.dumps(said.read().decode("utf-8", errors="replace")), file=out, flush=True)


if __name__ == "__main__":
    main()
