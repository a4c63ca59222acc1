"""The page that follows a row through a round: its program prints what it says, its paths are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.house import walked
from tools.round_diagram import PICTURE, drawing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_program_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    exec(compile(program, "docs/architecture.md", "exec", dont_inherit=True), {"__name__": "example"})
    said = re.findall(r"^prints `(.*?)`(?: and `(.*?)`)?(?=[.:])", PAGE, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == [line for lines in said for line in lines if line]


def test_every_path_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", PAGE)) - {"src/coterie/"}
    assert len(named) > 30
    missing = [path for path in named if not (ROOT / "src" / "coterie" / path).exists()]
    assert not missing


def test_the_diagram_is_what_its_script_draws() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawing(), "python tools/round_diagram.py draws it anew"


def test_its_sections_name_every_file_that_runs_in_a_recorded_round_and_no_other() -> None:
    sections = PAGE.partition("## 1. ")[2].partition("## The same row at a real site")[0]
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", sections))
    assert named == set(walked(ROOT / "src", "pfedcs"))
