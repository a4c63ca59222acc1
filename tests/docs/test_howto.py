"""How-tos do what their pages say: each file runs, prints what is shown, and stands on one page."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from types import ModuleType

import pytest
import tools.howto
import tools.website.shown
from tools.howto import differences, listed, output_of
from tools.website.shown import shown_files, with_files

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))
# Needs a SuperLink and SuperNodes of its own.
REAL = {"federation"}
RAY = {"ray_cluster"}
LONG = {"tune"}


def marks(file: Path) -> list[pytest.MarkDecorator]:
    found = [pytest.mark.thorough]
    if file.stem in REAL:
        found.append(pytest.mark.real)
    if file.stem in RAY:
        found.append(pytest.mark.ray)
    if file.stem in REAL | RAY | LONG:
        found.append(pytest.mark.slow)
    return found


@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem, marks=marks(file)) for file in listed()])
def test_a_file_prints_what_its_page_shows(file: Path) -> None:
    shown = file.with_suffix(".txt").read_text(encoding="utf-8")
    assert shown.strip()
    assert list(differences(shown, output_of(file))) == []


def test_every_file_is_shown_on_one_page_with_its_output() -> None:
    places = [
        name
        for page in PAGES
        for name in shown_files(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())
    ]
    assert sorted(places) == [file.relative_to(ROOT).as_posix() for file in listed()]


def test_the_site_shows_the_file_and_what_it_prints() -> None:
    made = with_files("see\n\n[tune.py](../../examples/howto/tune.py)\n", "docs/howto/tune.md")
    assert '```python title="examples/howto/tune.py"\n"""Tune by validation' in made
    assert "It prints:\n\n```text\n$ coterie sweep fedprox" in made


def test_the_index_lists_every_how_to() -> None:
    index = (ROOT / "docs" / "howto" / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w-]+\.md)", index))
    assert {page.name for page in PAGES} - {"index.md"} <= linked


@pytest.mark.parametrize("module", [tools.howto, tools.website.shown])
def test_examples_in_the_tools_hold(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted
    assert not outcome.failed


def test_a_difference_is_more_than_rounding() -> None:
    assert list(differences("a 0.50\nb 3", "a 0.52\nb 3")) == []
    assert list(differences("a 0.50\nb 3", "a 0.50\nb 4")) == ["b 4"]
    assert list(differences("a 0.50", "b 0.50")) == ["b 0.50"]
    assert list(differences("a", "a\nb")) == ["2 lines instead of 1"]
