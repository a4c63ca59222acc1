"""Mathematics in Markdown, as GitHub writes it (`$…$`, and fences called `math`), turned into MathML.

Browsers draw MathML themselves, so pages need neither a script nor fonts from elsewhere.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

# After code (190), in which a dollar is a dollar; before escapes (180), which would eat LaTeX's backslashes.
PRIORITY = 185
INLINE = r"(?<![\\\w$])\$(?=[^\s$])((?:\\.|[^$\\])+?)(?<!\s)\$(?![\w$])"
ALIGNED = re.compile(r"\s*\\begin\{aligned\}(.*)\\end\{aligned\}\s*", re.DOTALL)
OPEN = '<math xmlns="http://www.w3.org/1998/Math/MathML" display="{}">'


def inner(latex: str) -> str:
    """What stands inside the MathML element of a formula; an error for LaTeX that cannot be written so.

    >>> inner("x_k")
    '<mrow><msub><mi>x</mi><mi>k</mi></msub></mrow>'
    """
    made = convert(" ".join(latex.split()))
    inside = made[made.index(">") + 1 : -len("</math>")]
    if "\\" in inside or "<mi>&</mi>" in inside:
        raise ValueError(f"this LaTeX cannot be turned into MathML: {latex.strip()}")
    # Names of functions are operators to the converter; browsers would set them as far apart as a plus.
    return re.sub(r"<mo>([A-Za-z]+)</mo>", r'<mo lspace="0.12em" rspace="0.12em">\1</mo>', inside)


def mathml(latex: str, display: str = "inline") -> str:
    """A formula as a MathML element; `aligned` lines stand under each other, aligned at their `&`."""
    lines = ALIGNED.fullmatch(latex)
    if lines is None:
        return f"{OPEN.format(display)}{inner(latex)}</math>"
    rows = [line.split("&") for line in re.split(r"\\\\(?=\s)", lines[1]) if line.strip()]
    cells = ["".join(f"<mtd>{inner(cell) if cell.strip() else ''}</mtd>" for cell in row) for row in rows]
    table = "".join(f"<mtr>{row}</mtr>" for row in cells)
    return f'{OPEN.format(display)}<mtable class="aligned" displaystyle="true">{table}</mtable></math>'


def fence(source: str, language: str, css_class: str, options: Any, md: Markdown, **others: Any) -> str:
    """A fence called `math`: a formula on lines of its own."""
    return f'<div class="formula">{mathml(source, "block")}</div>'


class Inline(InlineProcessor):
    """`$…$` within a line."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]  # noqa: N802
        """The formula, put aside so that nothing else is read into it."""
        return self.md.htmlStash.store(mathml(m[1])), m.start(0), m.end(0)


class Mathematics(Extension):
    """Adds `$…$` to Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the pattern."""
        md.inlinePatterns.register(Inline(INLINE, md), "mathematics", PRIORITY)


def makeExtension(**options: Any) -> Mathematics:  # noqa: N802
    """What Markdown calls when it loads this module as an extension."""
    return Mathematics(**options)
