"""A newcomer's day in 60 steps, each with three wrong inputs: what is printed stands in `newcomers_day.txt`.

`python -m tests.docs.test_newcomers_day` writes it anew from its own inputs. What is answered to a mistake is one line.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.howto import differences

from coterie.cli import main

DAY = Path(__file__).with_suffix("").with_name("newcomers_day.txt")
STEPS, MISTAKES = 60, 3
SHELL, PYTHON, MORE = "$ ", ">>> ", "... "
# What differs from one day or machine to the next.
PASSING = (
    (re.compile(r"allowed: apfl, [^)]*, or"), "allowed: (every method), or"),
    (re.compile(r"allowed: attack, [^)]*, workers"), "allowed: (every setting)"),
    (re.compile(r"explains \d+ more"), "explains (many) more"),
    (re.compile(r"(?<![.\d])\b[0-9a-f]{16,}\b"), "(hash)"),
    (re.compile(r'("seconds": )[\d.e-]+'), r"\1#"),
    (re.compile(r'("torch": )"[^"]+"'), r"\1(version)"),
    (re.compile(r"\d+ bytes of text"), "# bytes of text"),
    (re.compile(r"\d+(\.\d+)? (s|ms)\b"), "# s"),
    (re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}"), "(date)"),
    (re.compile(r"^\d{2}:\d{2}:\d{2} ", re.MULTILINE), ""),
    (re.compile(r"^.*(ETA |engine auto).*\n", re.MULTILINE), ""),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)


def inputs_of(text: str) -> Iterator[str]:
    """Headings, and what is typed: a line for the shell, or Python of one or more lines."""
    typed: list[str] = []
    for line in text.splitlines():
        if typed and not line.startswith(MORE):
            yield "\n".join(typed)
            typed = []
        if line.startswith((SHELL, PYTHON)):
            typed = [line]
        elif typed and line.startswith(MORE):
            typed.append(line)
        elif line.startswith("# "):
            yield line
    if typed:
        yield "\n".join(typed)


def answer_to(typed: str, names: dict[str, Any]) -> str:
    """What is printed, on stdout and stderr together, without what passes."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if typed.startswith(SHELL):
            main(shlex.split(typed)[2:])
        else:
            code = ast.parse("\n".join(line[len(PYTHON) :] for line in typed.splitlines()))
            last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
            try:
                exec(compile(code, "day", "exec"), names)
                value = None if last is None else eval(compile(ast.Expression(last.value), "day", "eval"), names)
                if value is not None:
                    print(value)
            except Exception as error:  # whatever a newcomer would see
                print(f"{type(error).__name__}: {error}")
    text = printed.getvalue()
    for pattern, stands in PASSING:
        text = pattern.sub(stands, text)
    return text.strip("\n").replace(str(Path.cwd()), "HERE")


def day(text: str) -> str:
    """The same with what is printed today, in an empty folder."""
    lines, names, before = [], dict[str, Any](), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="coterie-day-") as folder:
        os.chdir(folder)
        try:
            for typed in inputs_of(text):
                lines += ["", typed] if typed.startswith("# ") else [typed, answer_to(typed, names)]
        finally:
            os.chdir(before)
    return "\n".join(line for line in lines if line or not lines).replace("\n# ", "\n\n# ") + "\n"


@pytest.mark.slow
def test_what_is_printed_is_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    kept = DAY.read_text(encoding="utf-8")
    assert list(differences(kept, day(kept))) == []


def test_there_are_sixty_steps_with_three_mistakes_each_answered_in_a_line() -> None:
    steps = DAY.read_text(encoding="utf-8").split("\n# ")
    assert len(steps) == STEPS
    for number, step in enumerate(steps, 1):
        assert step.removeprefix("# ").startswith(f"{number}. ")
        answers = re.split(r"^(?:\$|>>>) .*\n(?:\.\.\. .*\n)*", step, flags=re.MULTILINE)[1:]
        refused = [said for said in answers if re.match(r"(coterie: error|CoterieError): ", said)]
        assert len(refused) == MISTAKES, step
        assert all(len(said.strip().splitlines()) == 1 for said in refused), step


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    os.environ.pop("COTERIE_DATA", None)
    written = day(DAY.read_text(encoding="utf-8"))
    DAY.write_text(written, encoding="utf-8")
    sys.exit()
