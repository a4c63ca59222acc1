"""A content as one HTML page that needs nothing else: no network, no other file. Free of PyTorch and NumPy."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

Content = dict[str, Any]
"""What a page shows, as plain values."""

ASSETS = files("coterie.report") / "assets"
# In the order in which they need each other.
CHARTS = ("kit.js", "curves.js", "clients.js", "quality.js", "learning.js", "graph.js", "several.js", "search.js")
"""The scripts that draw figures; pages and files have them in common."""


def rounded(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Numbers short enough for a page; none for what is not finite.

    >>> rounded([0.123456789, float("nan")])
    [0.12346, None]
    """
    return [round(float(value), digits) if math.isfinite(value) else None for value in values]


def html_page(content: Mapping[str, Any], scripts: Sequence[str], more_policy: str = "") -> str:
    """The page of a content. Its own style and scripts are the only ones that a browser will run."""
    style = asset("style.css")
    script = "'use strict';\n(() => {\n" + "\n".join(map(asset, scripts)) + "})();\n"
    ours = f"script-src {_digest(script)}; style-src {_digest(style)}"
    return Template(asset("page.html")).substitute(
        title=html.escape(f"{content['title']} – Coterie"),
        policy=f"default-src 'none'; {ours}{more_policy}",
        style=style,
        script=script,
        data=embedded(content),
    )


def embedded(content: Mapping[str, Any]) -> str:
    """A content as JSON that no text in it can break out of: letters that HTML minds are written as numbers.

    >>> embedded({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def light_colours() -> dict[str, str]:
    """The colours of pages on light ground, by name.

    >>> light_colours()["w2"]
    '#08306b'
    """
    return dict(re.findall(r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}),", asset("style.css")))


def asset(name: str) -> str:
    """The text of a file that pages are made of."""
    return (ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a page's policy names one script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
