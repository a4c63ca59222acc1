"""The page of promises: every test that it names exists, and every promise names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| promise ")]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_promise_names_a_test() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        assert len(NAMED.findall(row)) == 1, row


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE))))
def test_the_named_test_exists(file: str, name: str) -> None:
    assert name.startswith("test_")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
