"""Every defence against numbers worked out by hand and against a plain oracle; where it is undefined it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core import applying
from coterie.core.applying import apply
from coterie.core.exchange import Applied, Mix, Uploads
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.options import made
from coterie.robust.defences import Clip, Influence, Krum, Median, MultiKrum, TrimmedMean
from coterie.robust.defended import Defended
from coterie.robust.options import Defence
from coterie.robust.reducing import DEFENCES, Contributions, Reducer, reducer_of
from support import tiny

MARK = 2
Row = list[float]


def contributions(
    weights: list[Row], rows: list[Row], learners: list[int] | None = None, before: list[Row] | None = None
) -> Contributions:
    """A mix of rows of clients 0, 1, … for some learners, or for all."""
    table, there = torch.tensor(rows), torch.tensor(before or [[0.0] * len(rows[0])])

    def blocks() -> Iterator[tuple[Tensor, Tensor]]:
        for column in range(table.shape[1]):  # several blocks of columns
            yield table[:, column : column + 1], there[:, column : column + 1]

    ids = None if learners is None else torch.tensor(learners)
    return Contributions(torch.tensor(weights, dtype=torch.float64), ids, torch.arange(len(rows)), blocks, "the mix")


def result(reducer: Reducer, mix: Contributions) -> list[Row]:
    """What a mix comes to, the slow way."""
    weights = reducer.weights(mix)
    assert weights is not None
    rows = torch.cat([rows for rows, _ in mix.blocks()], 1).double()
    there = torch.cat([there for _, there in mix.blocks()], 1).double()
    rest = 1 - weights.sum(1, keepdim=True)
    found: list[Row] = ((1 - rest) * reducer.reduce(weights / (1 - rest), rows).values + rest * there).tolist()
    return found


# Norm clipping


def test_clip_worked_out_by_hand() -> None:
    """Distances 5, 10 and 20 from what is there: τ = 10, and the last counts for half."""
    mix = contributions([[0.5, 0.25, 0.25]], [[3.0, 4.0], [6.0, 8.0], [12.0, 16.0]])
    assert Clip().weights(mix)[0].tolist() == pytest.approx([0.5, 0.25, 0.125])
    assert result(Clip(), mix)[0] == pytest.approx([0.5 * 3 + 0.25 * 6 + 0.125 * 12, 0.5 * 4 + 0.25 * 8 + 0.125 * 16])


def test_clip_around_oneself_worked_out_by_hand() -> None:
    """Client 0 is 1, 2 and 8 from the others: τ = 2, and what client 3 loses, 0.3 · 3/4, is the client's own."""
    mix = contributions([[0.2, 0.3, 0.2, 0.3]], [[0.0], [1.0], [2.0], [8.0]], learners=[0])
    assert Clip().weights(mix)[0].tolist() == pytest.approx([0.2 + 0.225, 0.3, 0.2, 0.075])
    assert Clip(times=4.0).weights(mix)[0].tolist() == pytest.approx([0.2, 0.3, 0.2, 0.3])


def test_clip_gives_a_row_for_all_to_each_learner_in_turn() -> None:
    """A mean that all are to hold, from clients 0 to 2: client 1 is 1 from both, client 3 sent nothing and is at 0."""
    mix = contributions([[1 / 3] * 3], [[0.0], [1.0], [2.0]], learners=[1, 3], before=[[1.0], [0.0]])
    found = Clip(times=0.5).weights(mix).tolist()
    assert found[0] == pytest.approx([1 / 6, 2 / 3, 1 / 6])
    # Client 3: distances 0, 1 and 2, τ = 0.5, so the factors are 1, 0.5 and 0.25; the rest stays what it was.
    assert found[1] == pytest.approx([1 / 3, 1 / 6, 1 / 12])


def plain_clip(row: Row, rows: list[Row], centre: Row, own: int | None, times: float) -> Row:
    """c + Σ_j w_j min(1, τ / d_j) (x_j − c)."""
    far = [math.dist(one, centre) for one in rows]
    usual = [far[j] for j, weight in enumerate(row) if weight > 0 and j != own]
    if not usual:
        return rows[own] if own is not None else centre
    limit = times * median(usual)
    total = list(centre)
    for weight, one, distance in zip(row, rows, far, strict=True):
        factor = min(1.0, limit / distance) if distance > 0 else 1.0
        total = [t + weight * factor * (x - c) for t, x, c in zip(total, one, centre, strict=True)]
    return total


# Medians and trimmed means

BY_HAND: list[tuple[Reducer, Row, Row, float]] = [
    (Median(), [0.2] * 5, [1.0, 2.0, 3.0, 4.0, 1e6], 3.0),
    (Median(), [0.25] * 4, [4.0, 1.0, 3.0, 2.0], 2.5),
    # 0.1 + 0.3 lie up to 2, then 0.6 up to 7: 7 is the middle.
    (Median(), [0.1, 0.6, 0.3], [1.0, 7.0, 2.0], 7.0),
    (Median(), [0.5, 0.5, 0.0], [1.0, 3.0, 99.0], 2.0),
    (TrimmedMean(share=0.2), [0.2] * 5, [1.0, 2.0, 3.0, 4.0, 1e6], 3.0),
    # A quarter is cut at each end, so halves of the first and the last count: (0.25 · 1 + 0.25 · 9) / 0.5.
    (TrimmedMean(share=0.25), [0.5, 0.5], [1.0, 9.0], 5.0),
    # Sorted 1 (0.1), 2 (0.3), 7 (0.6); within [0.2, 0.8] lie 0.2 of 2 and 0.4 of 7.
    (TrimmedMean(share=0.2), [0.1, 0.6, 0.3], [1.0, 7.0, 2.0], (0.2 * 2 + 0.4 * 7) / 0.6),
    (TrimmedMean(share=0.0), [0.1, 0.6, 0.3], [1.0, 7.0, 2.0], 4.9),
]


@pytest.mark.parametrize(("reducer", "weights", "column", "expected"), BY_HAND)
def test_columns_worked_out_by_hand(reducer: Reducer, weights: Row, column: Row, expected: float) -> None:
    assert result(reducer, contributions([weights], [[x] for x in column]))[0] == pytest.approx([expected])


def plain_trimmed(weights: Row, column: Row, share: float) -> float:
    """Cut the weight off from both ends, bit by bit."""
    pairs = sorted(zip(column, weights, strict=True))
    for _ in range(2):
        left = share
        kept: list[tuple[float, float]] = []
        for x, weight in pairs:
            cut = min(weight, left)
            left -= cut
            kept.append((x, weight - cut))
        pairs = kept[::-1]
    return sum(x * weight for x, weight in pairs) / sum(weight for _, weight in pairs)


def plain_median(weights: Row, column: Row) -> float:
    total, pairs = 0.0, [pair for pair in sorted(zip(column, weights, strict=True)) if pair[1] > 0]
    for place, (x, weight) in enumerate(pairs):
        total += weight
        if abs(total - 0.5) <= 1e-9:
            return (x + pairs[place + 1][0]) / 2
        if total > 0.5:
            return x
    raise AssertionError("weights sum to one")


def normal(scores: Row) -> Row:
    return [score / sum(scores) for score in scores]


TABLES = st.integers(2, 7).flatmap(
    lambda m: st.tuples(
        st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, 5.0]), min_size=m, max_size=m).filter(any),
        st.lists(
            st.lists(st.floats(-100, 100, width=16, allow_subnormal=False), min_size=3, max_size=3),
            min_size=m,
            max_size=m,
        ),
    )
)


@settings(max_examples=60, deadline=None)
@given(table=TABLES, share=st.floats(0.0, 0.45), times=st.floats(0.1, 3.0))
def test_rows_are_those_of_the_plain_oracles(table: tuple[Row, list[Row]], share: float, times: float) -> None:
    scores, rows = table
    row = normal(scores)
    shared, own = contributions([row], rows), contributions([row], rows, learners=[1])
    columns = [list(column) for column in zip(*rows, strict=True)]
    trimmed = [plain_trimmed(row, column, share) for column in columns]
    assert result(TrimmedMean(share), shared)[0] == pytest.approx(trimmed, abs=1e-6)
    assert result(Median(), own)[0] == pytest.approx([plain_median(row, column) for column in columns], abs=1e-6)
    close = {"rel": 1e-5, "abs": 1e-4}
    assert result(Clip(times), shared)[0] == pytest.approx(plain_clip(row, rows, [0.0] * 3, None, times), **close)
    assert result(Clip(times), own)[0] == pytest.approx(plain_clip(row, rows, rows[1], 1, times), **close)


# Krum


def test_krum_worked_out_by_hand() -> None:
    """n = 5, f = 1: the two nearest count. Scores: 0: 1 + 4; 1: 1 + 1; 2: 1 + 1; 3: 1 + 4; 4: far. The first is 1."""
    mix = contributions([[0.2] * 5], [[0.0], [1.0], [2.0], [3.0], [50.0]])
    assert Krum(hostile=1).weights(mix)[0].tolist() == [0, 1, 0, 0, 0]
    # Two of the best scores, 1 and 2, with their weights.
    unequal = contributions([[0.1, 0.3, 0.1, 0.1, 0.4]], [[0.0], [1.0], [2.0], [3.0], [50.0]])
    assert MultiKrum(hostile=1).weights(unequal)[0].tolist() == pytest.approx([0, 0.75, 0.25, 0, 0])
    # A learner keeps its own row.
    mine = contributions([[0.1, 0.3, 0.1, 0.1, 0.4]], [[0.0], [1.0], [2.0], [3.0], [50.0]], learners=[4])
    assert MultiKrum(hostile=1).weights(mine)[0].tolist() == pytest.approx([0, 0.375, 0.125, 0, 0.5])


def test_krum_is_not_blinded_by_rows_far_away() -> None:
    rows = [[0.001], [0.002], [0.0], [0.0011], [1e30]]
    assert Krum(hostile=1).weights(contributions([[0.2] * 5], rows))[0].argmax().item() in (0, 3)


def plain_krum(rows: list[Row], hostile: int) -> list[int]:
    """Contributors by score."""
    scores = []
    for j, one in enumerate(rows):
        far = sorted(math.dist(one, other) ** 2 for k, other in enumerate(rows) if k != j)
        scores.append((sum(far[: len(rows) - hostile - 2]), j))
    return [j for _, j in sorted(scores)]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), hostile=st.integers(0, 2), extra=st.integers(0, 3))
def test_krum_is_that_of_the_plain_oracle(seed: int, hostile: int, extra: int) -> None:
    n = 2 * hostile + 3 + extra
    rows: list[Row] = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)).tolist()
    order = plain_krum(rows, hostile)
    mix = contributions([[1 / n] * n], rows)
    assert Krum(hostile).weights(mix)[0].argmax().item() == order[0]
    chosen = MultiKrum(hostile).weights(mix)[0].nonzero()[:, 0].tolist()
    assert chosen == sorted(order[: n - hostile - 2])


def test_krum_refuses_what_it_cannot_do() -> None:
    few = contributions([[0.5, 0.5, 0.0, 0.0, 0.0]], [[float(j)] for j in range(5)], learners=[3])
    with pytest.raises(CoterieError, match=r"the mix of client 3: a mix of 2 is too small for 1 hostile .*at least 5"):
        Krum(hostile=1).weights(few)
    unequal = contributions([[0.6, 0.1, 0.1, 0.1, 0.1]], [[float(j)] for j in range(5)])
    with pytest.raises(CoterieError, match=r"krum cannot honour weights from 0.1 to 0.6; use multi-krum"):
        Krum(hostile=1).weights(unequal)
    with pytest.raises(CoterieError, match=r"defence = 'krum:2': a mix of 4 is too small for 2 hostile .*at least 7"):
        tiny("fedavg", defence="krum:2").prepare()
    with pytest.raises(CoterieError, match="defence = 'median': FedGen gives clients more than mixes"):
        tiny("fedgen", defence="median").prepare()


def test_who_learns_from_nobody_else_is_left_alone() -> None:
    mix = contributions([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[0.0], [1.0], [2.0]], learners=[0, 1])
    for reducer in (Krum(), MultiKrum(), Clip(), Influence(limit=0.1)):
        assert reducer.weights(mix).tolist() == mix.weights.tolist()


# Bounded influence


def test_influence_worked_out_by_hand() -> None:
    """Client 2 has 0.8 + 0.6 of three learners' rows, a mean of 7/15; at most 0.2 · 3 is left: a factor of 3/7."""
    weights = [[0.2, 0.0, 0.8], [0.3, 0.1, 0.6], [0.0, 0.0, 1.0]]
    mix = contributions(weights, [[0.0], [1.0], [2.0]], learners=[0, 1, 2])
    found = Influence(limit=0.2).weights(mix)
    expected = [
        [0.2 + 0.8 * 4 / 7, 0.0, 0.8 * 3 / 7],
        [0.3, 0.1 + 0.6 * 4 / 7, 0.6 * 3 / 7],
        [0.0, 0.0, 1.0],
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    others = found.masked_fill(torch.eye(3, dtype=torch.bool), 0).sum(0) / 3
    assert others.tolist() == pytest.approx([0.1, 0.0, 0.2])
    # Shared by all it is the share limit; without own rows to fall back on it is left out.
    assert Influence(0.4).weights(contributions([[0.7, 0.2, 0.1]], [[0.0]] * 3))[0].tolist() == pytest.approx(
        [0.4, 0.4, 0.2]
    )
    assert Influence(0.2).weights(contributions([[1.0, 0.0]] * 2, [[0.0]] * 2, learners=[5, 6])) is None


def plain_influence(weights: list[Row], limit: float) -> list[Row]:
    count = len(weights)
    found = [list(row) for row in weights]
    for j in range(count):
        total = sum(weights[i][j] for i in range(count) if i != j) / count
        if total > limit:
            for i in range(count):
                if i != j:
                    found[i][j] = weights[i][j] * limit / total
                    found[i][i] += weights[i][j] - found[i][j]
    return found


@settings(max_examples=40, deadline=None)
@given(
    table=st.integers(2, 6).flatmap(
        lambda m: st.lists(
            st.lists(st.sampled_from([0.0, 0.0, 1.0, 3.0]), min_size=m, max_size=m).filter(any), min_size=m, max_size=m
        )
    ),
    limit=st.floats(0.02, 0.9),
)
def test_influence_is_that_of_the_plain_steps(table: list[Row], limit: float) -> None:
    weights = [normal(row) for row in table]
    mix = contributions(weights, [[0.0]] * len(weights), learners=list(range(len(weights))))
    found = Influence(limit).weights(mix)
    assert found is not None
    torch.testing.assert_close(found, torch.tensor(plain_influence(weights, limit), dtype=torch.float64))


# In mixes


def sent(method: str, defence: str, clients: int = 6) -> tuple[Federation, Uploads, Tensor]:
    federation = tiny(method, clients=clients).prepare().federation()
    federation.reduction, federation.round = Defended.of(Defence(defence=defence)), 1
    ids, everything = torch.arange(clients), federation.layout.everything
    rows = torch.randn(clients, everything.size, generator=torch.Generator().manual_seed(1))
    rows[2] *= 100
    return federation, Uploads(federation, ids, {"model": rows}, {"model": everything}), rows


def mixed(federation: Federation, uploads: Uploads, mix: Mix) -> Applied:
    (applied,) = apply([mix], federation, uploads, MARK)
    assert float((applied.weights.double().sum(1) - 1).abs().max()) < 1e-5
    return applied


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "BLOCK", 64)


PLAIN: dict[str, Callable[[Row, list[Row], Row, int | None], Row]] = {
    "clip:1": lambda row, rows, there, own: plain_clip(row, rows, there if own is None else rows[own], own, 1.0),
    "median": lambda row, rows, there, own: [plain_median(row, list(c)) for c in zip(*rows, strict=True)],
    "trimmed-mean:0.2": lambda row, rows, there, own: [
        plain_trimmed(row, list(c), 0.2) for c in zip(*rows, strict=True)
    ],
    "krum:1": lambda row, rows, there, own: rows[plain_krum(rows, 1)[0]],
}


@pytest.mark.parametrize("defence", PLAIN)
def test_a_shared_mix_is_the_oracles(defence: str) -> None:
    federation, uploads, rows = sent("fedavg", defence)
    before: Row = federation["model"].shared[0].tolist()
    applied = mixed(federation, uploads, Mix(torch.full((1, 6), 1 / 6)))
    expected = PLAIN[defence]([1 / 6] * 6, rows.tolist(), before, None)
    assert federation["model"].shared[0].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert float(applied.weights[0, 2]) < 1 / 6  # whoever is far off counts for less


@pytest.mark.parametrize("defence", PLAIN)
@pytest.mark.parametrize("source", ["upload", "model"])
def test_personal_mixes_are_the_oracles(defence: str, source: str) -> None:
    federation, uploads, rows = sent("local", defence)
    if source == "model":
        federation["model"].write_own(federation.everyone, federation.layout.everything, rows)
    mixed(federation, uploads, Mix(torch.full((6, 6), 1 / 6), source=source, to="everyone"))
    for client, found in enumerate(federation["model"].rows(federation.everyone).tolist()):
        expected = PLAIN[defence]([1 / 6] * 6, rows.tolist(), [], client)
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_w_says_what_everybody_counted_for_over_all_columns() -> None:
    """The median of three: whoever is in the middle counts in a column, and nobody else."""
    federation, uploads, rows = sent("fedavg", "median", clients=3)
    applied = mixed(federation, uploads, Mix(torch.full((1, 3), 1 / 3)))
    middle = rows.sort(0).indices[1]
    torch.testing.assert_close(applied.weights[0], torch.bincount(middle, minlength=3) / rows.shape[1])


def test_rows_that_the_server_does_not_know_are_not_read() -> None:
    federation, uploads, rows = sent("local", "multi-krum:1")
    slot = federation["model"]
    slot.write_own(federation.everyone, federation.layout.everything, rows)
    slot.tracks.stretches[0].known[5] = False
    slot.own[5] = torch.nan
    weights = torch.tensor([[0.2] * 5 + [0.0]]).expand(5, -1)
    mixed(federation, uploads, Mix(weights, source="model", to=torch.arange(5)))
    assert bool(slot.own[:5].isfinite().all())


def test_defences_are_joined_and_at_most_one_replaces_the_mean() -> None:
    assert list(DEFENCES) == ["clip", "influence", "krum", "median", "multi-krum", "trimmed-mean"]
    federation, uploads, rows = sent("fedavg", "clip:1+median")
    before = federation["model"].shared[0].clone()
    mixed(federation, uploads, Mix(torch.full((1, 6), 1 / 6)))
    mix = Contributions(
        torch.full((1, 6), 1 / 6, dtype=torch.float64), None, torch.arange(6), lambda: iter([(rows, before[None])])
    )
    weights = Clip().weights(mix)
    kept = float(weights.sum())
    middle = torch.tensor([plain_median((weights / kept)[0].tolist(), column) for column in rows.T.tolist()])
    torch.testing.assert_close(federation["model"].shared[0], kept * middle + (1 - kept) * before, rtol=1e-4, atol=1e-4)
    with pytest.raises(CoterieError, match="Median and TrimmedMean both replace the mean"):
        reducer_of(Defence(defence="median+trimmed-mean:0.1"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("trimmed-mean:0.5", "share = 0.5: must be at least 0 and less than 0.5"),
        ("krum:-1", "hostile = -1: must not be negative"),
        ("clip:0", "times = 0.0: must be greater than 0"),
        ("influence:2", "limit = 2.0: must be above 0 and at most 1"),
        ("influence:0", "limit = 0.0: must be above 0 and at most 1"),
        ("median:1", r"defence 'median:1': 'median' has 0 options \(none\), but more are given"),
        ("krum:a", "hostile = 'a': must be a whole number"),
        ("krum:hostil=1", "unknown option of krum 'hostil'"),
        ("krum:1:hostile=2", "hostile is given twice"),
        ("medien", "unknown defence 'medien'; did you mean 'median'"),
    ],
)
def test_mistakes_are_told_in_a_line(text: str, problem: str) -> None:
    with pytest.raises(CoterieError, match=problem):
        made(DEFENCES, text)
    with pytest.raises(CoterieError, match=problem):
        tiny("fedavg", defence=text)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "fedper", "pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc"])
@pytest.mark.parametrize("defence", ["clip", "median", "trimmed-mean:0.1", "multi-krum:0", "influence:0.3"])
def test_defences_wrap_the_mixes_of_methods(method: str, defence: str) -> None:
    if (method, defence) == ("fedrema", "multi-krum:0"):
        with pytest.raises(CoterieError, match=r"of client \d: a mix of 2 is too small for 0 hostile clients"):
            tiny(method, clients=6, defence=defence, rounds=2).run()
        return
    wide = {"fedcac": METHODS["fedcac"](collaboration="top5"), "pfedcs": METHODS["pfedcs"](selection="all")}
    found = tiny(wide.get(method, method), clients=6, defence=defence, rounds=2).run()
    assert bool(found.federation["model"].rows(found.federation.everyone).isfinite().all())
