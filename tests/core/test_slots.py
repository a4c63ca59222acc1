"""Slots hold some columns once for everybody and the others per client; memory follows what is personal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.downloads import owed
from coterie.core.federation import Federation
from coterie.core.slots import Slot
from coterie.errors import CoterieError
from support import rows_of, tiny

WIDTH, CLIENTS = 12, 3
spans = st.tuples(st.integers(0, WIDTH), st.integers(0, WIDTH))
column_sets = st.lists(spans, max_size=4).map(lambda found: Columns.of(*found))
INITIAL = torch.arange(float(WIDTH))


def federation(model: str = "norm", **options: object) -> Federation:
    return tiny("fedper", model, **options).prepare().federation()


@pytest.mark.thorough
@given(column_sets, column_sets)
def test_a_slot_starts_as_the_initial_row_for_everybody(columns: Columns, shared: Columns) -> None:
    slot = Slot(INITIAL, CLIENTS, columns, shared)
    rows = slot.rows(torch.arange(CLIENTS))
    assert torch.equal(rows, columns.take(INITIAL)[None].expand(CLIENTS, -1))
    assert slot.shared.shape == (1, (columns & shared).size)
    assert slot.own.shape == (CLIENTS, (columns - shared).size)
    assert slot.width == columns.size


@pytest.mark.thorough
@given(column_sets, column_sets, column_sets)
def test_rows_of_some_columns_are_columns_of_the_rows(columns: Columns, shared: Columns, wanted: Columns) -> None:
    slot = Slot(INITIAL, CLIENTS, columns, shared)
    slot.own += 100 * torch.arange(1.0, CLIENTS + 1)[:, None]
    slot.shared -= 50
    wanted = wanted & columns
    some = torch.tensor([2, 0])
    assert torch.equal(slot.rows(some, wanted), wanted.within(columns).take(slot.rows(some)))


@given(column_sets, column_sets)
def test_written_values_are_read_back_and_nothing_else_moves(columns: Columns, shared: Columns) -> None:
    slot = Slot(INITIAL, CLIENTS, columns, shared)
    half = Columns.of((0, WIDTH // 2))
    own, common = slot.own_columns & half, slot.shared_columns & half
    values = -1.0 - torch.arange(2.0 * own.size).view(2, own.size)
    slot.write_own(torch.tensor([2, 0]), own, values)
    slot.write_shared(common, torch.full((1, common.size), -9.0))
    everyone = slot.rows(torch.arange(CLIENTS))
    assert torch.equal(own.within(columns).take(everyone)[[2, 0]], values)
    assert bool((common.within(columns).take(everyone) == -9).all())
    untouched = columns - own - common
    assert torch.equal(untouched.within(columns).take(everyone), untouched.take(INITIAL)[None].expand(CLIENTS, -1))
    assert torch.equal(own.within(columns).take(everyone)[1], own.take(INITIAL))


@pytest.mark.thorough
@given(column_sets, column_sets)
def test_copy_row_fills_the_columns_of_the_slot_only(columns: Columns, shared: Columns) -> None:
    slot = Slot(INITIAL, CLIENTS, columns, shared)
    slot.own += 100 * torch.arange(1.0, CLIENTS + 1)[:, None]
    out = torch.full((WIDTH,), -1.0)
    slot.copy_row(1, out)
    assert torch.equal(columns.take(out), slot.rows(torch.tensor([1]))[0])
    assert bool(((Columns.of((0, WIDTH)) - columns).take(out) == -1).all())


def test_rows_outside_the_slot_are_refused_rather_than_made_up() -> None:
    slot = Slot(INITIAL, CLIENTS, Columns.of((0, 4)), Columns())
    with pytest.raises(ValueError, match="outside"):
        slot.rows(torch.arange(CLIENTS), Columns.of((2, 6)))


def test_rows_are_new_and_the_initial_row_is_not_aliased() -> None:
    initial = INITIAL.clone()
    slot = Slot(initial, 1, Columns.of((0, WIDTH)), Columns.of((0, 5)))
    slot.rows(torch.tensor([0])).zero_()
    slot.own.zero_()
    slot.shared.zero_()
    assert torch.equal(initial, INITIAL)


def test_memory_follows_what_is_personal() -> None:
    whole = federation()
    width = whole.layout.width
    assert whole.add_slot("anchor", "all", shared="all").own.shape == (4, 0)
    assert whole.add_slot("own", "all").shared.shape == (1, 0)
    head = whole.add_slot("head", "classifier")
    assert head.own.shape == (4, whole.layout.columns("classifier").size)
    assert whole["model"].own.shape[1] + whole["model"].shared.shape[1] == width


def test_an_outline_has_everybodys_row_in_the_place_of_one() -> None:
    columns, shared = Columns.of((0, WIDTH)), Columns.of((0, 8))
    slot = Slot(INITIAL, CLIENTS, columns, shared, outline=True)
    assert slot.own.tolist() == [[8.0, 9.0, 10.0, 11.0]] * CLIENTS
    assert slot.own.stride(0) == 0  # one row in memory


def test_is_uniform_says_whether_anything_is_personal() -> None:
    shared = tiny("fedavg", "norm").prepare().federation()
    assert shared.is_uniform
    shared.add_value("prototypes", torch.zeros(4, 5))
    shared.add_value("memory", torch.zeros(4, 5), per_client=True, held_by="server")
    shared.add_slot("uploaded", held_by="server", follows="model")
    assert shared.is_uniform
    shared.add_slot("twin", shared="all + stats")
    assert shared.is_uniform
    some = tiny("fedavg", "norm").prepare().federation()
    some.add_slot("own", "classifier")
    assert not some.is_uniform
    shared.add_value("mask", torch.zeros(4, 5), per_client=True)
    assert not shared.is_uniform
    assert not federation().is_uniform
    assert not tiny("fedavg", "norm", stats="local").prepare().federation().is_uniform


def scrambled(whole: Federation) -> Federation:
    whole.add_slot("teacher", "classifier")
    whole.add_value("scores", torch.rand(4, 2), per_client=True)
    for slot in whole.slots.values():
        slot.shared.uniform_()
        slot.own.uniform_()
        slot.tracks.trained(torch.tensor([1]), sent=whole.layout.columns("bn"))
        slot.tracks.wrote(whole.layout.columns("norm + classifier"), torch.tensor([0, 3]), mark=4)
    whole.write_value("scores", torch.rand(4, 2), mark=6)
    whole.rounds_taken[2], whole.last_round[2] = 3, 5
    return whole


def test_state_and_restore_are_inverse() -> None:
    before, after = scrambled(federation()), federation()
    after.add_slot("teacher", "classifier")
    after.add_value("scores", torch.zeros(4, 2), per_client=True)
    state = {name: tensor.clone() for name, tensor in before.state()}
    after.restore(state)
    again = dict(after.state())
    assert again.keys() == state.keys()
    for name, tensor in again.items():
        assert torch.equal(tensor, state[name]), name
    assert torch.equal(rows_of(after), rows_of(before))
    assert after.taken_part.tolist() == [False, False, True, False]
    assert [owed(after, client) for client in range(4)] == [owed(before, client) for client in range(4)]
    assert owed(before, 0).slots


def test_a_value_is_declared_before_it_is_written() -> None:
    with pytest.raises(CoterieError, match="value 'prototypes'"):
        federation().write_value("prototypes", torch.rand(3), mark=2)


@pytest.mark.parametrize("wrong", [torch.zeros(1, 3), torch.zeros(4), torch.zeros(3, dtype=torch.float64)])
def test_a_value_keeps_the_shape_and_kind_that_it_was_declared_with(wrong: Tensor) -> None:
    whole = federation()
    whole.add_value("prototypes", torch.zeros(3))
    with pytest.raises(CoterieError, match=r"value 'prototypes': .* was put where torch.float32 \(3,\) was declared"):
        whole.write_value("prototypes", wrong, mark=2)
    assert torch.equal(whole.values["prototypes"], torch.zeros(3))


@pytest.mark.parametrize("start", [torch.zeros(3, 2), torch.tensor(0.0)])
def test_a_value_per_client_needs_a_row_for_each(start: Tensor) -> None:
    with pytest.raises(CoterieError, match=r"value 'mask': has the shape .*, but 4 clients are to have one each"):
        federation().add_value("mask", start, per_client=True)


def test_a_value_is_read_as_a_client_has_it() -> None:
    """Four entries are no sign of being one per client: what was declared counts."""
    whole = federation()
    whole.add_value("common", torch.arange(4.0))
    whole.add_value("own", torch.arange(4.0), per_client=True)
    assert whole.value_of("common", 2).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert whole.value_of("own", 2).tolist() == 2.0
    with pytest.raises(CoterieError, match="value 'onw'"):
        whole.value_of("onw", 2)


def test_restored_state_is_not_aliased() -> None:
    before, after = federation(), federation()
    state: dict[str, Tensor] = dict(before.state())
    after.restore(state)
    after["model"].own.fill_(3.0)
    assert not bool((before["model"].own == 3).any())


@pytest.mark.parametrize("word", ["received", "upload"])
def test_words_that_terms_and_mixes_use_are_no_names_of_slots(word: str) -> None:
    with pytest.raises(CoterieError, match=f"slot '{word}': the word is reserved"):
        federation().add_slot(word)
