"""The documentation site in a real browser: on a phone, in light and dark, searched from a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.website.__main__ import build

from report.browser import CHROMIUM, Tab, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium), and there is none"),
]
PHONE, DESK = (390, 844), (1300, 900)
GROUND = "getComputedStyle(document.body).backgroundColor"
# The field and the findings of the search stand in a tree of their own.
INSIDE = "[...document.querySelectorAll('*')].flatMap((one) => one.shadowRoot ?? [])"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("website")
    assert build(folder) == []
    return folder / "site"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


def test_no_page_is_wider_than_a_phone_or_asks_for_anything_elsewhere(site: Path, tab: Tab) -> None:
    tab.resize(*PHONE)
    for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # which a server shows, from its root
        tab.open(page)
        assert tab.ask("document.documentElement.scrollWidth") <= PHONE[0], page.name
        assert all(address.startswith(("file:", "data:", "blob:")) for address in tab.requests()), page.name
        assert tab.complaints() == [], page.name


def test_the_site_is_light_or_dark_as_the_visitor_prefers(site: Path, tab: Tab) -> None:
    tab.resize(*DESK)
    grounds = set()
    for scheme in ("light", "dark"):
        tab.prefer(scheme)
        tab.open(site / "index.html")
        grounds.add(tab.ask(GROUND))
    assert len(grounds) == 2


def test_search_works_for_pages_opened_from_a_disk(site: Path, tab: Tab) -> None:
    tab.resize(*DESK)
    tab.open(site / "index.html")
    tab.ask("document.querySelector('.md-search__button').click()")
    tab.until(f"{INSIDE}.some((root) => root.activeElement?.matches('input'))")
    tab.write("teacher")
    tab.until(f"{INSIDE}.some((root) => root.querySelector('a[href*=\"pfedcs.html\"]'))")
