"""Gather what the site is made of: pages from several folders of the repository, links between them kept whole."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from tools.website.notebook import page_of_notebook
from tools.website.reference import with_reference
from tools.website.shown import with_files

REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent
FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
# Pages that live outside docs/, and where they stand on the site.
ELSEWHERE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "CODE_OF_CONDUCT.md": "conduct.md"}
TABLES = "    # tables: a line for every page of results/ takes the place of this one"
ASSETS = ("style.css", "iframe-worker.js")
NOTEBOOKS = "examples/notebooks/"


def place_of(path: str) -> str | None:
    """Where a file of the repository stands on the site; None if it does not.

    >>> place_of("docs/methods/fedper.md"), place_of("results/pfedcs-table1.md"), place_of("src/coterie/rng.py")
    ('methods/fedper.md', 'tables/pfedcs-table1.md', None)
    >>> place_of("examples/notebooks/invent-a-method.ipynb")
    'notebooks/invent-a-method.md'
    """
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    folder, _, rest = path.partition("/")
    if folder == "docs" and rest:
        return rest
    if folder == "results" and rest.endswith((".md", ".svg", ".png")):
        return f"tables/{rest}"
    if path.startswith(NOTEBOOKS):
        return f"notebooks/{path.removeprefix(NOTEBOOKS)}".replace(".ipynb", ".md")
    return None


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """The text with its prose changed and its code blocks left alone."""
    return "".join(part if part.startswith("```") else change(part) for part in FENCE.split(text))


def with_links_of_the_site(text: str, path: str) -> str:
    """The page at `path` with links that hold on the site; one to a file that is not there names the file instead.

    >>> with_links_of_the_site("[so](../results/a.md#b), [code](../src/x.py)", "docs/page.md")
    '[so](tables/a.md#b), code (`src/x.py`)'
    """
    folder = PurePosixPath(path).parent
    here = PurePosixPath(place_of(path) or path).parent

    def moved(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        if target.startswith(("http://", "https://", "#", "mailto:")):
            return match[0]
        file, _, anchor = target.partition("#")
        meant = os.path.normpath(folder / file)
        place = place_of(meant)
        if place is None:
            named = f"`{meant}`"
            return named if label.strip("`") == meant else f"{label} ({named})"
        link = os.path.relpath(place, here)
        return f"{picture}[{label}]({link}{'#' + anchor if anchor else ''})"

    return outside_fences(text, lambda prose: LINK.sub(moved, prose))


def for_the_site(text: str, path: str) -> str:
    """A page as the site shows it. What a fence says to the tests (`console no-run`) is not for readers."""
    text = re.sub(r"^```(\w+) .*$", r"```\1", text, flags=re.MULTILINE)
    return with_reference(with_links_of_the_site(with_files(text, path), path))


def pages(repository: Path = REPOSITORY) -> list[Path]:
    """Every page of the repository that stands on the site."""
    found = [
        *repository.glob("*.md"),
        *(repository / "results").glob("*.md"),
        *(repository / "docs").rglob("*.md"),
        *(repository / NOTEBOOKS).glob("*.ipynb"),
    ]
    return sorted(page for page in found if place_of(page.relative_to(repository).as_posix()) is not None)


def configuration(repository: Path = REPOSITORY) -> str:
    """Zensical's configuration, whose navigation has every rebuilt table."""
    text = (HERE / "zensical.toml").read_text(encoding="utf-8")
    places = [place_of(page.relative_to(repository).as_posix()) for page in pages(repository)]
    tables = [f'    "{place}",' for place in places if place is not None and place.startswith("tables/")]
    return text.replace(TABLES, "\n".join(tables))


def assemble(folder: Path, repository: Path = REPOSITORY) -> None:
    """Write Zensical's project into `folder`: its configuration, and under `docs` the pages and what they show."""
    docs = folder / "docs"
    if docs.exists():
        shutil.rmtree(docs)
    shutil.copytree(repository / "docs", docs, ignore=shutil.ignore_patterns("*.md", "__pycache__", "*.py"))
    (docs / "tables").mkdir()
    for picture in [*(repository / "results").glob("*.svg"), *(repository / "results").glob("*.png")]:
        shutil.copyfile(picture, docs / "tables" / picture.name)
    for page in pages(repository):
        path = page.relative_to(repository).as_posix()
        place = docs / str(place_of(path))
        place.parent.mkdir(exist_ok=True)
        if page.suffix == ".ipynb":
            text, pictures = page_of_notebook(page, page.name)
            shutil.copyfile(page, place.with_name(page.name))
            for name, picture in pictures.items():
                place.with_name(name).write_bytes(picture)
        else:
            text = page.read_text(encoding="utf-8")
        place.write_text(for_the_site(text, path), encoding="utf-8")
    for name in ASSETS:
        (docs / "assets").mkdir(exist_ok=True)
        shutil.copyfile(HERE / name, docs / "assets" / name)
    (folder / "zensical.toml").write_text(configuration(repository), encoding="utf-8")
