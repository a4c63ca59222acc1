"""Look at a built site: links lead somewhere, every page can be found, nothing is fetched from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes for which a browser fetches something on its own. Links (`a`) are followed only by readers.
FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "srcset")}


@dataclass
class Page(HTMLParser):
    """The addresses and anchors of one page."""

    path: Path
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    navigation: list[str] = field(default_factory=list)
    formulas: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.depth = 0  # how many `nav` elements are open
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element refers to."""
        self.depth += tag == "nav"
        self.formulas += tag == "math"
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.anchors.add(value)
            if tag == "a" and name == "href":
                self.links.append(value)
                if self.depth:
                    self.navigation.append(value)
            if (tag, name) in FETCHED:
                self.fetched.append(value)

    def handle_endtag(self, tag: str) -> None:
        """Leave a navigation."""
        self.depth -= tag == "nav"


def target_of(page: Page, address: str) -> tuple[Path, str]:
    """The file and the anchor that an address on a page means."""
    parts = urlsplit(address)
    file = page.path if not parts.path else page.path.parent / unquote(parts.path)
    file = Path(os.path.normpath(file))
    return (file / "index.html" if file.is_dir() else file), unquote(parts.fragment)


def problems(site: Path) -> Iterator[str]:
    """Everything that is wrong with a site, a line each."""
    found = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    start = found[site / "index.html"]
    listed = {target_of(start, address)[0] for address in start.navigation}
    for path, page in found.items():
        name = path.relative_to(site)
        if path not in listed:
            yield f"{name}: in no navigation"
        for address in page.fetched:
            if urlsplit(address).netloc:
                yield f"{name}: fetches {address}"
        for address in [*page.links, *page.fetched]:
            if urlsplit(address).scheme or urlsplit(address).netloc:
                continue
            file, anchor = target_of(page, address)
            if not file.exists():
                yield f"{name}: {address} leads nowhere"
            elif anchor and file in found and anchor not in found[file].anchors:
                yield f"{name}: {address} has no such anchor"
