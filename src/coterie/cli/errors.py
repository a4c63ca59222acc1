"""How a command ends that does not end well: every mistake as one line with its exit code, and interruptions.

The line names the option, the value, and what is allowed. SIGTERM, which schedulers send before they kill, ends a run
as Ctrl-C does: it keeps its last round.
"""

from __future__ import annotations

import difflib
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from coterie.cli.app import ALL, BRIEF
from coterie.errors import CoterieError, PassingError, UnwelcomeError, unknown
from coterie.files import FULL


class InterruptionError(Exception):
    """Ctrl-C or SIGTERM; the message says how to carry on."""

    def __init__(self, message: str, code: int = 130) -> None:
        super().__init__(message)
        self.code = code


class FailureError(Exception):
    """The work itself ended badly, through nobody's mistake in the command; the message says how to carry on."""


class StandstillError(FailureError):
    """What carries the work has ended, and the work itself has not: it goes on once that is started again."""


class TerminationError(KeyboardInterrupt):
    """SIGTERM; whoever cleans up after Ctrl-C cleans up after it too."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """What a shell is told: 128 and the signal's number.

    >>> exit_code(KeyboardInterrupt()), exit_code(TerminationError())
    (130, 143)
    """
    return 128 + (signal.SIGTERM if isinstance(stop, TerminationError) else signal.SIGINT)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does. Further ones are ignored, so that what is being saved is saved."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise TerminationError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


FAILED, MISTAKE, UNWELCOME = 1, 2, 3
"""Exit codes: try again; change something first; the other end does not take us. 0 is success, 128 + n signal n."""
UNHEARD = 141
"""The exit code where whoever read the output has gone: that of every program which SIGPIPE ends."""
LONGEST = 2000
"""Letters of a line."""

# Commands that are given methods.
TAKE_METHODS = ("run", "compare", "sweep", "check")


def code_of(error: Exception) -> int:
    """The exit code for an error, by which whoever restarts services knows whether that can help.

    >>> import errno
    >>> code_of(CoterieError("alpha = 0: must be greater than 0")), code_of(PassingError("the port is taken"))
    (2, 1)
    >>> code_of(OSError(errno.ENOSPC, "No space left on device")), code_of(UnwelcomeError("it refuses this site"))
    (1, 3)
    """
    if isinstance(error, UnwelcomeError):
        return UNWELCOME
    if isinstance(error, PassingError | FailureError) or (isinstance(error, OSError) and error.errno in FULL):
        return FAILED
    return MISTAKE


def one_line(error: Exception, words: Sequence[str] = ()) -> str:
    """What to print for an error; `words` are those of the command line.

    >>> one_line(CoterieError("alpha = 0: must be greater than 0"))
    'alpha = 0: must be greater than 0'
    >>> one_line(PermissionError(13, "Permission denied", "runs"))
    'runs: Permission denied'
    """
    if isinstance(error, CycloptsError):
        text = _parsing(error, words)
    elif isinstance(error, OSError) and error.filename is not None:
        text = "; ".join([f"{error.filename}: {error.strerror}", *getattr(error, "__notes__", ())])
    elif isinstance(error, PassingError):  # whoever tries again goes on from where it was
        text = "; ".join([str(error), *getattr(error, "__notes__", ())])
    else:
        text = str(error)
    text = " ".join(text.split())
    # Whoever gives a value of a thousand letters is not told all of them: the way out stands at the end.
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"


def _parsing(error: CycloptsError, words: Sequence[str]) -> str:
    command = " ".join(error.command_chain or ())
    manual = (
        f"'coterie {command} {ALL if command in BRIEF else '--help'}' lists them" if command else "see 'coterie --help'"
    )
    match error:
        case CoercionError(__cause__=CoterieError() as cause):
            return str(cause)
        case CoercionError(token=token) if token is not None and token.keyword:
            return f"{_plain(token.keyword)} = '{token.value}': must be true or false"
        case UnknownOptionError(token=token):
            given = token.keyword or token.value
            return _option_of_a_method(given, words) or _unknown_option(given, error, manual)
        case UnknownCommandError(unused_tokens=[first, *_]) if error.app is not None:
            return str(unknown("command", first, [name for name in error.app if not name.startswith("-")]))
        case MissingArgumentError(argument=argument) if argument is not None:
            keyword = error.keyword or argument.name
            is_there = any(word.split("=")[0] == keyword for word in words)
            return f"{keyword} needs a value" if is_there else f"{command} needs {keyword}"
        case UnusedCliTokensError(unused_tokens=[first, *_]):
            return f"'{first}': {command or 'coterie'} takes no further argument"
        case RepeatArgumentError(token=token):
            return f"{token.keyword} is given twice"
    error.verbose = False
    return str(error)


ELSEWHERE = {
    "--batch-size": "--batch",
    "--dataset": "--data",
    "--learning-rate": "--lr",
    "--local-epochs": "--epochs",
    "--local-steps": "--steps",
    "--local-learning-rate": "--lr",
    "--num-clients": "--clients",
    "--num-rounds": "--rounds",
    "--output": "--out",
    "--global-rounds": "--rounds",
}
"""What options of other programs are called here."""


def _option_of_a_method(given: str, words: Sequence[str]) -> str | None:
    """The way out if an unknown option is one of a method that the command line names."""
    named = [word for before, word in pairwise(words) if not word.startswith("-") and not before.startswith("-")]
    if not named or words[0] not in TAKE_METHODS:
        return None
    from coterie.cli.experiments import WITH_OPTIONS  # loads methods and PyTorch: for those alone who named a method
    from coterie.methods import METHODS
    from coterie.options import option_fields

    name = _plain(given.split("=")[0])
    for word in named:
        entry = WITH_OPTIONS.fullmatch(word)
        method = METHODS.spelt(word if entry is None else entry["method"])
        if method in METHODS and name in option_fields(METHODS[method]):
            return f"'{name}' is an option of {method}: use --set {name}={_value_of(given, words)}"
    return None


def _value_of(given: str, words: Sequence[str]) -> str:
    """The value that an option was given; VALUE if it was given none."""
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == given.split("=")[0]:
            following = words[place + 1] if place + 1 < len(words) else "--"
            return value if equals else "VALUE" if following.startswith("--") else following
    return "VALUE"


def _unknown_option(given: str, error: UnknownOptionError, manual: str) -> str:
    name = given.split("=")[0]
    allowed = [option for argument in error.argument_collection for option in argument.names]
    meant = ELSEWHERE.get(name.replace("_", "-"))
    near = [meant] if meant in allowed else difflib.get_close_matches(name.replace("_", "-"), allowed, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"unknown option '{name}'; {hint}({manual})"


def _plain(keyword: str) -> str:
    return keyword.lstrip("-").replace("-", "_")
