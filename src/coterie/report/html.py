"""A content as one HTML page that needs nothing else: no network, no other file. Free of PyTorch."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

ASSETS = files("coterie.report") / "assets"


def html_page(content: Mapping[str, Any], scripts: Sequence[str], more_policy: str = "") -> str:
    """The page of a content. Its own style and scripts are the only ones that a browser will run."""
    style = _asset("style.css")
    script = "'use strict';\n(() => {\n" + "\n".join(map(_asset, scripts)) + "})();\n"
    own = f"script-src {_digest(script)}; style-src {_digest(style)}"
    return Template(_asset("page.html")).substitute(
        title=html.escape(f"{content['title']} – Coterie"),
        policy=f"default-src 'none'; {own}{more_policy}",
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


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a page's policy names one script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
