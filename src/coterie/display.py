"""How things show themselves in notebooks: as cards, and as figures that can be saved.

Both are drawn in a layer above, which is loaded when a notebook asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import require
from coterie.files import write_whole
from coterie.registry import later

SCALE = 2.0
"""Pixels of an image for each of the page's."""


class Displayed:
    """Shows itself as a small card of HTML (`coterie.report.cards`)."""

    def _repr_html_(self) -> str:
        return str(later("coterie.report.cards:card")(self))


@dataclass(frozen=True)
class Figure:
    """A figure of a report (`coterie.report.figures`): notebooks show it, `save` writes it into a file.

    >>> figure = Figure('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    >>> figure
    Figure(62 letters of SVG)
    """

    svg: str

    def __repr__(self) -> str:
        return f"Figure({len(self.svg)} letters of SVG)"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write it into a .png, .pdf or .svg file; the same numbers give the same bytes, in a .pdf in any order."""
        target = required_format(Path(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, FORMATS[target.suffix.lower()](self.svg))
        return target


def required_format(path: Path) -> Path:
    """The same path; an error if its ending names no format of figures."""
    require(path.suffix.lower() in FORMATS, f"out = {path}: must end in {', '.join(FORMATS)}")
    return path


def _png(svg: str) -> bytes:
    from vl_convert import svg_to_png

    return bytes(svg_to_png(svg, scale=SCALE))


def _pdf(svg: str) -> bytes:
    from vl_convert import svg_to_pdf

    return bytes(svg_to_pdf(svg))


FORMATS: Mapping[str, Callable[[str], bytes]] = {".png": _png, ".pdf": _pdf, ".svg": str.encode}
