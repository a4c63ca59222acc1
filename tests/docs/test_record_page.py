"""The page that follows a record from the round to the report: what it quotes is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import Struct

from coterie.errors import CoterieError
from coterie.runs import record
from coterie.runs.record import Line, Seconds, Travelled, as_text, lines_in_order

PAGE = (Path(__file__).parents[2] / "docs" / "record.md").read_text(encoding="utf-8")


def test_the_types_of_its_table_are_there() -> None:
    names = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert len(names) == 4
    assert all(issubclass(getattr(record, name), Struct) for name in names)


def test_the_error_that_it_quotes_is_what_is_said() -> None:
    lines = [
        as_text(Line(round=round, cohort=[0], seconds=Seconds(1, 0, 0), bytes=Travelled(8, 8))) for round in (1, 2, 3)
    ]
    lines[2] = lines[2].replace(b'"down":8', b'"down":"8"')
    with pytest.raises(CoterieError) as caught:
        lines_in_order(b"".join(lines), "rounds.jsonl")
    assert str(caught.value) in " ".join(PAGE.split())
