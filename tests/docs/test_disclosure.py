"""The page on what leaves a site says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.deployment.disclosure import HEADER, disclosure, table
from coterie.deployment.server import Server
from coterie.methods import METHODS
from coterie.testing.together import agreed

PAGE = Path(__file__).parents[2] / "docs" / "what-leaves-a-site.md"


@pytest.mark.thorough
def test_the_table_is_the_one_that_the_code_gives() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index(HEADER[0])
    shown = lines[begin : begin + len(HEADER) + len(METHODS)]
    assert shown == table(), "print it anew with 'python -m coterie.deployment.disclosure'"


@pytest.mark.parametrize(
    ("method", "travels", "stays"),
    [
        ("local", "nothing", "the whole model"),
        ("fedavg", "model", "nothing"),
        ("fedper", "extractor", "classifier, batch-norm statistics"),
        ("ditto", "model", "personal model"),
    ],
)
def test_well_known_methods(method: str, travels: str, stays: str) -> None:
    found = disclosure(METHODS[method]())
    assert found.up == found.down == [travels]
    assert found.down_late == ""
    assert found.stays == stays


def test_methods_that_need_class_counts_are_named_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    servers = {name: Server(agreed(name, validation=0.2)) for name in METHODS}
    counting = sorted(name for name, server in servers.items() if server.federation.asks_class_counts)
    assert f"({', '.join(f'`{name}`' for name in counting)};" in text
