"""Columns are sets: their algebra is that of Python's sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.columns import Columns

WIDTH = 24
spans = st.tuples(st.integers(0, WIDTH), st.integers(0, WIDTH))
column_sets = st.lists(spans, max_size=6).map(lambda found: Columns.of(*found))


def members(columns: Columns) -> set[int]:
    return {column for start, stop in columns.spans for column in range(start, stop)}


@pytest.mark.thorough
@given(st.lists(spans, max_size=8))
def test_of_is_the_union_of_its_spans(found: list[tuple[int, int]]) -> None:
    assert members(Columns.of(*found)) == {column for start, stop in found for column in range(start, stop)}


@pytest.mark.thorough
@given(column_sets, column_sets)
def test_algebra_is_that_of_sets(a: Columns, b: Columns) -> None:
    assert members(a | b) == members(a) | members(b)
    assert members(a - b) == members(a) - members(b)
    assert members(a & b) == members(a) & members(b)
    assert (a <= b) == (members(a) <= members(b))
    assert a.size == len(members(a))
    assert bool(a) == bool(members(a))


@given(column_sets, column_sets)
def test_equal_sets_are_equal_columns(a: Columns, b: Columns) -> None:
    """Spans are sorted, disjoint and maximal, whatever operations led to them."""
    for found in (a, b, a | b, a - b, a & b):
        starts_and_stops = [edge for span in found.spans for edge in span]
        assert starts_and_stops == sorted(set(starts_and_stops))
    assert (a == b) == (members(a) == members(b))
    assert (a - b) | (a & b) == a


@given(column_sets)
def test_take_gives_the_columns_in_order(columns: Columns) -> None:
    rows = torch.arange(2.0 * WIDTH).view(2, WIDTH)
    assert torch.equal(columns.take(rows), rows[:, sorted(members(columns))])
    assert torch.equal(columns.take(rows[0]), rows[0, sorted(members(columns))])


@given(column_sets)
def test_put_writes_what_take_reads_and_nothing_else(columns: Columns) -> None:
    rows = torch.full((2, WIDTH), -1.0)
    values = torch.arange(2.0 * columns.size).view(2, columns.size)
    columns.put(rows, values)
    assert torch.equal(columns.take(rows), values)
    others = Columns.of((0, WIDTH)) - columns
    assert bool((others.take(rows) == -1).all())


@given(column_sets, column_sets)
def test_within_gives_positions_in_the_compact_matrix(a: Columns, b: Columns) -> None:
    child, parent = a & b, b
    rows = torch.arange(float(WIDTH))[None]
    assert torch.equal(child.within(parent).take(parent.take(rows)), child.take(rows))


def test_within_refuses_columns_outside_the_parent() -> None:
    with pytest.raises(ValueError, match="outside"):
        Columns.of((0, 3)).within(Columns.of((1, 9)))


@pytest.mark.thorough
@given(column_sets, st.integers(1, WIDTH))
def test_blocks_cut_the_columns_into_narrow_pieces(columns: Columns, width: int) -> None:
    pieces = list(columns.blocks(width))
    assert all(len(piece.spans) == 1 and 1 <= piece.size <= width for piece in pieces)
    assert sum(piece.size for piece in pieces) == columns.size
    assert Columns.of(*(span for piece in pieces for span in piece.spans)) == columns


def test_one_span_is_a_view_and_several_are_a_copy() -> None:
    rows = torch.zeros(2, WIDTH)
    Columns.of((3, 5)).take(rows)[:] = 1
    Columns.of((8, 9), (11, 12)).take(rows)[:] = 1
    assert rows.sum() == 4
