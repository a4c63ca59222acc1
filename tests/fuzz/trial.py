"""What a fuzz target is, and how one case of it is tried.

A case is plain JSON: it is kept in a file when something fails, and tried again from there ever after. A target's check
lets nothing pass but what is promised: a refusal in one line, or something whole.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import signal
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis.strategies import SearchStrategy

from coterie.cli import main
from coterie.errors import CoterieError

Case = dict[str, Any]

KEPT = Path(__file__).parent / "kept"
PATIENCE = 300.0
"""Seconds after which a case counts as hanging: a thousand times what it takes on an idle machine."""
LONGEST = 4000
"""Letters of a message."""


class HangError(Exception):
    """A case has not ended."""


class WrongError(AssertionError):
    """Something that should have been refused was accepted, or a refusal was not one line."""


@dataclass(frozen=True)
class Target:
    """Something that takes input from outside: cases of it, and what must hold of each.

    `share` is how many cases it gets, in proportion to the others'.
    """

    name: str
    cases: SearchStrategy[Case]
    check: Callable[[Case, Path], None]
    share: int

    def try_case(self, case: Case) -> None:
        """Try one case in a folder of its own; an exception if it goes wrong."""
        with tempfile.TemporaryDirectory(prefix="coterie-fuzz-") as folder, _in_time(PATIENCE):
            self.check(case, Path(folder))


@contextlib.contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """An error in the block once it takes too long."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise HangError(f"no end after {seconds:g} seconds")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(action: Callable[[], object]) -> str | None:
    """The words with which something is refused; None if it is not. Any other error is a finding."""
    try:
        with quiet():
            action()
    except CoterieError as error:
        text = str(error)
        must(bool(text.strip()), "an error without a word")
        return text
    return None


@dataclass(frozen=True)
class Answer:
    """How a command line ended, and what it said."""

    code: int
    out: str
    err: str


def called(words: Sequence[str]) -> Answer:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), quiet():
        code = main(words)
    return Answer(code, out.getvalue(), err.getvalue())


def must_be_one_line(answer: Answer) -> None:
    """A refusal: exit code 2, one line on stderr, nothing on stdout."""
    must(answer.code == 2, f"exit code {answer.code}: {answer.err[-300:]}")
    must(answer.out == "", f"said on stdout: {answer.out[:300]}")
    lines = answer.err.strip().splitlines()
    must(bool(lines) and lines[-1].startswith("coterie: error: "), f"said: {answer.err[:300]!r}")
    warned = [line for line in lines[:-1] if not line.startswith(("coterie: ", "warning: "))]
    must(not warned, f"more than one line: {answer.err[:600]!r}")
    must(len(lines[-1]) <= LONGEST, f"a line of {len(lines[-1])} letters")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warning of Python's or NumPy's escapes to users: in the block each is an error. Coterie's log says nothing."""
    silent, log = logging.NullHandler(), logging.getLogger("coterie")
    log.addHandler(silent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("error", UserWarning)
            yield
    finally:
        log.removeHandler(silent)


def must(holds: bool, otherwise: str) -> None:
    """A finding unless something holds."""
    if not holds:
        raise WrongError(otherwise)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def strict_json(text: str | bytes) -> Any:
    """What a JSON text says, as everybody reads it: without NaN and infinities."""

    def refuse(word: str) -> float:
        raise WrongError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def signature(error: BaseException) -> str:
    """What kind of finding an error is: two of one kind are one mistake, most likely."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/coterie/" in frame.filename] or list(frames)
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "nowhere"
    words = " ".join(str(error).split())[:60] if isinstance(error, WrongError) else ""
    return " ".join(filter(None, (type(error).__name__, place, words)))
