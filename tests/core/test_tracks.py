"""What the server wrote and what it knows, against a model that looks at one column of one client at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.tracks import EVER, Tracks, delivery_mark, exchange_mark

WIDTH, CLIENTS, MARKS = 10, 3, 6
spans = st.tuples(st.integers(0, WIDTH), st.integers(0, WIDTH))
column_sets = st.lists(spans, max_size=3).map(lambda found: Columns.of(*found))
client_sets = st.lists(st.integers(0, CLIENTS - 1), unique=True, max_size=CLIENTS)
marks = st.integers(1, MARKS)
Place = tuple[int, int]  # client, column


def each(columns: Columns) -> list[int]:
    return [column for start, stop in columns.spans for column in range(start, stop)]


def as_columns(found: list[int]) -> Columns:
    return Columns.of(*((column, column + 1) for column in found))


def ids(clients: list[int]) -> Tensor:
    return torch.tensor(clients, dtype=torch.int64)


@dataclass
class Naive:
    """The same bookkeeping without stretches: a mark and a yes or no for every column of every client."""

    shared: Columns
    own: Columns
    mark: dict[Place, int] = field(init=False)
    known: dict[Place, bool] = field(init=False)

    def __post_init__(self) -> None:
        places = [(client, column) for client in range(CLIENTS) for column in each(self.shared | self.own)]
        self.mark, self.known = dict.fromkeys(places, 0), dict.fromkeys(places, True)

    def wrote(self, columns: Columns, clients: list[int], mark: int) -> None:
        for place in self.mark:
            if place[0] in clients and place[1] in each(columns):
                self.mark[place], self.known[place] = mark, True

    def trained(self, clients: list[int], sent: Columns) -> None:
        for client, column in self.known:
            if client in clients and column in each(self.own):
                self.known[client, column] = column in each(sent)

    def owed(self, client: int, since: int) -> Columns:
        """What was written since; if nothing of the past counts, what the server has of the client too."""
        return as_columns(
            [
                column
                for (whose, column), mark in self.mark.items()
                if whose == client and (mark > max(since, 0) or (since == EVER and self.known[whose, column]))
            ]
        )

    def strangers(self, clients: list[int], columns: Columns) -> set[int]:
        return {
            client
            for (client, column), known in self.known.items()
            if client in clients and column in each(columns) and not known
        }


@dataclass
class Both:
    """The two of them, told the same."""

    tracks: Tracks
    naive: Naive

    def check(self) -> None:
        tracks, naive = self.tracks, self.naive
        covered = [column for stretch in tracks.stretches for column in each(stretch.columns)]
        assert sorted(covered) == each(naive.shared | naive.own), "stretches are disjoint and cover the slot"
        for client in range(CLIENTS):
            for since in (EVER, 0, 1, MARKS // 2, MARKS):
                assert tracks.owed(client, since) == naive.owed(client, since)
        since = [EVER, 0, MARKS // 2]
        counts = tracks.owed_counts(torch.arange(CLIENTS), torch.tensor(since))
        assert counts.tolist() == [naive.owed(client, since[client]).size for client in range(CLIENTS)]

    def check_unknown(self, clients: list[int], columns: Columns) -> None:
        found, expected = self.tracks.unknown(ids(clients), columns), self.naive.strangers(clients, columns)
        assert found in expected if expected else found is None


Step = Callable[[Both], None]


def wrote(columns: Columns, clients: list[int] | None, mark: int) -> Step:
    def step(both: Both) -> None:
        both.tracks.wrote(columns, None if clients is None else ids(clients), mark)
        both.naive.wrote(columns, list(range(CLIENTS)) if clients is None else clients, mark)

    return step


def trained(clients: list[int], sent: Columns) -> Step:
    def step(both: Both) -> None:
        both.tracks.trained(ids(clients), sent)
        both.naive.trained(clients, sent)

    return step


def forgotten(both: Both) -> None:
    both.tracks.forget_marks()
    both.naive.mark = dict.fromkeys(both.naive.mark, 0)


def saved_and_restored(both: Both) -> None:
    state = {name: tensor.clone() for name, tensor in both.tracks.state()}
    both.tracks = Tracks(both.naive.shared, both.naive.own, CLIENTS)
    both.tracks.restore(**state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in both.tracks.state())


def undone(clients: list[int], *steps: Step) -> Step:
    """Some steps, after which some clients get back what was before them."""

    def step(both: Both) -> None:
        before, mark, known = both.tracks.copy(), dict(both.naive.mark), dict(both.naive.known)
        for one in steps:
            one(both)
        both.tracks.put_back(before, ids(clients))
        for place in both.naive.mark:
            if place[0] in clients:
                both.naive.mark[place], both.naive.known[place] = mark[place], known[place]

    return step


plain_steps = st.one_of(
    st.builds(wrote, column_sets, st.none() | client_sets, marks),
    st.builds(trained, client_sets, column_sets),
    st.just(forgotten),
)
steps = st.one_of(
    plain_steps,
    st.just(saved_and_restored),
    st.builds(lambda clients, inner: undone(clients, *inner), client_sets, st.lists(plain_steps, max_size=3)),
)


@pytest.mark.thorough
@given(column_sets, column_sets, st.lists(steps, max_size=8), client_sets, column_sets)
def test_tracks_are_those_of_every_single_column(
    columns: Columns, shared: Columns, told: list[Step], clients: list[int], read: Columns
) -> None:
    both = Both(Tracks(columns & shared, columns - shared, CLIENTS), Naive(columns & shared, columns - shared))
    both.check()
    for step in told:
        step(both)
        both.check()
    both.check_unknown(clients, read)
    both.check_unknown(list(range(CLIENTS)), columns)


def test_a_cut_gives_neither_part_the_others_marks() -> None:
    tracks = Tracks(Columns(), Columns.of((0, 10)), CLIENTS)
    tracks.wrote(Columns.of((0, 10)), ids([0, 1]), mark=2)
    tracks.wrote(Columns.of((3, 5)), ids([1]), mark=4)
    assert tracks.owed(1, since=2) == Columns.of((3, 5))
    assert tracks.owed(1, since=1) == tracks.owed(0, since=1) == Columns.of((0, 10))
    assert tracks.owed(0, since=2) == tracks.owed(2, since=0) == Columns()


def test_what_clients_train_of_shared_columns_is_of_no_account() -> None:
    """Nobody keeps a row of its own there."""
    tracks = Tracks(Columns.of((0, 4)), Columns.of((4, 10)), CLIENTS)
    tracks.trained(ids([1]), sent=Columns())
    assert tracks.unknown(ids([0, 1, 2]), Columns.of((0, 4))) is None
    assert tracks.unknown(ids([0, 1, 2]), Columns.of((3, 5))) == 1
    assert tracks.unknown(ids([0, 2]), Columns.of((0, 10))) is None


def test_what_was_sent_is_known_until_it_is_trained_again() -> None:
    tracks, everything = Tracks(Columns(), Columns.of((0, 10)), CLIENTS), Columns.of((0, 10))
    tracks.trained(ids([1]), sent=everything)
    assert tracks.unknown(ids([1]), everything) is None
    tracks.trained(ids([1]), sent=Columns.of((0, 2)))
    assert tracks.unknown(ids([1]), everything) == 1
    assert tracks.owed(1, since=0) == Columns(), "what a client sent is not owed to it"
    tracks.wrote(Columns.of((2, 10)), ids([1]), mark=2)
    assert tracks.unknown(ids([1]), everything) is None


def test_copies_do_not_change_with_the_tracks() -> None:
    tracks = Tracks(Columns(), Columns.of((0, 10)), CLIENTS)
    before = tracks.copy()
    tracks.wrote(Columns.of((0, 10)), None, mark=3)
    tracks.put_back(before, ids([2]))
    assert [tracks.owed(client, since=0).size for client in range(CLIENTS)] == [10, 10, 0]


def test_an_empty_slot_has_an_empty_state() -> None:
    tracks = Tracks(Columns(), Columns(), CLIENTS)
    state = dict(tracks.state())
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
        "spans": (0, 3),
        "marks": (0, CLIENTS),
        "known": (0, CLIENTS),
    }
    tracks.restore(**state)
    assert tracks.stretches == []


def test_marks_are_in_the_order_in_which_things_happen() -> None:
    found = [mark(round) for round in range(1, 5) for mark in (delivery_mark, exchange_mark)]
    assert found == sorted(set(found))
    assert found[0] > 0, "a mark of 0 is that of what was never written"
