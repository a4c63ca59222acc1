"""The documentation site: built with warnings as errors, every page found, nothing fetched from elsewhere."""

from __future__ import annotations

import doctest
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tools.website.assemble
import tools.website.mathematics
import tools.website.reference
from markdown import Markdown
from tools.website.__main__ import build
from tools.website.assemble import REPOSITORY, configuration, for_the_site, pages, place_of
from tools.website.check import Page, problems
from tools.website.mathematics import mathml
from tools.website.reference import with_reference

import coterie
from coterie.methods import METHODS


def in_navigation(entry: Any) -> Iterator[str]:
    """Every page below an entry of Zensical's navigation."""
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from in_navigation(inner)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = list(in_navigation(tomllib.loads(configuration())["project"]["nav"]))
    there = {place_of(page.relative_to(REPOSITORY).as_posix()) for page in pages()}
    assert set(listed) == there, "the navigation stands in tools/website/zensical.toml"
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("module", [tools.website.assemble, tools.website.mathematics, tools.website.reference])
def test_examples_in_the_tools_hold(module: Any) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.thorough
def test_the_site_builds_without_warnings_and_without_faults(tmp_path: Path) -> None:
    assert build(tmp_path) == []
    site = tmp_path / "site"
    built = {page.relative_to(site).with_suffix(".md").as_posix() for page in site.rglob("*.html")}
    assert built - {"404.md"} == {place_of(page.relative_to(REPOSITORY).as_posix()) for page in pages()}
    assert (site / "search.js").stat().st_size > 100_000  # the index that pages opened from a disk search
    for script in site.glob("assets/*.js"):
        assert "http" not in script.read_text(encoding="utf-8")


def test_faults_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<nav><a href="index.html">start</a></nav><a href="lost.html">x</a><a href="#nowhere">y</a>'
        '<p id="here"><a href="#here">z</a><a href="https://example.org">fine</a><script src="https://example.org/a.js"></script>',
        encoding="utf-8",
    )
    (tmp_path / "alone.html").write_text('<nav><a href="alone.html">itself</a></nav>', encoding="utf-8")
    assert list(problems(tmp_path)) == [
        "alone.html: in no navigation",
        "index.html: fetches https://example.org/a.js",
        "index.html: lost.html leads nowhere",
        "index.html: #nowhere has no such anchor",
    ]


def test_pages_are_changed_as_the_site_needs_it_and_code_is_not() -> None:
    text = "see [a](../federation.md#b)\n\n```console no-run\n$ [x](../y.md)\n```\n"
    assert for_the_site(text, "docs/methods/fedper.md") == text.replace("console no-run", "console")
    assert for_the_site("[a](docs/data.md)", "CONTRIBUTING.md") == "[a](data.md)"
    assert for_the_site("[the units](../deploy)", "docs/operations.md") == "the units (`deploy`)"


def test_mathematics_becomes_mathml_and_code_stays_code(tmp_path: Path) -> None:
    html = Markdown(extensions=["tools.website.mathematics"]).convert(r"so $W_{ij} \ge 0$ and `$HOME`, 5 $ or 6 $.")
    page = tmp_path / "page.html"
    page.write_text(html, encoding="utf-8")
    assert Page(page).formulas == 1
    assert "<msub><mi>W</mi>" in html
    assert "<code>$HOME</code>, 5 $ or 6 $." in html


def test_aligned_formulas_stand_under_each_other() -> None:
    made = mathml("\\begin{aligned}\na &= b \\\\\nc &= d\n\\end{aligned}", "block")
    assert made.count("<mtr>") == 2
    assert made.count("<mtd>") == 4


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_methods_page_has_its_equations_as_mathematics(name: str) -> None:
    text = (REPOSITORY / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    (formula,) = re.findall(r"^```math\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert "<mtr>" in mathml(formula, "block")


def test_every_public_name_is_in_the_reference_once() -> None:
    folder = REPOSITORY / "docs" / "api"
    text = "\n".join(with_reference(page.read_text(encoding="utf-8")) for page in folder.glob("*.md"))
    listed = re.findall(r"^#+ .* \{ #([\w.]+) \}$", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(coterie.__all__) <= {name.rpartition(".")[2] for name in listed}
    needed = (
        "slots.Slot.rows",
        "layout.Layout.columns",
        "mixing.among",
        "exchange.Put",
        "federation.Federation.add_slot",
    )
    assert {f"coterie.core.{name}" for name in needed} <= set(listed)


@pytest.mark.parametrize("name", coterie.__all__)
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    """In its docstring or in one of its own members: all of them are doctests."""
    thing = getattr(coterie, name)
    if isinstance(thing, str):
        return
    told = [thing, *(vars(thing).values() if isinstance(thing, type) else ())]
    assert any(">>> " in (inspect.getdoc(one) or "") for one in told if isinstance(one, type) or callable(one))


def test_a_reference_to_what_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no Mixture with a docstring there"):
        with_reference("::: coterie.core.exchange: Mix, Mixture\n")


def test_a_signature_is_as_written() -> None:
    made = with_reference("::: coterie.core.mixing: embedded\n")
    assert "```python\nembedded(weights: Tensor, members: Tensor, clients: int) -> Tensor\n```" in made
    assert "```pycon\n>>> " in made


@pytest.mark.parametrize("latex", [r"\nosuchthing x", "a & b"])
def test_latex_that_cannot_be_shown_is_an_error(latex: str) -> None:
    with pytest.raises(ValueError, match="cannot be turned into MathML"):
        mathml(latex)
