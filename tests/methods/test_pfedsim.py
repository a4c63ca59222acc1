"""pFedSim against its equations: similarity of classifiers, mixes at download, pairs that are never renewed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from five import (
    DeepHeadNet,
    ScaleNet,
    assert_relabelling_permutes,
    assert_valid_mixes,
    break_client,
    part,
    random_rows,
    refused,
    send,
    server,
    watch,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core.applying import apply
from coterie.core.exchange import Uploads
from coterie.core.federation import Federation
from coterie.core.tracks import delivery_mark
from coterie.engines import make_engine
from coterie.methods import FedAvg, Local, PFedSim
from coterie.rounds.round import Rounds
from coterie.testing.toys import seeded
from support import final_rows, rows_of, tiny

SELF = -math.log(1e-4)
EQUAL = 23 * math.log(2)  # cosines are at most 1 − 2⁻²³


def phi(a: list[list[float]], b: list[list[float]], similarity: str) -> float:
    return float(PFedSim(similarity=similarity).similarities(torch.tensor([a, b]))[0, 1])


def deliver(method: PFedSim, federation: Federation, clients: list[int]) -> Tensor:
    """Have some clients download; returns the weights of their mix."""
    chosen = torch.tensor(clients)
    mark = delivery_mark(federation.round)
    (mix,) = apply(method.deliver(federation, chosen), federation, Uploads(federation, chosen, {}, {}), mark)
    assert mix.group == "extractor"
    return mix.weights


class TestSimilarity:
    HALF = math.sqrt(0.75)  # (0.5, HALF) has cosine 0.5 with (1, 0)

    def test_by_hand(self) -> None:
        a, b = [[1.0, 0.0], [0.0, 2.0]], [[0.5, self.HALF], [0.6, 0.8]]
        assert phi(a, b, "paper") == pytest.approx(-(math.log(0.5) + math.log(0.2)) / 2)
        assert phi(a, b, "code") == pytest.approx(-math.log(1 - 0.65))

    @pytest.mark.parametrize("similarity", ["paper", "code"])
    def test_identical_classifiers_are_finite(self, similarity: str) -> None:
        a = [[3.0, 1.0, 2.0], [0.1, 7.0, 0.0]]
        assert phi(a, a, similarity) == pytest.approx(EQUAL)
        assert phi(a, [[2 * w for w in row] for row in a], similarity) == pytest.approx(EQUAL)

    @pytest.mark.parametrize("similarity", ["paper", "code"])
    def test_all_but_equal_classifiers_are_still_told_apart(self, similarity: str) -> None:
        """At small rates all cosines are within 1e-4 of one."""
        angles = (1e-3, 3e-3, 9e-3)  # cosines 1 − 5e-7, 1 − 4.5e-6, 1 − 4e-5
        near, middle, far = (phi([[1.0, 0.0]], [[math.cos(x), math.sin(x)]], similarity) for x in angles)
        assert EQUAL > near > middle + 1 > far + 2 > SELF

    @pytest.mark.parametrize("similarity", ["paper", "code"])
    def test_orthogonal_and_opposed_classifiers_are_not_similar(self, similarity: str) -> None:
        a = [[1.0, 0.0], [0.0, 1.0]]
        assert phi(a, [[0.0, 1.0], [1.0, 0.0]], similarity) == pytest.approx(0.0, abs=1e-7)
        assert phi(a, [[-1.0, 0.0], [0.0, -1.0]], similarity) == 0.0

    def test_one_opposed_class_hurts_the_code_but_not_the_paper(self) -> None:
        a, b = [[1.0, 0.0], [0.0, 1.0]], [[0.5, self.HALF], [0.0, -1.0]]
        assert phi(a, b, "paper") == pytest.approx(-math.log(0.5) / 2)
        assert phi(a, b, "code") == 0.0

    def test_a_row_of_zeros_is_similar_to_nothing(self) -> None:
        zero, b = [[0.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [0.6, 0.8]]
        assert phi(zero, b, "paper") == pytest.approx(EQUAL / 2, rel=1e-4)
        assert phi(zero, b, "code") == pytest.approx(-math.log(0.5), rel=1e-4)
        assert phi(zero, zero, "code") == pytest.approx(-math.log(0.5), rel=1e-4)

    def test_each_cosine_is_bounded_before_the_mean(self) -> None:
        """Otherwise one class that is all but equal would lift the others."""
        angle = math.acos(1 - 2**-22)
        a, b = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [math.cos(angle), math.sin(angle)]]
        assert phi(a, b, "code") == pytest.approx(-math.log((2**-23 + 2**-22) / 2), abs=0.05)
        assert phi(a, b, "paper") >= phi(a, b, "code")

    @given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0]))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_symmetric_not_negative_and_the_papers_at_least_the_codes(self, seed: int, noise: float) -> None:
        stream = torch.Generator().manual_seed(seed)
        common = torch.randn(1, 4, 6, generator=stream)
        weights = common + noise * torch.randn(5, 4, 6, generator=stream)
        paper, code = (PFedSim(similarity=name).similarities(weights) for name in ("paper", "code"))
        for found in (paper, code):
            torch.testing.assert_close(found, found.T)
            assert bool((found >= 0).all())
            assert float(found.max()) <= EQUAL + 1e-6
        assert bool((paper >= code - 1e-9).all())

    @pytest.mark.parametrize(
        ("method", "expected"),
        [
            (PFedSim(), SELF),
            (PFedSim(similarity="paper"), 1.0),
            (PFedSim(self_weight=3.0), 3.0),
            (PFedSim(similarity="paper", self_weight=2.0), 2.0),
        ],
        ids=str,
    )
    def test_the_weight_of_the_client_itself(self, method: PFedSim, expected: float) -> None:
        federation = server(method, round=8)
        assert federation.values["similarity"].diagonal().tolist() == pytest.approx([expected] * 5)
        send(method, federation, random_rows(federation))
        assert federation.values["similarity"].diagonal().tolist() == pytest.approx([expected] * 5)

    def test_the_bias_does_not_count_and_of_a_deep_head_the_last_matrix_does(self) -> None:
        method = PFedSim(rho=0.0)
        federation, other = (server(method, model=seeded(DeepHeadNet)) for _ in range(2))
        rows = random_rows(federation)
        changed = rows.clone()
        last = federation.layout.classifier_weights[-1]
        outside = torch.ones(rows.shape[1], dtype=torch.bool)
        outside[last.start : last.stop] = False
        changed[:, outside] += 5 * torch.randn(5, int(outside.sum()), generator=torch.Generator().manual_seed(1))
        send(method, federation, rows)
        send(method, other, changed)
        assert last.name == "classifier.3.weight"
        assert torch.equal(federation.values["similarity"], other.values["similarity"])


class TestPairs:
    def test_only_pairs_within_the_cohort_are_renewed(self) -> None:
        method = PFedSim(rho=0.0)
        federation = server(method, clients=5)
        assert torch.equal(federation.values["similarity"], torch.eye(5).double() * method.weight_of_self)
        send(method, federation, random_rows(federation, 3), [0, 1, 2])
        first = federation.values["similarity"].clone()
        assert bool((first[:3, :3] > 0).all())
        assert not bool(first[:3, 3:].any() or first[3:, :3].any() or first[3, 4])
        federation.round = 2
        send(method, federation, random_rows(federation, 3, seed=8), [1, 2, 4])
        second = federation.values["similarity"]
        assert torch.equal(second, second.T)
        for i, j in ((0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (2, 3), (3, 4)):
            assert float(second[i, j]) == float(first[i, j])
        for i, j in ((1, 2), (1, 4), (2, 4)):
            assert float(second[i, j]) != float(first[i, j])

    def test_a_cohort_of_one_renews_nothing(self) -> None:
        method = PFedSim(rho=0.0)
        federation = server(method)
        send(method, federation, random_rows(federation, 1), [2])
        assert torch.equal(federation.values["similarity"], torch.eye(5).double() * method.weight_of_self)

    def test_similarities_equal_a_plain_loop_for_two_hundred_clients(self) -> None:
        method = PFedSim(rho=0.0)
        federation = server(method, clients=200)
        rows = random_rows(federation)
        send(method, federation, rows)
        found = federation.values["similarity"]
        matrices = [federation.layout.views(row)["classifier.weight"].double() for row in rows]
        clients = [0, 57, 199]
        for i in clients:
            for j in range(200):
                cosines = [
                    min(float(a @ b / (a.norm() * b.norm() + 1e-8)), 0.9999)
                    for a, b in zip(matrices[i], matrices[j], strict=True)
                ]
                expected = SELF if i == j else -math.log(1 - max(0.0, sum(cosines) / len(cosines)))
                assert float(found[i, j]) == pytest.approx(expected, rel=1e-5, abs=1e-7)
        federation.round = 2
        weights = deliver(method, federation, clients)
        torch.testing.assert_close(weights, (found / found.sum(1, keepdim=True))[clients].float())


class TestDownload:
    def test_the_extractor_is_mixed_by_similarity_and_the_classifier_kept(self) -> None:
        method = PFedSim(rho=0.0)
        federation = server(method, clients=4)
        rows = random_rows(federation)
        send(method, federation, rows)
        assert torch.equal(rows_of(federation), rows)  # the store, before anybody downloads
        federation.round = 2
        similarity = federation.values["similarity"]
        weights = deliver(method, federation, [0, 3])
        expected = (similarity / similarity.sum(1, keepdim=True)).float()[[0, 3]]
        torch.testing.assert_close(weights, expected)
        after = rows_of(federation)
        torch.testing.assert_close(
            part(federation, after, "extractor")[[0, 3]], expected @ part(federation, rows, "extractor")
        )
        assert torch.equal(part(federation, after, "classifier"), part(federation, rows, "classifier"))
        assert torch.equal(after[[1, 2]], rows[[1, 2]])

    def test_while_warming_up_nothing_is_mixed_at_download(self) -> None:
        method = PFedSim(rho=0.5)
        assert list(method.deliver(server(method, round=5), torch.arange(5))) == []
        assert len(list(method.deliver(server(method, round=6), torch.arange(5)))) == 1

    @pytest.mark.parametrize(
        ("rho", "rounds", "warm"),
        [(0.0, 10, 0), (0.5, 10, 5), (0.5, 5, 2), (0.29, 100, 29), (0.999, 10, 9), (1.0, 10, 10)],
    )
    def test_the_floor_of_rho_t_rounds_warm_up(self, rho: float, rounds: int, warm: int) -> None:
        method = PFedSim(rho=rho)
        federation = server(method, rounds=rounds)
        count = 0
        for federation.round in range(1, rounds + 1):
            count += method.warming_up(federation)
        assert count == warm

    def test_warming_up_gives_everybody_the_mean(self) -> None:
        method = PFedSim()
        federation = server(method)
        rows = random_rows(federation, 3)
        send(method, federation, rows, [0, 2, 4])
        sizes = federation.sizes[[0, 2, 4]]
        mean = (sizes / sizes.sum()).float() @ rows
        for row in rows_of(federation):
            torch.testing.assert_close(row, mean)
        assert torch.equal(federation.values["similarity"], torch.eye(5).double() * method.weight_of_self)


@dataclass(frozen=True)
class Strangers(PFedSim):
    """pFedSim in which nobody is similar to anybody."""

    def similarities(self, weights: Tensor) -> Tensor:
        return torch.zeros(len(weights), len(weights), dtype=torch.float64)


class TestDegenerateCases:
    @pytest.mark.parametrize("join", [1.0, 0.5])
    @pytest.mark.parametrize(("model", "stats"), [("plain", None), ("norm", "mean")])
    def test_warming_up_for_good_is_fedavg(self, join: float, model: str, stats: Any) -> None:
        ours, theirs = (
            tiny(method, model, join=join, stats=stats, rounds=4).run() for method in (PFedSim(rho=1.0), FedAvg())
        )
        torch.testing.assert_close(final_rows(ours), final_rows(theirs), atol=1e-6, rtol=1e-6)
        assert ours.accuracy().received.mean == pytest.approx(theirs.accuracy().received.mean)

    @pytest.mark.thorough
    @pytest.mark.parametrize("join", [1.0, 0.5])
    @pytest.mark.parametrize("model", ["plain", "norm"])
    def test_without_similar_peers_it_is_local(self, join: float, model: str) -> None:
        settings: dict[str, Any] = {"join": join, "rounds": 4, "clients": 5}
        ours, theirs = (final_rows(tiny(method, model, **settings).run()) for method in (Strangers(rho=0.0), Local()))
        assert torch.equal(ours, theirs)
        assert not torch.allclose(final_rows(tiny(PFedSim(rho=0.0), model, **settings).run()), theirs, atol=1e-4)

    def test_clients_that_never_meet_train_alone(self) -> None:
        settings: dict[str, Any] = {"join": 0.25, "rounds": 6}
        ours, theirs = (final_rows(tiny(method, **settings).run()) for method in (PFedSim(rho=0.0), Local()))
        assert torch.equal(ours, theirs)

    def test_the_second_phase_starts_from_the_mean(self) -> None:
        """Two rounds of warming up among strangers, then one alone: one local round from FedAvg's model."""
        watched = watch(tiny(Strangers(rho=0.67), rounds=3))
        average = final_rows(tiny(FedAvg(), rounds=2).run())
        prepared = tiny(Local(), rounds=3).prepare()
        federation = prepared.federation()
        federation["model"].own.copy_(average)
        federation.round = 2
        Rounds(prepared.method, federation, make_engine("serial", prepared.problem(), prepared.method, 0)).run_round()
        torch.testing.assert_close(final_rows(watched.result), rows_of(federation), atol=1e-5, rtol=1e-5)


class TestFederationsAtTheEdges:
    def test_clients_that_never_took_part_in_phase_two_keep_the_mean_and_are_not_mixed(self) -> None:
        method = PFedSim(rho=0.5)
        federation = server(method, clients=4, round=5)
        send(method, federation, random_rows(federation))
        mean = rows_of(federation)[3].clone()
        federation.round = 6
        deliver(method, federation, [0, 1])
        send(method, federation, federation.initial + 0.1 * random_rows(federation, 2, seed=3), [0, 1])
        federation.round = 7
        weights = deliver(method, federation, [0, 2, 3])
        assert not bool(weights[0, 2:].any())
        assert float(weights[0, 1]) > 0
        assert torch.equal(weights[1:], torch.eye(4)[2:])
        assert torch.equal(rows_of(federation)[3], mean)

    @pytest.mark.thorough
    @pytest.mark.parametrize("clients", [1, 2, 3])
    @pytest.mark.parametrize("similarity", ["code", "paper"])
    def test_few_clients(self, clients: int, similarity: str) -> None:
        watched = watch(tiny(PFedSim(rho=0.3, similarity=similarity), clients=clients, rounds=4))
        assert_valid_mixes(watched)
        assert bool(torch.isfinite(final_rows(watched.result)).all())

    def test_one_client_trains_alone(self) -> None:
        ours, theirs = (final_rows(tiny(method, clients=1, rounds=4).run()) for method in (PFedSim(), Local()))
        assert torch.equal(ours, theirs)

    @pytest.mark.thorough
    @pytest.mark.parametrize("join", [1.0, 0.5])
    @pytest.mark.parametrize("similarity", ["code", "paper"])
    def test_relabelling_permutes(self, join: float, similarity: str) -> None:
        assert_relabelling_permutes(PFedSim(rho=0.3, similarity=similarity), rounds=6, join=join)

    def test_tested_with_the_stored_model_when_trained_and_with_the_mix_when_received(self) -> None:
        result = tiny(PFedSim(rho=0.0), clients=5, join=0.6, rounds=4).run()
        federation, prepared = result.federation, result.prepared
        problem, module = prepared.problem(), seeded(type(prepared.problem_base.module))
        line = result.lines[-1]
        similarity = federation.values["similarity"]
        stored = rows_of(federation)
        mixed = stored.clone()
        extractor = federation.layout.columns("extractor")
        extractor.put(mixed, (similarity / similarity.sum(1, keepdim=True)).float() @ extractor.take(stored))
        for moment, rows in (("trained", stored), ("received", mixed)):
            for k in range(5):
                federation.layout.load(module, rows[k]).eval()
                with torch.no_grad():
                    hits = module(problem.inputs[problem.test[k]]).argmax(1) == problem.labels[problem.test[k]]
                assert line.values(moment, "accuracy")[k] == pytest.approx(float(hits.float().mean())), (
                    moment,
                    k,
                )

    def test_a_diverged_client_is_left_out_and_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        method = PFedSim(rho=0.0)
        before = tiny(method, rounds=1).run()
        break_client(monkeypatch, client=2, round=2)
        watched = watch(tiny(method, rounds=2))
        rows, federation = final_rows(watched.result), watched.result.federation
        assert bool(torch.isfinite(rows).all())
        head = federation.layout.columns("classifier")
        assert torch.equal(head.take(rows[2]), head.take(final_rows(before)[2]))
        assert watched.result.summary["diverged"] == {"2": [2]}
        pairs = torch.arange(4) != 2
        old, new = before.federation.values["similarity"], federation.values["similarity"]
        assert torch.equal(new[2], old[2])  # its pairs are stale, not wrong
        assert not torch.equal(new[pairs][:, pairs], old[pairs][:, pairs])

    def test_a_client_that_diverges_while_warming_up_gets_the_mean_of_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        break_client(monkeypatch, client=2, round=1)
        watched = watch(tiny(PFedSim(rho=1.0), rounds=1))
        rows = final_rows(watched.result)
        assert watched.mixes[0][0].columns.tolist() == [0, 1, 3]
        assert torch.equal(rows[2], rows[0])
        assert bool(torch.isfinite(rows).all())


def test_ledger() -> None:
    watched = watch(tiny(PFedSim(rho=0.5), rounds=4, join=0.5))
    layout = watched.result.federation.layout
    whole, extractor = (4 * layout.columns(group).size for group in ("all", "extractor"))
    # In the second phase a client gets the classifier of the first once, then the extractor alone.
    third, fourth = (set(line.cohort) for line in watched.result.lines[2:])
    newly = len(fourth - third) / len(fourth)
    assert newly < 1
    assert watched.sent("down") == [0, whole, whole, extractor + newly * (whole - extractor)]
    assert watched.sent("up") == [whole] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho": -0.1}, "rho = -0.1"),
        ({"rho": 1.1}, "rho = 1.1"),
        ({"rho": float("nan")}, "rho = nan"),
        ({"similarity": "papers"}, "did you mean 'paper'"),
        ({"self_weight": 0.0}, "self_weight = 0"),
        ({"self_weight": -2.0}, "self_weight = -2"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with refused(message):
        PFedSim(**options)


def test_a_classifier_without_a_weight_matrix_is_refused_before_training() -> None:
    with refused("pfedsim: the classifier 'classifier' has no weight matrix"):
        tiny(PFedSim(), seeded(ScaleNet)).prepare()
