"""The pages on operations and security: commands are understood, what is cited exists, tables are complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from coterie.cli import app
from coterie.cli.errors import FAILED, MISTAKE, UNWELCOME, TerminationError, exit_code

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("operations.md", "security.md")]
COMMAND = re.compile(
    r"^[$#] (?:.*?bin/coterie|docker compose run --rm --no-deps [\w-]+) (federation .*)$", re.MULTILINE
)


def test_commands_are_understood() -> None:
    found = COMMAND.findall(PAGES[0].read_text(encoding="utf-8"))
    assert {shlex.split(line)[1] for line in found} == {"init", "keys", "join"}
    for line in found:
        _, _, ignored = app.parse_args(shlex.split(line), exit_on_error=False, print_error=False)
        assert not ignored


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_tests_that_are_cited_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:src|tests|deploy)/[\w./@-]+)`", text))
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    known = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (\w+)", path.read_text())
    }
    assert set(re.findall(r"`(test_\w+)`", text)) <= known


def test_the_table_of_exit_codes_is_complete() -> None:
    text = PAGES[0].read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    told = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    codes = [int(code) for cell in told for code in cell.split(",")]
    assert codes == [0, FAILED, MISTAKE, UNWELCOME, exit_code(KeyboardInterrupt()), exit_code(TerminationError())]


def test_events_of_the_audit_log_are_those_that_are_written() -> None:
    text = PAGES[1].read_text(encoding="utf-8").partition("| `event` |")[2].partition("\n\n")[0]
    told = {name for cell in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(.*?)`", cell)}
    sources = "".join(path.read_text() for path in (ROOT / "src" / "coterie").rglob("*.py"))
    written = set(re.findall(r'(?:\.note|\._note)\(\s*"([\w ]+)"', sources))
    assert told == written | {"refused"}
