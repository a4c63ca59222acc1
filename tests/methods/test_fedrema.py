"""FedReMa against its equations: the largest gap, the critical period, the remembered mix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
from torch import Tensor

from coterie.client.recipe import Phase
from coterie.client.terms import PrototypeDistance
from coterie.core.exchange import Uploads
from coterie.methods import FedAvg, FedPer, FedReMa, fedrema
from coterie.methods.fedrema import most_relevant
from coterie.rng import torch_stream
from coterie.testing.toys import seeded
from support import final_rows, rows_of, tiny


def row(values: Sequence[float]) -> Tensor:
    """Similarities in which client 0 has the given ones (its own first) and the others are all alike."""
    similarity = torch.ones(len(values), len(values), dtype=torch.float64)
    similarity[0] = torch.tensor(values, dtype=torch.float64)
    return similarity


class TestMaximumDifference:
    HAND = (1.0, 0.1, 0.2, 0.8, 0.9)

    def test_the_hand_case(self) -> None:
        relevant, gaps = most_relevant(row(self.HAND))
        assert relevant[0].tolist() == [True, False, False, True, True]
        assert float(gaps[0]) == pytest.approx(0.6)

    def test_the_client_below_the_gap_is_added_if_asked_for(self) -> None:
        relevant, gaps = most_relevant(row(self.HAND), include_lower=True)
        assert relevant[0].tolist() == [True, False, True, True, True]
        assert float(gaps[0]) == pytest.approx(0.6)

    def test_the_gap_to_the_client_itself_does_not_count(self) -> None:
        relevant, gaps = most_relevant(row([1.0, 0.1, 0.15, 0.12]))
        assert relevant[0].tolist() == [True, False, True, False]
        assert float(gaps[0]) == pytest.approx(0.03)

    def test_the_client_itself_is_relevant_even_if_another_is_as_similar(self) -> None:
        relevant, _ = most_relevant(row([1.0, 1.0, 0.2, 0.1]))
        assert relevant[0].tolist() == [True, True, False, False]
        assert bool(most_relevant(row([0.0, 0.9, 0.2, 0.1]))[0][0, 0])

    @pytest.mark.parametrize("values", [[1.0, 0.4, 0.4, 0.4], [1.0, 0.4, 0.4 + 1e-13, 0.4]])
    def test_equal_similarities_make_everybody_relevant(self, values: list[float]) -> None:
        relevant, gaps = most_relevant(row(values))
        assert bool(relevant.all())
        assert gaps.tolist() == [0.0] * 4

    @pytest.mark.parametrize("clients", [1, 2])
    def test_with_fewer_than_two_others_there_is_no_gap(self, clients: int) -> None:
        relevant, gaps = most_relevant(torch.tensor([[1.0, 0.3], [0.3, 1.0]])[:clients, :clients])
        assert bool(relevant.all())
        assert gaps.tolist() == [0.0] * clients

    def test_three_clients(self) -> None:
        relevant, gaps = most_relevant(row([1.0, 0.3, 0.7]))
        assert relevant[0].tolist() == [True, False, True]
        assert float(gaps[0]) == pytest.approx(0.4)

    def test_at_least_one_other_is_relevant(self) -> None:
        similarity = torch.rand(30, 30, generator=torch.Generator().manual_seed(0))
        relevant, gaps = most_relevant(similarity)
        assert bool(relevant.diagonal().all())
        assert int(relevant.sum(1).min()) >= 2
        assert bool((gaps > 0).all())


class TestAnswers:
    """Equation (5): what classifiers say to one random feature."""

    @staticmethod
    def answers(method: FedReMa, **options: Any) -> tuple[Tensor, Any, Tensor]:
        federation = server(method, clients=4, round=3, seed=5, **options)
        rows = random_rows(federation)
        declared = {"model": federation.layout.columns("all")}
        return (
            method.answers_alike(Uploads(federation, federation.everyone, {"model": rows}, declared)),
            federation,
            rows,
        )

    @pytest.mark.parametrize(
        "method",
        [
            FedReMa(),
            FedReMa(temperature=2.0),
            FedReMa(probe_high=0.5),
            FedReMa(num_probes=4),
            FedReMa(probe="per_row", num_probes=2),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("kind", [None, DeepHeadNet])
    def test_through_the_whole_head(self, method: FedReMa, kind: Any) -> None:
        found, federation, rows = self.answers(method, **({"model": seeded(kind)} if kind else {}))
        module = seeded(kind) if kind else seeded(type(tiny().model))
        module.eval()
        for i in range(4):
            client = -1 if method.probe == "shared" else i
            stream = torch_stream(5, "probe", 3, client)
            h = method.probe_high * torch.rand(method.num_probes, 8, generator=stream)
            said = []
            for one in rows:
                federation.layout.load(module, one)
                said.append((module.classifier(h) / method.temperature).softmax(1).double().detach())
            for j in range(4):
                cosine = torch.nn.functional.cosine_similarity(said[i], said[j], dim=1).mean()
                assert float(found[i, j]) == pytest.approx(float(cosine), abs=1e-6)
        assert found.diagonal().tolist() == [1.0] * 4

    def test_one_feature_for_all_makes_it_symmetric_and_one_a_row_does_not(self) -> None:
        shared, per_row = self.answers(FedReMa())[0], self.answers(FedReMa(probe="per_row"))[0]
        assert torch.equal(shared, shared.T)
        assert not torch.allclose(per_row, per_row.T)

    def test_a_new_feature_every_round(self) -> None:
        method = FedReMa()
        first, federation, rows = self.answers(method)
        federation.round = 4
        declared = {"model": federation.layout.columns("all")}
        again = method.answers_alike(Uploads(federation, federation.everyone, {"model": rows}, declared))
        assert not torch.allclose(first, again)

    def test_dropout_in_the_head_is_off(self) -> None:
        with_dropout = self.answers(FedReMa(), model=seeded(DeepHeadNet, dropout=0.6))[0]
        without = self.answers(FedReMa(), model=seeded(DeepHeadNet))[0]
        assert torch.equal(with_dropout, without)

    def test_an_answer_that_overflows_resembles_nobody_and_spoils_nothing(self) -> None:
        method = FedReMa(delta=0.0)
        federation, healthy = (server(method, clients=5, model=seeded(DeepHeadNet)) for _ in range(2))
        rows = random_rows(federation)
        rows[4, federation.layout.columns("classifier").spans[0][0] :] = 1e30
        assert bool(torch.isfinite(rows).all())
        declared = {"model": federation.layout.columns("all")}
        alike = method.answers_alike(Uploads(federation, federation.everyone, {"model": rows}, declared))
        assert alike[4].tolist() == [0, 0, 0, 0, 1]
        assert alike[:, 4].tolist() == [0, 0, 0, 0, 1]
        first = send(method, healthy, rows[:4], [0, 1, 2, 3])[1].weights
        assert bool((alike[:4, :4] > 0).all())
        assert bool(torch.isfinite(first).all())
        mixes = send(method, federation, rows)
        assert not bool(mixes[1].weights[:4, 4].any())
        assert bool(torch.isfinite(federation.values["period"]).all())
        assert float(federation.values["period"][0]) == 1.0


@dataclass(frozen=True)
class Scripted(FedReMa):
    """FedReMa whose similarities are given: round t's mean gap is `gaps[t − 1]`."""

    gaps: tuple[float, ...] = ()

    def answers_alike(self, uploads: Uploads) -> Tensor:
        gap, m = self.gaps[uploads.federation.round - 1], len(uploads.cohort)
        together = torch.arange(m)[:, None] // 2 == torch.arange(m)[None] // 2  # pairs of neighbours
        return torch.where(together, 0.2 + gap, 0.2).double().fill_diagonal_(1.0)


@dataclass(frozen=True)
class Unequal(FedReMa):
    """FedReMa whose similarities are given: round t's gap of client i is `gaps[t − 1][i]`."""

    gaps: tuple[tuple[float, ...], ...] = ()

    def answers_alike(self, uploads: Uploads) -> Tensor:
        gaps = torch.tensor(self.gaps[uploads.federation.round - 1], dtype=torch.float64)
        alike = torch.full((len(gaps), len(gaps)), 0.1, dtype=torch.float64)
        nearest = (torch.arange(len(gaps)) + 1) % len(gaps)
        alike[torch.arange(len(gaps)), nearest] += gaps
        return alike.fill_diagonal_(1.0)


class TestCriticalPeriod:
    def lasting(self, delta: float, gaps: tuple[float, ...]) -> list[bool]:
        """Whether the period lasts after each round."""
        method = Scripted(delta=delta, gaps=gaps)
        federation = server(method, clients=4)
        found = []
        for round in range(1, len(gaps) + 1):
            federation.round = round
            send(method, federation, random_rows(federation, seed=round))
            found.append(bool(federation.values["period"][0]))
        return found

    def test_before_the_first_round_it_lasts_and_no_gap_was_seen(self) -> None:
        assert server(FedReMa(), clients=4).values["period"].tolist() == [1.0, 0.0]

    def test_it_ends_at_the_first_gap_that_is_no_maximum(self) -> None:
        assert self.lasting(0.999, (0.4, 0.5, 0.4, 0.6)) == [True, True, False, False]

    def test_a_near_maximum_does_not_end_it(self) -> None:
        assert self.lasting(0.9, (0.5, 0.46, 0.45, 0.5)) == [True, True, False, False]  # 0.45 / 0.5 is not above 0.9

    def test_half_of_the_largest(self) -> None:
        assert self.lasting(0.5, (0.3, 0.6, 0.31, 0.29, 0.6)) == [True, True, True, False, False]

    @pytest.mark.parametrize("gaps", [(0.5, 0.001, 0.0, 0.0), (0.0, 0.0, 0.3, 0.0)])
    def test_with_delta_zero_it_never_ends(self, gaps: tuple[float, ...]) -> None:
        assert self.lasting(0.0, gaps) == [True] * 4

    def test_it_lasts_as_long_as_all_are_alike(self) -> None:
        assert self.lasting(0.9, (0.0, 0.0, 0.5, 0.0)) == [True, True, True, False]

    def test_it_starts_by_the_equation_with_mean_gaps(self) -> None:
        method = Scripted(gaps=(0.3,))
        federation = server(method, clients=4)
        send(method, federation, random_rows(federation))
        assert float(federation.values["period"][1]) == pytest.approx(0.3)

    def test_it_ends_by_the_mean_of_gaps_that_differ_and_not_by_the_largest(self) -> None:
        """Gaps of 0.7, 0.1, 0.1, 0.1 have the mean 0.25; a mean of 0.2 is above δ = 0.5 of that, and 0.1 is not."""
        method = Unequal(delta=0.5, gaps=((0.7, 0.1, 0.1, 0.1), (0.2, 0.2, 0.2, 0.2), (0.1, 0.1, 0.1, 0.1)))
        federation = server(method, clients=4)
        periods = []
        for federation.round in (1, 2, 3):
            send(method, federation, random_rows(federation))
            periods.append(federation.values["period"].tolist())
        assert periods == [pytest.approx([lasts, 0.25]) for lasts in (1.0, 1.0, 0.0)]

    def test_afterwards_no_similarity_is_computed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        method = Scripted(delta=1.0, gaps=(0.3,))
        federation = server(method, clients=4)
        send(method, federation, random_rows(federation))
        federation.round = 2
        chosen = federation.values["chosen"].clone()
        send(method, federation, random_rows(federation))  # gaps[1] does not exist
        assert torch.equal(federation.values["chosen"], chosen)


class TestMixes:
    def test_in_the_period_by_size_among_the_relevant(self) -> None:
        method = Scripted(gaps=(0.3,))
        federation = server(method, clients=4)
        rows = random_rows(federation)
        extractor, classifier = send(method, federation, rows)
        n = federation.sizes.tolist()
        expected = torch.zeros(4, 4)
        for i, j in ((0, 1), (1, 0), (2, 3), (3, 2)):
            expected[i, i], expected[i, j] = n[i] / (n[i] + n[j]), n[j] / (n[i] + n[j])
        torch.testing.assert_close(classifier.weights, expected)
        torch.testing.assert_close(extractor.weights[0], (federation.sizes / federation.sizes.sum()).float())
        mixed = part(federation, rows_of(federation), "classifier")
        torch.testing.assert_close(mixed, expected @ part(federation, rows, "classifier"))

    def test_the_remembered_mix_by_hand(self) -> None:
        """Three rounds of the period with changing cohorts; then rows of G divided by their sums, sizes ignored."""
        method = Scripted(delta=0.9, gaps=(0.5, 0.5, 0.1))
        federation = server(method, clients=6)
        last: dict[int, Tensor] = {}
        for round, cohort in enumerate(([0, 1, 2, 3], [0, 2, 3, 4], [0, 1, 2, 3]), start=1):
            federation.round = round
            rows = random_rows(federation, 4, seed=round)
            send(method, federation, rows, cohort)
            last |= dict(zip(cohort, rows, strict=True))
        # Neighbours within the cohort are relevant: 01 23, 02 34, 01 23.
        G = torch.tensor(
            [
                [3, 2, 1, 0, 0, 0],
                [2, 2, 0, 0, 0, 0],
                [1, 0, 3, 2, 0, 0],
                [0, 0, 2, 3, 1, 0],
                [0, 0, 0, 1, 1, 0],
                [0, 0, 0, 0, 0, 0],
            ]
        ).float()
        assert torch.equal(federation.values["chosen"], G)
        assert not bool(federation.values["period"][0])
        federation.round = 4
        untouched = rows_of(federation)[[1, 2, 4]].clone()
        rows = random_rows(federation, 3, seed=9)
        mix = send(method, federation, rows, [0, 3, 5])[1]
        last |= dict(zip([0, 3, 5], rows, strict=True))
        expected = torch.stack([G[0] / 6, G[3] / 6, torch.eye(6)[5]])  # client 5 was never chosen: it keeps its own
        torch.testing.assert_close(mix.weights, expected)
        stored = part(federation, torch.stack([last[k] for k in range(6)]), "classifier")
        torch.testing.assert_close(part(federation, rows_of(federation), "classifier")[[0, 3, 5]], expected @ stored)
        kept = part(federation, rows_of(federation)[[1, 2, 4]], "classifier")
        assert torch.equal(kept, part(federation, untouched, "classifier"))

    @pytest.mark.parametrize("few", [[1], [0, 3]])
    def test_a_round_with_too_few_answers_does_not_end_the_period(self, few: list[int]) -> None:
        """There is no gap to judge by; the next round with one decides."""
        method = FedReMa(delta=0.5)
        federation = server(method, clients=5)
        send(method, federation, random_rows(federation, seed=1))
        before = federation.values["period"].clone()
        assert bool(before[0])
        assert float(before[1]) > 0
        federation.round = 2
        send(method, federation, random_rows(federation, len(few), seed=2), few)
        assert torch.equal(federation.values["period"], before)
        assert federation.values["chosen"][few[0]].tolist() != [0.0] * 5

    @pytest.mark.parametrize("clients", [4, 6])
    def test_equal_similarities_are_fedavg(self, monkeypatch: pytest.MonkeyPatch, clients: int) -> None:
        monkeypatch.setattr(FedReMa, "answers_alike", lambda self, up: torch.ones(len(up.cohort), len(up.cohort)))
        ours, theirs = (final_rows(tiny(method, clients=clients, rounds=4).run()) for method in (FedReMa(), FedAvg()))
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)

    @pytest.mark.parametrize("model", ["plain", "norm"])
    def test_with_nobody_else_relevant_it_is_fedper(self, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
        def alone(similarity: Tensor, include_lower: bool) -> tuple[Tensor, Tensor]:
            return torch.eye(len(similarity), dtype=torch.bool), torch.ones(len(similarity))

        monkeypatch.setattr(fedrema, "most_relevant", alone)
        ours, theirs = (final_rows(tiny(method, model, rounds=4).run()) for method in (FedReMa(), FedPer()))
        assert torch.equal(ours, theirs)

    @pytest.mark.thorough
    def test_two_hundred_clients_against_a_plain_loop(self) -> None:
        method = FedReMa(delta=0.0)
        federation = server(method, clients=200)
        rows = random_rows(federation)
        declared = {"model": federation.layout.columns("all")}
        alike = method.answers_alike(Uploads(federation, federation.everyone, {"model": rows}, declared))
        weights = send(method, federation, rows)[1].weights
        for k in (0, 101, 199):
            ranked = sorted((j for j in range(200) if j != k), key=lambda j: float(alike[k, j]))
            gaps = [float(alike[k, b] - alike[k, a]) for a, b in pairwise(ranked)]
            above = [*ranked[gaps.index(max(gaps)) + 1 :], k]
            total = sum(int(federation.sizes[j]) for j in above)
            expected = torch.tensor([int(federation.sizes[j]) / total if j in above else 0.0 for j in range(200)])
            torch.testing.assert_close(weights[k], expected)


class TestFederationsAtTheEdges:
    def test_a_round_concerns_its_cohort_only(self) -> None:
        method = FedReMa()
        federation = server(method, clients=6)
        before = part(federation, rows_of(federation), "classifier").clone()
        mixes = send(method, federation, random_rows(federation, 4), [0, 2, 3, 5])
        assert mixes[1].rows.tolist() == mixes[1].columns.tolist() == [0, 2, 3, 5]
        after = part(federation, rows_of(federation), "classifier")
        assert torch.equal(after[[1, 4]], before[[1, 4]])
        chosen = federation.values["chosen"]
        assert not bool(chosen[[1, 4]].any() or chosen[:, [1, 4]].any())
        # Everybody gets the newest extractor, also those that rest.
        extractor = part(federation, rows_of(federation), "extractor")
        assert torch.equal(extractor[1], extractor[0])

    @pytest.mark.thorough
    @pytest.mark.parametrize("clients", [1, 2, 3])
    @pytest.mark.parametrize("variant", ["", "F", "A", "A&F"])
    def test_few_clients(self, clients: int, variant: str) -> None:
        watched = watch(tiny(FedReMa(variant=variant), clients=clients))
        assert_valid_mixes(watched)
        assert bool(torch.isfinite(final_rows(watched.result)).all())
        if clients <= 2:  # no gap: FedAvg on the classifier
            torch.testing.assert_close(watched.mixes[0][1].weights, watched.mixes[0][0].weights.expand(clients, -1))

    @pytest.mark.thorough
    @pytest.mark.parametrize("options", [{}, {"join": 0.5}])
    @pytest.mark.parametrize("method", [FedReMa(delta=0.999), FedReMa(delta=0.0, probe="per_row")], ids=str)
    def test_relabelling_permutes(self, method: FedReMa, options: dict[str, float]) -> None:
        assert_relabelling_permutes(method, rounds=4, **options)

    def test_a_diverged_client_is_left_out_and_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = final_rows(tiny(FedReMa(), rounds=1).run())
        break_client(monkeypatch, client=2, round=2)
        watched = watch(tiny(FedReMa(), rounds=2))
        rows, head = final_rows(watched.result), watched.result.federation.layout.columns("classifier")
        assert bool(torch.isfinite(rows).all())
        assert torch.equal(head.take(rows[2]), head.take(before[2]))
        assert watched.result.summary["diverged"] == {"2": [2]}
        assert all(mix.columns.tolist() == [0, 1, 3] for mix in watched.mixes[1])

    @pytest.mark.parametrize(("variant", "aligned"), [("", [False]), ("F", [True]), ("A", [False] * 2)])
    def test_variants_say_which_phases_are_aligned(self, variant: str, aligned: list[bool]) -> None:
        method = FedReMa(variant=variant, alignment=0.25)
        phases = [step for step in method.recipe(server(method)) if isinstance(step, Phase)]
        expected = PrototypeDistance("prototypes", 0.25)
        assert [expected in phase.terms for phase in phases] == aligned

    def test_prototypes_pass_over_missing_classes(self) -> None:
        method = FedReMa(variant="F")
        federation = server(method, clients=3)
        federation.class_counts = torch.tensor([[4, 0, 0], [2, 6, 0], [1, 1, 0]])
        means = torch.full((3, 3, 8), torch.nan)
        means[0, 0], means[1, 0], means[1, 1], means[2, 0], means[2, 1] = 1.0, 4.0, 2.0, 5.0, 9.0
        send(method, federation, random_rows(federation), class_means=means)
        prototypes = federation.values["prototypes"]
        assert prototypes[0].tolist() == pytest.approx([(4 + 8 + 5) / 7] * 8)
        assert prototypes[1].tolist() == pytest.approx([(12 + 9) / 7] * 8)
        assert bool(prototypes[2].isnan().all())
        federation.round = 2
        send(method, federation, random_rows(federation, 1), [0], class_means=2 * means[:1])
        assert federation.values["prototypes"][0].tolist() == pytest.approx([2.0] * 8)
        assert federation.values["prototypes"][1].tolist() == pytest.approx([3.0] * 8)  # its last mean


@pytest.mark.parametrize("variant", ["", "F"])
def test_ledger(variant: str) -> None:
    watched = watch(tiny(FedReMa(variant=variant)))
    whole = 4 * watched.result.federation.layout.columns("all").size
    prototypes = 4 * 3 * 8 if variant else 0
    assert watched.sent("up") == [whole + prototypes] * 3
    assert watched.sent("down") == [0, whole + prototypes, whole + prototypes]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": -0.01}, "delta = -0.01"),
        ({"delta": 1.01}, "delta = 1.01"),
        ({"delta": float("nan")}, "delta = nan"),
        ({"temperature": 0.0}, "temperature = 0"),
        ({"alignment": -1.0}, "alignment = -1"),
        ({"probe_high": 0.0}, "probe_high = 0"),
        ({"num_probes": 0}, "num_probes = 0"),
        ({"variant": "B"}, "unknown variant 'B'"),
        ({"probe": "per-row"}, "did you mean 'per_row'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with refused(message):
        FedReMa(**options)


def test_any_classifier_will_do() -> None:
    """Classifiers are compared by what they answer: a weight matrix is not needed."""
    assert bool(torch.isfinite(final_rows(tiny(FedReMa(), seeded(ScaleNet)).run())).all())
