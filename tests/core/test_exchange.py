"""The server step against hand computation: every source is read before any slot is written."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from coterie.core import applying
from coterie.core.applying import apply, check_weights
from coterie.core.columns import Columns
from coterie.core.exchange import Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import for_each
from coterie.core.tracks import exchange_mark
from coterie.errors import CoterieError
from coterie.robust.defended import Defended
from coterie.robust.options import Defence
from support import rows_of, tiny, warnings_in

CLIENTS = 4
COHORT = torch.tensor([1, 3])
MARK = exchange_mark(1)
GROUPS = ("extractor", "classifier")


def federation(method: str = "fedper", model: str = "norm") -> Federation:
    """A federation whose personal columns all differ."""
    whole = tiny(method, model, clients=CLIENTS).prepare().federation()
    torch.manual_seed(0)
    for slot in whole.slots.values():
        slot.own.normal_()
    return whole


def uploads(whole: Federation, cohort: Tensor = COHORT, declared: str = "all") -> Uploads:
    torch.manual_seed(1)
    trained = {"model": torch.randn(len(cohort), whole["model"].width)}
    return Uploads(whole, cohort, trained, {"model": whole.layout.columns(declared)})


def columns_of(whole: Federation, group: str | Columns, rows: Tensor) -> Tensor:
    return whole.layout.columns(group).within(whole["model"].columns).take(rows)


def stochastic(rows: int, columns: int, seed: int = 0) -> Tensor:
    weights = torch.rand(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1
    return weights / weights.sum(1, keepdim=True)


def weighted_by_hand(weights: Tensor, sources: Tensor) -> Tensor:
    """Row by row and source by source, in double precision."""
    return torch.stack([sum(w * s.double() for w, s in zip(row, sources, strict=True)) for row in weights])


def test_one_row_of_weights_into_shared_columns() -> None:
    whole = federation()
    sent = uploads(whole)
    weights = torch.tensor([[0.25, 0.75]])
    before = rows_of(whole)
    apply([Mix(weights, "extractor")], whole, sent, MARK)
    after = rows_of(whole)
    expected = weighted_by_hand(weights, sent.rows("extractor"))
    for client in range(CLIENTS):
        assert torch.allclose(columns_of(whole, "extractor", after)[client].double(), expected[0], atol=1e-6)
    rest = whole["model"].columns - whole.layout.columns("extractor")
    assert torch.equal(columns_of(whole, rest, after), columns_of(whole, rest, before))


def test_a_row_per_client_of_the_cohort_into_personal_columns() -> None:
    whole = federation()
    sent = uploads(whole)
    weights = stochastic(2, 2)
    before = rows_of(whole)
    applied = apply([Mix(weights, "classifier")], whole, sent, MARK)
    after = rows_of(whole)
    expected = weighted_by_hand(weights, sent.rows("classifier"))
    assert torch.allclose(columns_of(whole, "classifier", after)[COHORT].double(), expected, atol=1e-6)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert torch.equal(columns_of(whole, "extractor", after), columns_of(whole, "extractor", before))
    assert applied[0].rows.tolist() == applied[0].columns.tolist() == COHORT.tolist()
    assert (applied[0].group, applied[0].target, applied[0].gated) == ("classifier", "model", False)


def test_a_row_per_client_of_the_federation() -> None:
    whole = federation()
    sent = uploads(whole)
    weights = stochastic(CLIENTS, 2)
    apply([Mix(weights, "classifier", to="everyone")], whole, sent, MARK)
    expected = weighted_by_hand(weights, sent.rows("classifier"))
    assert torch.allclose(columns_of(whole, "classifier", rows_of(whole)).double(), expected, atol=1e-6)


@pytest.mark.parametrize(("to", "written"), [("cohort", [1, 3]), ("everyone", [0, 1, 2, 3])])
def test_one_row_of_weights_may_serve_all_personal_rows(to: str, written: list[int]) -> None:
    whole = federation()
    sent = uploads(whole)
    before = rows_of(whole)
    apply([Mix(torch.tensor([[0.5, 0.5]]), "classifier", to=to)], whole, sent, MARK)
    after = columns_of(whole, "classifier", rows_of(whole))
    expected = sent.rows("classifier").mean(0)
    for client in range(CLIENTS):
        wanted = expected if client in written else columns_of(whole, "classifier", before)[client]
        assert torch.allclose(after[client], wanted, atol=1e-6)


def test_all_clients_learn_from_a_slot() -> None:
    whole = federation()
    weights = stochastic(CLIENTS, CLIENTS)
    before = columns_of(whole, "classifier", rows_of(whole))
    applied = apply([Mix(weights, "classifier", source="model", to="everyone")], whole, uploads(whole), MARK)
    after = columns_of(whole, "classifier", rows_of(whole))
    assert torch.allclose(after.double(), weighted_by_hand(weights, before), atol=1e-6)
    assert applied[0].columns.tolist() == list(range(CLIENTS))


def test_one_slot_may_be_mixed_into_another() -> None:
    whole = federation()
    whole.add_slot("teacher", "classifier")
    weights = stochastic(2, 2)
    sent = uploads(whole)
    before = rows_of(whole)
    apply([Mix(weights, "classifier", target="teacher")], whole, sent, MARK)
    expected = weighted_by_hand(weights, sent.rows("classifier"))
    assert torch.allclose(rows_of(whole, "teacher")[COHORT].double(), expected, atol=1e-6)
    assert torch.equal(rows_of(whole), before)


def test_mixing_is_simultaneous_within_a_mix() -> None:
    """A permutation of two rows really swaps them."""
    whole = federation("local")
    before = rows_of(whole)
    swap = torch.eye(CLIENTS)[[1, 0, 3, 2]]
    apply([Mix(swap, "all", source="model", to="everyone")], whole, uploads(whole), MARK)
    assert torch.equal(columns_of(whole, "all", rows_of(whole)), columns_of(whole, "all", before)[[1, 0, 3, 2]])


@pytest.mark.parametrize("block", [3, 1 << 16])
def test_mixing_is_simultaneous_between_mixes(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Two mixes that read what the other writes exchange the two slots."""
    monkeypatch.setattr(applying, "BLOCK", block)
    whole = federation()
    whole.add_slot("teacher", "classifier").own.normal_()
    model, teacher = columns_of(whole, "classifier", rows_of(whole)), rows_of(whole, "teacher")
    same = torch.eye(CLIENTS)
    apply(
        [
            Mix(same, "classifier", source="model", target="teacher", to="everyone"),
            Mix(same, "classifier", source="teacher", target="model", to="everyone"),
        ],
        whole,
        uploads(whole),
        MARK,
    )
    assert torch.equal(rows_of(whole, "teacher"), model)
    assert torch.equal(columns_of(whole, "classifier", rows_of(whole)), teacher)


def test_later_mixes_write_over_earlier_ones() -> None:
    whole = federation()
    sent = uploads(whole)
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    apply([Mix(first, "extractor"), Mix(second, "extractor")], whole, sent, MARK)
    assert torch.equal(columns_of(whole, "extractor", rows_of(whole))[0], sent.rows("extractor")[1])


def test_identity_changes_no_bit() -> None:
    whole = federation("local")
    before = rows_of(whole)
    apply([Mix(torch.eye(CLIENTS), "all", source="model", to="everyone")], whole, uploads(whole), MARK)
    assert torch.equal(rows_of(whole), before)


def test_only_gated_elements_are_written() -> None:
    whole = federation("local")
    sent = uploads(whole)
    width = whole.layout.columns("all").size
    gate = torch.rand(2, width, generator=torch.Generator().manual_seed(3)) < 0.5
    before = rows_of(whole)
    weights = stochastic(2, 2)
    applied = apply([Mix(weights, "all", gate=gate)], whole, sent, MARK)
    after = columns_of(whole, "all", rows_of(whole))
    mixed = weighted_by_hand(weights, sent.rows("all")).float()
    expected = torch.where(gate, mixed, columns_of(whole, "all", before)[COHORT])
    assert torch.allclose(after[COHORT], expected, atol=1e-6)
    assert torch.equal(after[COHORT][~gate], columns_of(whole, "all", before)[COHORT][~gate])
    assert applied[0].gated


@pytest.mark.parametrize("shared", [True, False])
def test_elements_that_do_not_count_have_no_part_in_the_mean(shared: bool) -> None:
    """Weights ¼ and ¾: alone each counts for all of it, nobody leaves what was there; also where one is no number."""
    whole = federation("fedavg" if shared else "local")
    sent, group = uploads(whole), whole.layout.columns("classifier")
    kinds = torch.arange(group.size) % 4
    given = torch.stack([(kinds == 0) | (kinds == 1), (kinds == 0) | (kinds == 2)])
    sent.trained["model"][1] = torch.where(sent.trained["model"][1] > 1, torch.inf, sent.trained["model"][1])
    one, other = group.take(sent.trained["model"])
    other = torch.where(given[1], other.clamp(max=9.0), other)
    group.put(sent.trained["model"][1], other)
    before = columns_of(whole, group, rows_of(whole))[COHORT]
    (applied,) = apply([Mix(torch.tensor([[0.25, 0.75]]), group, source_gate=given)], whole, sent, MARK)
    after = columns_of(whole, group, rows_of(whole))[COHORT]
    expected = [0.25 * one + 0.75 * other, one, other]
    for kind, values in enumerate(expected):
        assert torch.allclose(after[:, kinds == kind], values[kinds == kind].expand(2, -1), atol=1e-6)
    assert torch.equal(after[:, kinds == 3], before[:, kinds == 3])
    counts = torch.bincount(kinds, minlength=3)[:3].double()
    found = torch.tensor([[0.25 * counts[0] + counts[1], 0.75 * counts[0] + counts[2]]]) / counts.sum()
    assert torch.allclose(applied.weights.double(), found, atol=1e-6), "who counted for how much, over the elements"


def test_elements_of_a_slots_rows_count_too() -> None:
    """Client 0 has weight zero and is not read; of clients 1 and 2 each counts in every other element."""
    whole = federation("local")
    group = whole.layout.columns("classifier")
    given = torch.zeros(CLIENTS, group.size, dtype=torch.bool)
    given[0], given[1, ::2], given[2, 1::2] = True, True, True
    before = columns_of(whole, group, rows_of(whole))
    mix = Mix(torch.tensor([[0.0, 0.5, 0.5, 0.0]]), group, source="model", to=torch.tensor([3]), source_gate=given)
    (applied,) = apply([mix], whole, uploads(whole), MARK)
    after = columns_of(whole, group, rows_of(whole))
    assert torch.equal(after[3], torch.where(given[1], before[1], before[2]))
    assert torch.equal(after[:3], before[:3])
    odd = float(given[1].float().mean())
    assert torch.allclose(applied.weights, torch.tensor([[0.0, odd, 1 - odd, 0.0]]), atol=1e-6)


def test_a_source_gate_of_the_wrong_shape_is_refused_and_defences_know_none() -> None:
    whole = federation("local")
    width = whole.layout.columns("all").size
    wrong = Mix(stochastic(2, 2), "all", source_gate=torch.ones(3, width, dtype=torch.bool))
    with pytest.raises(CoterieError, match=r"^mix of 'all': its source_gate is \(3, "):
        apply([wrong], whole, uploads(whole), MARK)
    whole.reduction = Defended.of(Defence(defence="median"))
    right = Mix(stochastic(2, 2), "all", source_gate=torch.ones(2, width, dtype=torch.bool))
    with pytest.raises(CoterieError, match="means of 'all' in which not every element counts"):
        apply([right], whole, uploads(whole), MARK)


def test_a_gate_works_on_shared_columns_too() -> None:
    whole = federation("fedavg")
    sent = uploads(whole)
    gate = torch.zeros(1, whole["model"].width, dtype=torch.bool)
    gate[0, ::2] = True
    before = rows_of(whole)[0]
    apply([Mix(torch.tensor([[0.0, 1.0]]), gate=gate)], whole, sent, MARK)
    assert torch.equal(rows_of(whole)[0], torch.where(gate[0], sent.rows()[1], before))


@pytest.mark.parametrize("shape", [(2, 1), (3, None), (2, 5)])
def test_a_gate_of_the_wrong_shape_is_refused(shape: tuple[int, int | None]) -> None:
    whole = federation("local")
    width = whole.layout.columns("all").size if shape[1] is None else shape[1]
    gate = torch.ones(shape[0], width, dtype=torch.bool)
    with pytest.raises(CoterieError, match="gate"):
        apply([Mix(stochastic(2, 2), "all", gate=gate)], whole, uploads(whole), MARK)


def actions(whole: Federation, sent: Uploads) -> list[Mix]:
    width = whole.layout.columns("norm + classifier").size
    gate = torch.rand(2, width, generator=torch.Generator().manual_seed(4)) < 0.5
    return [
        Mix(stochastic(2, 2, 1), "all"),
        Mix(stochastic(2, 2, 2), "norm + classifier", gate=gate),
        Mix(stochastic(CLIENTS, CLIENTS, 3), "bn", source="model", to="everyone"),
    ]


def test_blocks_of_columns_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for block in (3, 7, 1 << 16):
        monkeypatch.setattr(applying, "BLOCK", block)
        whole = federation("local")
        sent = uploads(whole, declared="all + norm")
        apply(actions(whole, sent), whole, sent, MARK)
        results.append(rows_of(whole))
    assert torch.allclose(results[0], results[2], atol=1e-6)
    assert torch.allclose(results[1], results[2], atol=1e-6)
    assert not torch.allclose(results[2], rows_of(federation("local")), atol=1e-3)


def test_groups_of_many_spans() -> None:
    whole = federation("local")
    every_other = Columns.of(*((start, start + 1) for start in range(0, whole.layout.columns("all").size, 2)))
    sent = uploads(whole)
    weights = stochastic(2, 2)
    before = rows_of(whole)
    apply([Mix(weights, every_other)], whole, sent, MARK)
    after = rows_of(whole)
    expected = weighted_by_hand(weights, sent.rows(every_other))
    assert torch.allclose(columns_of(whole, every_other, after)[COHORT].double(), expected, atol=1e-6)
    rest = whole["model"].columns - every_other
    assert torch.equal(columns_of(whole, rest, after), columns_of(whole, rest, before))


def test_values_are_put() -> None:
    whole = federation()
    whole.add_value("prototypes", torch.zeros(3, 2))
    apply([Put("prototypes", torch.ones(3, 2))], whole, uploads(whole), MARK)
    assert torch.equal(whole.values["prototypes"], torch.ones(3, 2))


def test_an_empty_group_is_no_mistake() -> None:
    whole = federation("fedper", "plain")
    before = rows_of(whole)
    for weights in (stochastic(1, 2), stochastic(2, 2)):
        apply([Mix(weights, "norm")], whole, uploads(whole), MARK)
    assert torch.equal(rows_of(whole), before)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.5, -0.5]], "non-negative"),
        ([[float("nan"), 1.0]], "finite"),
        ([[float("inf"), 0.0]], "finite"),
        ([[0.5, 0.4]], "sum to 1"),
        ([[0.0, 0.0]], "sum to 1"),
        ([[1.0, 1.0]], "sum to 1"),
        ([0.5, 0.5], "matrix"),
        ([[[0.5, 0.5]]], "matrix"),
    ],
)
def test_wrong_weights_are_refused(weights: list[object], message: str) -> None:
    whole = federation()
    before = rows_of(whole)
    with pytest.raises(CoterieError, match=message):
        check_weights(torch.tensor(weights))
    with pytest.raises(CoterieError, match=message):
        apply(
            [Mix(torch.tensor([[1.0, 0.0]]), "extractor"), Mix(torch.tensor(weights), "extractor")],
            whole,
            uploads(whole),
            MARK,
        )
    assert torch.equal(rows_of(whole), before), "an exchange that is refused writes nothing"


def test_one_row_that_is_off_is_enough_to_be_refused() -> None:
    """Off by 2e-6 where 1e-6 is allowed: the rows' mean would be within it."""
    right = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]).double()
    check_weights(right)
    right[1, 0] = 2e-6
    with pytest.raises(CoterieError, match="each row of mixing weights must sum to 1; one is off by 2e-06"):
        check_weights(right)


@pytest.mark.parametrize(
    "mix",
    [
        Mix(stochastic(1, 3), "extractor"),
        Mix(stochastic(2, 2), "extractor"),
        Mix(stochastic(3, 2), "classifier"),
        Mix(stochastic(CLIENTS, 2), "classifier"),
        Mix(stochastic(2, 2), "classifier", to="everyone"),
        Mix(stochastic(2, 2), "classifier", source="model"),
        Mix(stochastic(1, 2), "all + norm"),
    ],
)
def test_weights_of_the_wrong_shape_are_refused(mix: Mix) -> None:
    """The last one would write shared and personal columns at once."""
    whole = federation()
    with pytest.raises(CoterieError, match="mix of"):
        apply([mix], whole, uploads(whole, declared="all + norm"), MARK)


def test_what_was_not_declared_cannot_be_read() -> None:
    whole = federation()
    sent = uploads(whole, declared="extractor")
    assert sent.rows("extractor").shape == (2, whole.layout.columns("extractor").size)
    for group in ("classifier", "all", "norm"):
        with pytest.raises(CoterieError, match="not among the uploads"):
            sent.rows(group)
    with pytest.raises(CoterieError, match="not among the uploads"):
        sent.rows("extractor", slot="teacher")
    with pytest.raises(CoterieError, match="not among the uploads"):
        apply([Mix(stochastic(2, 2), "classifier")], whole, sent, MARK)


def test_a_slot_cannot_give_columns_that_it_does_not_hold() -> None:
    whole = federation("local")
    whole.add_slot("teacher", "classifier")
    with pytest.raises(CoterieError, match="teacher"):
        apply([Mix(torch.eye(CLIENTS), "all", source="teacher", to="everyone")], whole, uploads(whole), MARK)


def test_a_declared_slot_that_nobody_trained_is_refused_in_words() -> None:
    whole = federation("local")
    whole.add_slot("teacher", "classifier")
    sent = replace(uploads(whole), declared={"teacher": whole.layout.columns("classifier")})
    with pytest.raises(CoterieError, match="teacher"):
        sent.rows("classifier", slot="teacher")


def test_an_unknown_slot_is_refused_in_words() -> None:
    whole = federation("local")
    with pytest.raises(CoterieError, match="slot 'techer'"):
        apply([Mix(torch.eye(CLIENTS), "all", source="techer", to="everyone")], whole, uploads(whole), MARK)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_the_server_computed_is_written_into_a_slot_only_if_finite(
    bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    whole = federation()
    whole.round = 7
    before = rows_of(whole)
    value = torch.zeros(1, whole.layout.columns("extractor").size)
    value[0, 3] = bad
    with caplog.at_level(logging.WARNING, "coterie"):
        apply([Put("model", value, group="extractor")], whole, uploads(whole), MARK, "FedGH")
    assert torch.equal(rows_of(whole), before)
    (said,) = warnings_in(caplog)
    assert said.startswith("round 7: the server step of FedGH gave numbers that are not finite for 'extractor' of slot")
    assert "'model'; the old ones stay. A smaller lr" in said


def test_values_may_hold_nan() -> None:
    """A prototype of NaN is that of a class which nobody has."""
    whole = federation()
    whole.add_value("prototypes", torch.zeros(3, 2))
    apply([Put("prototypes", torch.full((3, 2), torch.nan))], whole, uploads(whole), MARK)
    assert bool(whole.values["prototypes"].isnan().all())


@pytest.mark.parametrize("source", ["upload", "model"])
def test_threads_mix_the_same_bits(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread has blocks of its own, and all of them are done."""
    monkeypatch.setattr(applying, "BLOCK", 8 * CLIENTS)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    workers: set[str] = set()
    product = applying._BoundMix.product

    def watched(self: applying._BoundMix, part: Columns) -> Tensor:
        workers.add(threading.current_thread().name)
        return product(self, part)

    monkeypatch.setattr(applying._BoundMix, "product", watched)
    try:
        found = []
        for threads in (1, 2):
            whole = federation("local")
            everyone = whole.everyone
            mixes = [Mix(stochastic(CLIENTS, CLIENTS, seed), group, source=source) for seed, group in enumerate(GROUPS)]
            apply(mixes, whole, uploads(whole, everyone), MARK, threads=threads)
            found.append(rows_of(whole))
        assert torch.equal(*found)
        assert not torch.equal(found[0], rows_of(federation("local")))
        assert {"MainThread"} < workers
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("defence", "expected"), [("", 3), ("median", 1)])
def test_what_a_defence_counts_up_is_counted_in_one_thread(
    defence: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the blocks, or sums would differ from run to run."""
    asked: list[int] = []

    def watched(act: Callable[[Columns], None], blocks: list[Columns], threads: int) -> None:
        asked.append(threads)
        for_each(act, blocks, 1)

    monkeypatch.setattr(applying, "for_each", watched)
    whole = federation("local")
    whole.reduction, whole.round = Defended.of(Defence(defence=defence)), 1
    apply([Mix(stochastic(CLIENTS, CLIENTS), "extractor")], whole, uploads(whole, whole.everyone), MARK, threads=3)
    assert asked == [expected]


def test_an_error_in_a_thread_is_raised() -> None:
    def fail(piece: int) -> None:
        raise CoterieError(f"piece {piece}")

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.raises(CoterieError, match="piece 0"):
            for_each(fail, [0, 1, 2], threads=2)
    finally:
        torch.set_num_threads(before)
