"""The server's view of a federation: what clients changed and did not send cannot be read, whichever way one tries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.core.applying import apply
from coterie.core.columns import Columns
from coterie.core.exchange import Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.tracks import exchange_mark
from coterie.engines import Trained
from coterie.errors import CoterieError
from coterie.rounds.collect import collect
from support import tiny

CLIENTS = 4
COHORT = torch.tensor([1, 2])
MARK = exchange_mark(1)


def after_training(sent: str = "extractor") -> tuple[Federation, Uploads]:
    """Clients 1 and 2 have trained personal models, and sent one group of them."""
    federation = tiny("local", "norm", clients=CLIENTS).prepare().federation()
    federation.add_slot("kept", "classifier", held_by="client")
    federation.add_slot("memory", "classifier", held_by="server")
    federation.round = 1
    rows = federation["model"].rows(COHORT) + torch.randn(2, federation["model"].width)
    collected = collect(federation, (), {"model": sent}, COHORT, Trained({"model": rows}))
    assert collected.diverged == []
    return federation, collected.uploads


def one_hot(*chosen: int) -> Tensor:
    """A row of weights for each of the clients that learns from just one other."""
    return torch.eye(CLIENTS)[list(chosen)]


def test_rows_that_were_sent_are_read_as_they_are() -> None:
    federation, uploads = after_training()
    extractor = federation.layout.columns("extractor")
    seen = uploads.federation["model"].rows(federation.everyone, extractor)
    assert torch.equal(seen, federation["model"].rows(federation.everyone, extractor))
    assert torch.equal(seen[COHORT], uploads.rows("extractor"))


@pytest.mark.parametrize("group", ["classifier", "all"])
def test_rows_that_were_not_sent_cannot_be_read(group: str) -> None:
    federation, uploads = after_training()
    columns = federation.layout.columns(group)
    with pytest.raises(CoterieError, match=r"slot 'model' of client 1 is read on the server, but .* upload it, or"):
        uploads.federation["model"].rows(federation.everyone, columns)
    with pytest.raises(CoterieError, match="slot 'model' of client 2"):
        uploads.federation["model"].rows(torch.tensor([0, 2]))


def test_initial_rows_are_known_to_all() -> None:
    federation, uploads = after_training()
    seen = uploads.federation["model"].rows(torch.tensor([0, 3]))
    assert torch.equal(seen, federation["model"].columns.take(federation.initial).expand(2, -1))


def test_what_the_server_wrote_it_knows() -> None:
    federation, uploads = after_training("all")
    head = federation.layout.columns("classifier")
    apply([Mix(torch.tensor([[0.5, 0.5]]), "classifier", to="everyone")], federation, uploads, MARK)
    collect(
        federation,
        (),
        {"model": "extractor"},
        torch.tensor([3]),
        Trained({"model": torch.ones(1, head_width(federation))}),
    )
    view = federation.as_seen_by_server()
    assert torch.equal(view["model"].rows(torch.tensor([0, 1, 2]), head)[0], uploads.rows("classifier").mean(0))
    with pytest.raises(CoterieError, match="slot 'model' of client 3"):
        view["model"].rows(torch.tensor([3]), head)


def head_width(federation: Federation) -> int:
    return federation["model"].width


def test_columns_read_directly_are_no_way_round() -> None:
    _, uploads = after_training()
    assert uploads.federation["model"].own.shape[0] == 0
    assert uploads.federation["kept"].own.shape[0] == 0


def test_slots_of_clients_cannot_be_read_at_all() -> None:
    federation, uploads = after_training("all")
    with pytest.raises(
        CoterieError, match="slot 'kept' is held by clients alone, but is read on the server; upload it"
    ):
        uploads.federation["kept"].rows(torch.tensor([0]))
    with pytest.raises(CoterieError, match="slot 'kept' is held by clients alone"):
        apply([Mix(torch.eye(CLIENTS), "classifier", source="kept", to="everyone")], federation, uploads, MARK)


def test_values_of_clients_are_not_there() -> None:
    federation, _ = after_training()
    for name, held_by in (("both", "both"), ("server", "server"), ("client", "client")):
        federation.add_value(name, torch.zeros(2), held_by=held_by)
    assert set(federation.as_seen_by_server().values) == {"both", "server"}
    assert set(federation.values) == {"both", "server", "client"}
    with pytest.raises(CoterieError, match="value 'client'"):
        federation.as_seen_by_server().value_of("client", 0)


def test_memory_of_the_server_is_always_readable() -> None:
    federation, uploads = after_training("")
    assert uploads.federation["memory"].rows(federation.everyone).shape[0] == CLIENTS


def test_a_mix_of_rows_that_were_not_sent_is_refused_and_writes_nothing() -> None:
    federation, uploads = after_training()
    before = federation["model"].own.clone()
    with pytest.raises(CoterieError, match="slot 'model' of client 1"):
        apply(
            [Mix(torch.full((CLIENTS, CLIENTS), 0.25), "classifier", "model", to="everyone")], federation, uploads, MARK
        )
    assert torch.equal(federation["model"].own, before)


def test_rows_of_weight_zero_are_not_read() -> None:
    """Clients 0 and 3 have never trained: the others may learn from them, but not the other way round."""
    federation, uploads = after_training()
    head = federation.layout.columns("classifier")
    with pytest.raises(CoterieError, match="slot 'model' of client 2"):
        apply([Mix(one_hot(0, 3, 2, 3), "classifier", "model", to="everyone")], federation, uploads, MARK)
    apply([Mix(one_hot(0, 3, 3, 3), "classifier", "model", to="everyone")], federation, uploads, MARK)
    expected = head.take(federation.initial).expand(CLIENTS, -1)
    assert torch.equal(federation["model"].rows(federation.everyone, head), expected)


def test_numbers_that_cannot_be_known_do_not_enter_a_mix_by_a_weight_of_zero() -> None:
    """0 · NaN would be NaN: rows that are not read must not even be multiplied."""
    federation, uploads = after_training()
    head = federation.layout.columns("classifier")
    federation["model"].write_own(COHORT, head, torch.full((2, head.size), torch.nan))
    apply([Mix(one_hot(0, 3, 0, 3), "classifier", "model", to="everyone")], federation, uploads, MARK)
    assert bool(torch.isfinite(federation["model"].rows(federation.everyone, head)).all())


@pytest.mark.parametrize("asked", [False, True])
def test_class_counts_are_the_servers_only_if_it_asked(asked: bool) -> None:
    federation, _ = after_training()
    if asked:
        federation.ask_class_counts()
    view = federation.as_seen_by_server()
    if asked:
        assert view.class_counts.shape == (CLIENTS, federation.classes)
    else:
        for read in (lambda: view.class_counts[0], lambda: view.class_counts.sum()):
            with pytest.raises(CoterieError, match=r"call federation.ask_class_counts\(\) in init"):
                read()
    assert view.classes == federation.classes, "how many classes there are is no secret"
    assert federation.class_counts.shape[0] == CLIENTS


def test_the_view_follows_what_the_server_writes() -> None:
    federation, uploads = after_training("all")
    view = federation.as_seen_by_server()
    apply([Mix(one_hot(3, 3, 3, 3), "classifier", "model", to="everyone")], federation, uploads, MARK)
    head = federation.layout.columns("classifier")
    assert torch.equal(view["model"].rows(COHORT, head), head.take(federation.initial).expand(2, -1))


def test_a_view_of_a_slot_without_columns_is_empty() -> None:
    _, uploads = after_training()
    assert uploads.federation["model"].rows(COHORT, Columns()).shape == (2, 0)
