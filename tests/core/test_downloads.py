"""What a client is owed: all that was written for it since its upload last counted, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from coterie.client.recipe import Keep, Phase, Recipe
from coterie.core.applying import apply
from coterie.core.columns import Columns
from coterie.core.downloads import begin_anew, owed, owed_bytes, tensor_bytes
from coterie.core.exchange import Action, ClientRows, Drop, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size, identity, uniform
from coterie.core.tracks import exchange_mark
from coterie.engines import Trained
from coterie.methods import Method
from coterie.rounds.collect import collect
from coterie.rounds.delivery import Delivery
from support import tiny

CLIENTS = 4


@dataclass(frozen=True)
class Everything(Method):
    """Has one of each: a shared extractor, classifiers mixed for the cohort, teachers, values, memory on both sides."""

    shared: ClassVar[str] = "extractor"
    stats: ClassVar[str] = "local"

    def init(self, federation: Federation) -> None:
        federation.add_slot("teacher", "classifier")
        federation.add_slot("kept", "classifier", held_by="client")
        federation.add_slot("uploaded", "classifier", held_by="server", follows="model")
        federation.add_value("prototypes", torch.zeros(3, 2))
        federation.add_value("own", torch.zeros(CLIENTS, 5, dtype=torch.bool), per_client=True)
        federation.add_value("remembered", torch.zeros(CLIENTS), per_client=True, held_by="client")
        federation.add_value("notes", torch.zeros(7), held_by="server")

    def recipe(self, federation: Federation) -> Recipe:
        return (Phase(), Keep("kept", lambda rows: rows.after(group="classifier")))

    def uploads(self, federation: Federation) -> dict[str, str]:
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        yield Mix(by_size(uploads), "extractor")
        yield Mix(uniform(len(uploads.cohort)), "classifier")
        yield Put("prototypes", torch.ones(3, 2))
        yield Put("notes", torch.ones(7))

    def deliver(self, federation: Federation, clients: Tensor) -> Iterable[Mix]:
        if federation.round > 2:
            yield Mix(identity(CLIENTS)[clients], "classifier", source="model", target="teacher")


class Story:
    """A federation told round by round who takes part, whose upload counts, and what the server does."""

    def __init__(self, method: Method | None = None) -> None:
        self.method = Everything() if method is None else method
        self.federation = tiny(self.method, "norm", clients=CLIENTS).prepare().federation()
        self.layout = self.federation.layout
        self.owed_at_download: dict[int, object] = {}

    def round(
        self,
        *cohort: int,
        diverged: tuple[int, ...] = (),
        actions: Iterable[Action] | None = None,
        abandoned: bool = False,
    ) -> None:
        federation, ids = self.federation, torch.tensor(cohort)
        federation.round += 1
        delivery = Delivery(self.method, federation, ids)
        self.owed_at_download = {client: owed(federation, client) for client in cohort}
        if abandoned:
            delivery.undo()
            federation.round -= 1
            return
        rows = federation["model"].rows(ids) + 1.0
        rows[torch.isin(ids, torch.tensor(diverged))] = torch.nan
        recipe, uploads = self.method.recipe(federation), self.method.uploads(federation)
        collected = collect(federation, recipe, uploads, ids, Trained({"model": rows}))
        sent, gone = collected.uploads, collected.diverged
        assert gone == list(diverged)
        delivery.undo(torch.tensor(gone, dtype=torch.int64))
        made = self.method.exchange(sent) if actions is None else actions
        apply(made, federation, sent, exchange_mark(federation.round))

    def slots(self, client: int) -> dict[str, Columns]:
        return dict(owed(self.federation, client).slots)

    def columns(self, group: str) -> Columns:
        return self.layout.columns(group)


@pytest.fixture
def story() -> Story:
    return Story()


def test_before_the_first_exchange_nobody_is_owed_anything(story: Story) -> None:
    """Initial rows and what values start as are known to all."""
    for client in range(CLIENTS):
        assert owed(story.federation, client).slots == {}
        assert owed(story.federation, client).values == ()
    assert owed_bytes(story.federation, story.federation.everyone).tolist() == [0] * CLIENTS


def test_whoever_was_never_sampled_is_owed_what_was_written_for_all(story: Story) -> None:
    story.round(0, 1)
    story.round(0, 1)
    assert story.slots(3) == {"model": story.columns("extractor")}
    assert owed(story.federation, 3).values == ("prototypes",)


def test_the_cohort_is_owed_what_was_written_after_it_trained(story: Story) -> None:
    story.round(0, 1)
    assert story.slots(0) == {"model": story.columns("all")}


def test_what_a_client_had_before_it_trained_is_not_owed_again(story: Story) -> None:
    story.round(0, 1)
    story.round(0, 1, actions=[])
    assert story.slots(0) == {}
    assert owed(story.federation, 0).values == ()
    assert story.slots(2) == {"model": story.columns("extractor")}, "who was not there has still not got it"


def test_whoever_returns_is_owed_what_it_missed(story: Story) -> None:
    """The extractor and prototypes of round 1's exchange, the classifier and masks of round 3's."""
    story.round(0, 1)
    story.round(1, 2, actions=[])
    story.round(1, 2, actions=[Mix(uniform(2), "classifier", to="everyone"), Put("own", torch.ones(4, 5) > 0)])
    assert story.slots(0) == {"model": story.columns("all")}
    assert story.slots(1) == {"model": story.columns("classifier")}
    assert owed(story.federation, 0).values == ("prototypes", "own")
    assert owed(story.federation, 1).values == ("own",)


def test_a_round_in_which_it_diverged_does_not_count(story: Story) -> None:
    story.round(0, 1)
    before = owed(story.federation, 1)
    story.round(0, 1, diverged=(1,), actions=[])
    assert owed(story.federation, 1) == before
    assert owed(story.federation, 0).slots == {}
    assert story.federation.rounds_taken.tolist() == [2, 1, 0, 0]
    assert story.federation.last_round.tolist() == [2, 1, 0, 0]


def test_a_first_round_in_which_it_diverged_leaves_it_new(story: Story) -> None:
    story.round(0, 1, diverged=(1,))
    assert owed(story.federation, 1) == owed(story.federation, 3)


def test_what_is_delivered_is_owed_once(story: Story) -> None:
    for _ in range(3):
        story.round(0, 1, actions=[])
    assert {client: dict(due.slots) for client, due in story.owed_at_download.items()} == {
        client: {"teacher": story.columns("classifier")} for client in (0, 1)
    }
    assert story.slots(0) == story.slots(2) == {}


def test_a_delivery_that_is_undone_is_not_owed(story: Story) -> None:
    for _ in range(2):
        story.round(0, 1, actions=[])
    teachers = story.federation["teacher"].own.clone()
    story.round(0, 1, diverged=(1,), actions=[])
    assert story.slots(1) == {}
    assert torch.equal(story.federation["teacher"].own[1], teachers[1])
    assert not torch.equal(story.federation["teacher"].own[0], teachers[0])


def test_an_abandoned_round_leaves_no_trace(story: Story) -> None:
    for _ in range(2):
        story.round(0, 1)
    before = {name: tensor.clone() for name, tensor in story.federation.state() if "tracks" not in name}
    due = [owed(story.federation, client) for client in range(CLIENTS)]
    story.round(0, 2, abandoned=True)
    assert "teacher" in story.owed_at_download[0].slots
    assert [owed(story.federation, client) for client in range(CLIENTS)] == due
    after = dict(story.federation.state())
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_client_of_whom_nothing_is_gated_is_owed_nothing(story: Story) -> None:
    width = story.columns("classifier").size
    gate = torch.zeros(CLIENTS, width, dtype=torch.bool)
    gate[2, 3] = True
    story.round(0, 1, actions=[Mix(uniform(2), "classifier", to="everyone", gate=gate)])
    assert [story.slots(client) for client in (0, 1, 3)] == [{}, {}, {}]
    assert story.slots(2) == {"model": story.columns("classifier")}


def test_a_mix_for_named_clients_is_owed_to_them(story: Story) -> None:
    story.round(0, 1, actions=[Mix(uniform(2), "classifier", to=torch.tensor([1, 3]))])
    assert [bool(story.slots(client)) for client in range(CLIENTS)] == [False, True, False, True]


def test_what_was_dropped_is_owed_to_nobody(story: Story) -> None:
    mix = Mix(uniform(2), "classifier", target="teacher", to="everyone")
    story.round(0, 1, actions=[mix])
    assert [story.slots(client) for client in range(CLIENTS)] == [{"teacher": story.columns("classifier")}] * CLIENTS
    story.round(0, 1, actions=[Drop("teacher")])
    assert [story.slots(client) for client in range(CLIENTS)] == [{}] * CLIENTS
    story.round(0, 1, actions=[mix])
    assert story.slots(3) == {"teacher": story.columns("classifier")}, "unless it is written again"


def test_a_step_that_is_not_finite_is_not_owed(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    story.round(0, 1, actions=[Put("model", torch.full((1, story.columns("extractor").size), torch.inf), "extractor")])
    assert "not finite" in caplog.text
    assert story.slots(3) == {}


@pytest.mark.parametrize("per_client", [False, True])
def test_a_value_whose_start_depends_on_others_is_told_once(story: Story, per_client: bool) -> None:
    federation = story.federation
    federation.add_value("shares", torch.ones(CLIENTS, dtype=torch.float64), per_client=per_client, told=True)
    assert [owed(federation, client).values for client in range(CLIENTS)] == [("shares",)] * CLIENTS
    assert owed_bytes(federation, federation.everyone).tolist() == [8 if per_client else 8 * CLIENTS] * CLIENTS
    story.round(0, 1, actions=[])
    assert [owed(federation, client).values for client in range(CLIENTS)] == [(), (), ("shares",), ("shares",)]


def test_what_one_side_keeps_for_itself_is_never_owed(story: Story) -> None:
    for _ in range(3):
        story.round(0, 1)
    federation = story.federation
    for client in range(CLIENTS):
        begin_anew(federation, client)
        due = owed(federation, client)
        assert not due.slots.keys() & {"kept", "uploaded"}
        assert not set(due.values) & {"remembered", "notes"}


def test_whoever_lost_what_it_kept_is_owed_all_that_the_server_has(story: Story) -> None:
    story.round(0, 1)
    story.round(0, 1, actions=[])
    assert story.slots(0) == {}
    begin_anew(story.federation, 0)
    due = owed(story.federation, 0)
    assert due.slots == {"model": story.columns("all"), "teacher": story.columns("classifier")}
    assert due.values == ("prototypes", "own")
    assert owed_bytes(story.federation, torch.tensor([0, 1])).tolist() == [bytes_of(story, 0), 0]
    story.round(0, 1, actions=[])
    assert story.slots(0) == {}, "once its upload counts again, it has everything"


def test_whoever_lost_what_it_never_sent_is_not_sent_the_initial_row_for_it() -> None:
    """FedPer's classifier has gone with the disk."""
    story = Story(tiny("fedper").prepare().method)
    story.round(0, 1)
    story.round(0, 1)
    begin_anew(story.federation, 0)
    assert story.slots(0) == {"model": story.columns("extractor")}


def test_what_a_client_sent_and_nobody_wrote_comes_back_to_it_alone() -> None:
    """A personal model that is uploaded and not mixed: the server's copy is all that is left of it."""

    @dataclass(frozen=True)
    class Collected(Method):
        shared: ClassVar[str] = ""

        def uploads(self, federation: Federation) -> dict[str, str]:
            return {"model": "all"}

    story = Story(Collected())
    story.round(0, 1)
    story.round(0, 1)
    assert [story.slots(client) for client in range(CLIENTS)] == [{}] * CLIENTS
    begin_anew(story.federation, 0)
    assert story.slots(0) == {"model": story.columns("all")}
    assert [story.slots(client) for client in (1, 2, 3)] == [{}] * 3


def bytes_of(story: Story, client: int) -> int:
    due = owed(story.federation, client)
    columns = sum(columns.size for columns in due.slots.values())
    return 4 * columns + sum(tensor_bytes(story.federation.value_of(name, client)) for name in due.values)


def test_bytes_are_those_of_what_is_owed(story: Story) -> None:
    story.federation.add_value("shares", torch.ones(CLIENTS, 9), per_client=True, told=True)
    found = []
    for cohort, actions in (((0, 1), None), ((1, 2), []), ((0, 2), [Put("own", torch.ones(4, 5) > 0)]), ((0, 1), None)):
        story.round(*cohort, actions=actions)
        expected = [bytes_of(story, client) for client in range(CLIENTS)]
        assert owed_bytes(story.federation, story.federation.everyone).tolist() == expected
        found.append(expected)
    assert len({tuple(one) for one in found}) == 4


def test_memory_of_the_server_is_filled_from_uploads_that_count(story: Story) -> None:
    head = story.columns("classifier")
    first = story.federation["uploaded"].own.clone()
    story.round(0, 1, diverged=(1,), actions=[])
    rows = story.federation["uploaded"].own
    assert torch.equal(rows[0], first[0] + 1)
    assert torch.equal(rows[1:], first[1:])
    assert torch.equal(rows, story.federation["model"].rows(story.federation.everyone, head))


def test_memory_of_the_server_may_be_made_from_what_was_sent() -> None:
    def displacement(rows: ClientRows) -> Tensor:
        return rows.after(group="classifier") - rows.before(group="classifier")

    story = Story(tiny("fedavg").prepare().method)
    story.federation.add_slot("update", "classifier", fill=0.0, held_by="server", follows=displacement)
    story.round(0, 2, actions=[])
    found = story.federation["update"].own
    assert torch.allclose(found[[0, 2]], torch.ones(2, story.columns("classifier").size), atol=1e-6)
    assert not bool(found[[1, 3]].any())
