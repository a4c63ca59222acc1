"""The command `coterie`. Commands import what they need when they run: `coterie --help` loads no PyTorch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import CycloptsError

from coterie.cli.app import ALL, app, brief_help
from coterie.cli.errors import UNHEARD, FailureError, InterruptionError, code_of, one_line
from coterie.cli.output import complain, mend_surroundings, speak_plainly
from coterie.errors import CoterieError

__all__ = ["app", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (this process's, by default) and return its exit code."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    mend_surroundings()
    speak_plainly()
    try:
        _load_what_is_listed(tokens)
        if (brief := brief_help(tokens)) is not None:
            print(brief)
            return 0
        tokens = ["--help" if token == ALL else token for token in tokens]
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be written there, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNHEARD
    except (CoterieError, CycloptsError, OSError) as error:
        complain(f"error: {one_line(error, tokens)}")
        return code_of(error)
    except FailureError as error:
        complain(str(error))
        return code_of(error)
    except InterruptionError as stop:
        complain(str(stop))
        return stop.code
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    return 0


def _load_what_is_listed(tokens: Sequence[str]) -> None:
    """Load the commands of which the help may be wanted, since each explains itself: all, or those of `federation`."""
    asked = app
    for token in tokens:
        if token.startswith("-") or token not in asked:
            break
        asked = asked[token]
    asked.resolved_commands()
