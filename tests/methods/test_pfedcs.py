"""PFedCS against its equations, its degenerate cases, and federations at the edges."""

from __future__ import annotations

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
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, log_softmax

from coterie.client.recipe import Phase
from coterie.client.trainer import Trainer, train
from coterie.core.columns import Columns
from coterie.core.downloads import Owed, owed
from coterie.core.federation import Federation
from coterie.maths import collaborators
from coterie.maths.similarity import row_normalised, squared_distances
from coterie.methods import FedPer, PFedCS
from coterie.rng import torch_stream
from coterie.testing.toys import seeded
from support import final_rows, rows_of, seat, tiny, trained_row


def clustered_rows(federation: Federation, groups: list[int], spread: float = 0.01) -> Tensor:
    """Uploads whose classifiers lie near one point per group."""
    stream = torch.Generator().manual_seed(2)
    centres = torch.randn(max(groups) + 1, federation.layout.width, generator=stream)
    noise = torch.randn(len(groups), federation.layout.width, generator=stream)
    return federation.initial + centres[groups] + spread * noise


class TestDegenerateCases:
    @pytest.mark.thorough
    @pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
    @pytest.mark.parametrize("join", [1.0, 0.5])
    def test_without_collaborators_it_is_fedper_bit_for_bit(self, model: str, join: float) -> None:
        """Select None of Table 3: nobody teaches, also not the client itself."""
        settings: dict[str, Any] = {"join": join, "rounds": 4, "momentum": 0.5, "weight_decay": 0.01, "clip": 2.0}
        ours = watch(tiny(PFedCS(selection="none", beta=3), model, **settings))
        theirs = watch(tiny(FedPer(), model, **settings))
        assert torch.equal(final_rows(ours.result), final_rows(theirs.result))
        for key in ("received", "trained", "bytes"):
            by_round = [[getattr(line, key) for line in run.result.lines] for run in (ours, theirs)]
            assert by_round[0] == by_round[1]
        assert [[mix.target for mix in mixes] for mixes in ours.mixes] == [["model"]] * 4

    @pytest.mark.thorough
    def test_with_collaborators_it_is_not_unless_without_kl(self) -> None:
        plain = final_rows(tiny(FedPer(), rounds=4).run())
        assert not torch.allclose(final_rows(tiny(PFedCS(beta=4), rounds=4).run()), plain, atol=1e-4)
        # Without KL, whoever the collaborators are, nothing reaches the model.
        assert torch.equal(final_rows(tiny(PFedCS(kl=0.0, beta=4), rounds=4).run()), plain)

    def test_a_single_round_of_stage_one_has_no_teacher(self) -> None:
        settings: dict[str, Any] = {"rounds": 3}
        ours, theirs = watch(tiny(PFedCS(beta=1), **settings)), watch(tiny(FedPer(), **settings))
        assert torch.equal(final_rows(ours.result), final_rows(theirs.result))
        assert ours.sent("up") == theirs.sent("up")
        assert ours.sent("down") == theirs.sent("down")

    @pytest.mark.parametrize("round", [4, 5, 10])
    def test_after_stage_one_everything_is_as_in_fedper(self, round: int) -> None:
        method = PFedCS(beta=3)
        federation = server(method, round=round)
        assert method.recipe(federation) == FedPer().recipe(federation) == (Phase(),)
        assert method.uploads(federation) == FedPer().uploads(federation)
        (mix,) = send(method, federation, random_rows(federation))
        assert (mix.group, mix.target) == ("extractor", "model")
        for k in range(5):
            assert owed(federation, k) == Owed({"model": federation.layout.columns("extractor")}, ())

    def test_stage_one_lasts_all_rounds_by_default(self) -> None:
        method = PFedCS()
        assert [bool(method.has_teachers(server(method, round=t, rounds=5))) for t in range(1, 8)] == [
            t in (2, 3, 4, 5) for t in range(1, 8)
        ]
        assert method.last_stage_one_round(server(method, rounds=1)) == 1
        assert PFedCS(selection="none").last_stage_one_round(server(method, rounds=5)) == 1


class TestTeaching:
    @pytest.mark.parametrize("selection", ["gmm", "kmeans", "hierarchical"])
    def test_clusters_of_classifiers_teach_among_themselves(self, selection: str) -> None:
        groups = [0, 1, 0, 1, 1, 0]
        method = PFedCS(selection=selection, beta=10)
        federation = server(method, clients=6, round=1)
        teaching = send(method, federation, clustered_rows(federation, groups))[1]
        assert (teaching.group, teaching.target) == ("classifier", "teacher")
        together = torch.tensor(groups)[:, None] == torch.tensor(groups)[None]
        assert not bool((teaching.weights[~together] != 0).any())
        assert bool((teaching.weights.diagonal() > 0).all())
        assert bool(((teaching.weights > 0).sum(1) >= 2).all())

    def test_candidates_are_the_whole_own_cluster_before_the_threshold(self) -> None:
        groups = [0, 1, 0, 1, 1, 0]
        federation = server(PFedCS(), clients=6)
        candidates = collaborators.near_by_mixture(_distances(federation, clustered_rows(federation, groups)))
        together = torch.tensor(groups)[:, None] == torch.tensor(groups)[None]
        assert torch.equal(candidates, together & ~torch.eye(6, dtype=torch.bool))

    def test_at_beta_only_the_nearest_teaches(self) -> None:
        method = PFedCS(beta=5, lam=0.0)
        federation = server(method, clients=6, round=4)  # its uploads make the teachers of round 5 = β
        rows = random_rows(federation)
        weights = send(method, federation, rows)[1].weights
        matrices = torch.stack([federation.layout.views(row)["classifier.weight"] for row in rows])
        for k in range(6):
            apart = [float((matrices[k] - matrices[j]).square().sum()) if j != k else torch.inf for j in range(6)]
            assert set(weights[k].nonzero()[:, 0].tolist()) == {k, int(torch.tensor(apart).argmin())}

    def test_more_clients_teach_early_than_late(self) -> None:
        def teachers(round: int) -> int:
            method = PFedCS(beta=10, lam=0.0)
            federation = server(method, clients=30, round=round)
            return int((send(method, federation, random_rows(federation))[1].weights > 0).sum())

        counts = [teachers(round) for round in (1, 5, 9)]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] > counts[2] == 60

    def test_biases_are_mixed_but_not_compared(self) -> None:
        method = PFedCS(beta=10)
        federation, other = server(method), server(method)
        rows = random_rows(federation)
        shifted = rows.clone()
        bias = next(entry for entry in federation.layout.entries if entry.name == "classifier.bias")
        shifted[:, bias.start : bias.stop] += torch.arange(5.0)[:, None] * 100
        weights = send(method, federation, rows)[1].weights
        assert torch.equal(send(method, other, shifted)[1].weights, weights)
        expected = weights @ part(other, shifted, "classifier")
        torch.testing.assert_close(rows_of(other, "teacher"), expected)
        assert not torch.allclose(rows_of(other, "teacher"), rows_of(federation, "teacher"))

    def test_the_teacher_is_never_installed(self) -> None:
        method = PFedCS(beta=10)
        federation = server(method)
        rows = random_rows(federation)
        send(method, federation, rows)
        assert torch.equal(part(federation, rows_of(federation), "classifier"), part(federation, rows, "classifier"))
        extractor = (federation.sizes / federation.sizes.sum()).float() @ part(federation, rows, "extractor")
        torch.testing.assert_close(part(federation, rows_of(federation), "extractor")[2], extractor)

    def test_identical_classifiers_weigh_by_number_and_size(self) -> None:
        method = PFedCS(beta=10, lam=0.4)
        federation = server(method, clients=4)
        weights = send(method, federation, federation.initial.repeat(4, 1))[1].weights
        expected = 0.4 / 4 + 0.6 * (federation.sizes / federation.sizes.sum())
        torch.testing.assert_close(weights, expected.float()[None].repeat(4, 1))

    def test_all_matrices_of_a_deep_classifier_are_compared(self) -> None:
        method = PFedCS(beta=10, lam=1.0, selection="all")
        federation = server(method, clients=4, model=seeded(DeepHeadNet))
        rows = federation.initial.repeat(4, 1)
        first, last = federation.layout.classifier_weights
        rows[1, first.start] += 1.0
        rows[2, last.start] += 2.0
        rows[3, last.start + 1] += 3.0
        weights = send(method, federation, rows)[1].weights
        # Squared distances from client 0: 0, 1, 4, 9; each similarity weight is (9 − d) / (4 · 9 − 14).
        torch.testing.assert_close(weights[0], torch.tensor([9.0, 8.0, 5.0, 0.0]) / 22)

    def test_plain_distances_select_differently_from_squares(self) -> None:
        federation = server(PFedCS(), clients=8)
        rows = random_rows(federation)
        squared, plain = (
            send(PFedCS(beta=10, lam=1.0, dist_power=power), server(PFedCS(), clients=8), rows)[1].weights
            for power in (2, 1)
        )
        assert not torch.allclose(squared, plain)

    @pytest.mark.parametrize(
        ("selection", "expected"),
        [("all", lambda D: D >= 0), ("fixed", lambda D: D <= 0.5)],
    )
    def test_simple_selections(self, selection: str, expected: Any) -> None:
        method = PFedCS(selection=selection, beta=10)
        federation = server(method, clients=7)
        distances = _distances(federation, clustered_rows(federation, [0, 0, 1, 1, 1, 0, 1], spread=0.5))
        apart = ~torch.eye(7, dtype=torch.bool)
        assert torch.equal(
            method.collaborators(federation, federation.everyone, distances), expected(distances) & apart
        )

    @pytest.mark.thorough
    def test_two_hundred_clients_against_a_plain_loop(self) -> None:
        method = PFedCS(beta=10, lam=0.3)
        federation = server(method, clients=200, round=3)
        rows = clustered_rows(federation, [k % 5 for k in range(200)], spread=0.4)
        weights = send(method, federation, rows)[1].weights
        matrices = [federation.layout.views(row)["classifier.weight"].double() for row in rows]
        for k in (0, 77, 199):
            D = torch.tensor([float((matrices[k] - other).square().sum()) for other in matrices]).double()
            D = D / D.max()
            others = [j for j in range(200) if j != k]
            mean, least = float(D[others].mean()), float(D[others].min())
            limit = mean + 4 / 10 * (least - mean)
            near = collaborators.near_by_mixture(_one_row(D, k))[k]
            S = [k] + [j for j in others if bool(near[j]) and float(D[j]) <= limit + 1e-12]
            assert 2 < len(S) < 60
            farthest, average = max(float(D[j]) for j in S), sum(float(D[j]) for j in S) / len(S)
            expected = torch.zeros(200)
            for j in S:
                alike = (farthest - float(D[j])) / (len(S) * (farthest - average))
                size = int(federation.sizes[j]) / sum(int(federation.sizes[i]) for i in S)
                expected[j] = 0.3 * alike + 0.7 * size
            torch.testing.assert_close(weights[k], expected, atol=1e-6, rtol=1e-4)


def _distances(federation: Federation, rows: Tensor) -> Tensor:
    columns = [entry.columns for entry in federation.layout.classifier_weights]
    return row_normalised(squared_distances(torch.cat([one.take(rows) for one in columns], 1)))


def _one_row(distances: Tensor, k: int) -> Tensor:
    whole = torch.zeros(len(distances), len(distances), dtype=torch.float64)
    whole[k] = distances
    return whole


class TestClientRound:
    """Equations (9), (10) and (12), written out."""

    @staticmethod
    def taught(method: PFedCS, rounds_taken: int = 1, **options: Any) -> tuple[Any, Tensor, Tensor]:
        """A worker after round 2 of stage 1 with a given teacher; the teacher and the trained row."""
        worker = seat(tiny(method, epochs=2, lr=0.2, rounds=10, **options).prepare(), client=1, round=2)
        federation = worker.federation
        teacher = 2 * torch.randn(federation["teacher"].width, generator=torch.Generator().manual_seed(3))
        federation["teacher"].own[1] = teacher
        federation.rounds_taken[1] = rounds_taken
        train(worker, method.recipe(federation))
        return worker, teacher, worker.model("model").row.clone()

    @pytest.mark.parametrize("trunk", ["current", "frozen"])
    @pytest.mark.parametrize("tune_epochs", [0, 1, 3])
    def test_tune_the_teacher_then_learn_from_it(self, trunk: str, tune_epochs: int) -> None:
        method = PFedCS(beta=5, kl=0.7, tune_epochs=tune_epochs, teacher_trunk=trunk)
        worker, teacher, found = self.taught(method)
        problem = worker.problem
        own = problem.train[1]
        module, received = seeded(type(problem.module)), seeded(type(problem.module))
        v = teacher.clone()
        shape = module.classifier.weight.shape

        def head(row: Tensor, features: Tensor) -> Tensor:
            return linear(features, row[: shape.numel()].view(shape), row[shape.numel() :])

        stream = torch_stream(0, "batches:1", 2, 1)
        for _ in range(tune_epochs):
            for index in torch.randperm(len(own), generator=stream).split(10):
                v = v.detach().requires_grad_()
                features = received.body(problem.inputs[own[index]]).detach()
                (slope,) = torch.autograd.grad(cross_entropy(head(v, features), problem.labels[own[index]]), v)
                v = v.detach() - 0.2 * slope
        v = v.detach()
        stream = torch_stream(0, "batches:0", 2, 1)
        for _ in range(2):
            for index in torch.randperm(len(own), generator=stream).split(10):
                inputs, labels = problem.inputs[own[index]], problem.labels[own[index]]
                z = module.body(inputs)
                p_v = head(v, (z if trunk == "current" else received.body(inputs)).detach()).softmax(1).detach()
                log_p = log_softmax(module.classifier(z), 1)
                kl = (p_v * (p_v.log() - log_p)).sum(1).mean()
                loss = cross_entropy(module.classifier(z), labels) + 0.7 * kl
                module.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for parameter in module.parameters():
                        assert parameter.grad is not None
                        parameter -= 0.2 * parameter.grad
        torch.testing.assert_close(found, problem.layout.row(module), atol=1e-5, rtol=1e-4)

    def test_the_gradient_of_the_logits(self) -> None:
        """∂L/∂logits = (2 p_w − y − p_v) / B, seen at the bias of the classifier."""
        method = PFedCS(beta=5, tune_epochs=0)
        worker = seat(tiny(method, batch=1000, rounds=10).prepare(), client=1, round=2)
        worker.federation["teacher"].own.normal_(generator=torch.Generator().manual_seed(0))
        worker.federation.rounds_taken.fill_(1)
        (phase,) = method.recipe(worker.federation)
        trainer = Trainer(worker, phase, 0)
        batch = next(trainer.batches())
        trainer.gradient(batch)
        p_w, p_v = batch.logits.softmax(1), batch.head("teacher").softmax(1)
        y = nn.functional.one_hot(batch.labels, 3)
        bias = worker.problem.layout.columns("classifier").spans[0][1] - 3
        found = worker.model("model").grad[bias : bias + 3]
        torch.testing.assert_close(found, (2 * p_w - y - p_v).mean(0).detach())

    def test_the_tuned_teacher_does_not_move_the_model_before_training(self) -> None:
        worker, teacher, _ = self.taught(PFedCS(beta=5, tune_epochs=2))
        tuned = worker.problem.layout.columns("classifier").take(worker.model("teacher").row)
        assert not torch.allclose(tuned, teacher)

    def test_without_a_teacher_a_client_trains_plainly(self) -> None:
        method = PFedCS(beta=5, kl=50.0)
        _, _, found = self.taught(method, rounds_taken=0)
        prepared = tiny(FedPer(), epochs=2, lr=0.2, rounds=10).prepare()
        assert torch.equal(found, trained_row(prepared, (Phase(),), client=1, round=2))

    def test_the_first_round_has_no_teacher(self) -> None:
        method = PFedCS(beta=5)
        federation = server(method, round=1)
        assert method.recipe(federation) == (Phase(),)
        assert owed(federation, 0) == Owed({}, ())
        assert method.uploads(federation) == {"model": "all"}


class TestFederationsAtTheEdges:
    def test_clients_that_never_took_part_neither_teach_nor_learn(self) -> None:
        method = PFedCS(beta=10, selection="all")
        federation = server(method)
        rows = random_rows(federation, 3)
        teaching = send(method, federation, rows, [0, 2, 3])[1]
        assert teaching.rows.tolist() == [0, 2, 3]
        assert teaching.columns.tolist() == [0, 2, 3]
        assert bool((teaching.weights > 0).all())
        untaught = part(federation, federation.initial, "classifier")
        taught = [not torch.equal(row, untaught) for row in rows_of(federation, "teacher")]
        sent = ["teacher" in owed(federation, k).slots for k in range(5)]
        assert taught == sent == [True, False, True, True, False]

    def test_resting_clients_teach_with_their_last_classifier(self) -> None:
        method = PFedCS(beta=10, selection="all")
        federation = server(method, clients=4)
        first = random_rows(federation)
        send(method, federation, first)
        federation.round = 2
        second = random_rows(federation, 2, seed=5)
        weights = send(method, federation, second, [0, 1])[1].weights
        stored = part(federation, torch.cat([second, first[2:]]), "classifier")
        assert bool((weights[0, 2:] > 0).all())
        torch.testing.assert_close(rows_of(federation, "teacher"), weights @ stored)

    @pytest.mark.thorough
    @pytest.mark.parametrize("selection", ["gmm", "kmeans", "hierarchical", "none", "all", "random", "fixed"])
    @pytest.mark.parametrize("clients", [1, 2, 3])
    def test_few_clients(self, clients: int, selection: str) -> None:
        watched = watch(tiny(PFedCS(selection=selection, beta=3), clients=clients))
        assert_valid_mixes(watched)
        assert bool(torch.isfinite(final_rows(watched.result)).all())
        if clients == 1 and selection != "none":
            assert watched.mixes[0][1].weights.tolist() == [[1.0]]

    def test_two_clients_by_hand(self) -> None:
        method = PFedCS(beta=10, lam=0.5)
        federation = server(method, clients=2)
        weights = send(method, federation, random_rows(federation))[1].weights
        a, b = (federation.sizes / federation.sizes.sum()).tolist()
        # Similarity 1 for oneself and 0 for the neighbour, who is the farthest of two.
        torch.testing.assert_close(weights, torch.tensor([[0.5 + a / 2, b / 2], [a / 2, 0.5 + b / 2]]))

    @pytest.mark.thorough
    @pytest.mark.parametrize("join", [1.0, 0.5])
    @pytest.mark.parametrize("selection", ["gmm", "random"])
    def test_relabelling_permutes(self, join: float, selection: str) -> None:
        assert_relabelling_permutes(PFedCS(beta=3, selection=selection), join=join, rounds=4)

    def test_a_diverged_client_is_left_out_and_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = final_rows(tiny(PFedCS(beta=9), rounds=1).run())
        break_client(monkeypatch, client=2, round=2)
        watched = watch(tiny(PFedCS(beta=9), rounds=2))
        rows = final_rows(watched.result)
        head = watched.result.federation.layout.columns("classifier")
        assert bool(torch.isfinite(rows).all())
        assert torch.equal(head.take(rows[2]), head.take(before[2]))
        assert watched.result.summary["diverged"] == {"2": [2]}
        assert watched.mixes[1][0].columns.tolist() == [0, 1, 3]

    def test_a_client_that_diverges_at_once_teaches_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        break_client(monkeypatch, client=2, round=1)
        watched = watch(tiny(PFedCS(beta=9, selection="all"), rounds=2))
        teaching = watched.mixes[0][1]
        assert teaching.rows.tolist() == [0, 1, 3]
        assert teaching.columns.tolist() == [0, 1, 3]
        assert bool(torch.isfinite(final_rows(watched.result)).all())


def test_ledger() -> None:
    watched = watch(tiny(PFedCS(beta=3), rounds=5))
    layout = watched.result.federation.layout
    extractor, classifier = (4 * layout.columns(group).size for group in ("extractor", "classifier"))
    both = extractor + classifier
    # No teacher in round 1; the classifiers of round β would teach nobody, so they stay at home.
    assert watched.sent("down") == [0, both, both, extractor, extractor]
    assert watched.sent("up") == [both, both, extractor, extractor, extractor]


def test_who_joins_late_is_not_billed_for_a_teacher_it_does_not_have() -> None:
    watched = watch(tiny(PFedCS(), rounds=5, join=0.5))
    layout = watched.result.federation.layout
    extractor, classifier = (4 * layout.columns(group).size for group in ("extractor", "classifier"))
    seen: set[int] = set()
    late = 0
    for line in watched.result.lines:
        taught = len(seen & set(line.cohort))
        late += bool(seen) * (len(line.cohort) - taught)
        received = len(line.cohort) * extractor if seen else 0  # everybody knows the initial model
        assert line.bytes.down == received + taught * classifier
        seen |= set(line.cohort)
    assert late > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0}, "beta = 0: must be at least 1"),
        ({"beta": -3}, "beta = -3"),
        ({"lam": -0.1}, "lam = -0.1"),
        ({"lam": 1.1}, "lam = 1.1"),
        ({"lam": float("nan")}, "lam = nan"),
        ({"kl": -1.0}, "kl = -1"),
        ({"tune_epochs": -1}, "tune_epochs = -1"),
        ({"dist_power": 3}, "dist_power = 3"),
        ({"selection": "kmean"}, "did you mean 'kmeans'"),
        ({"weights": "self"}, "unknown weights 'self'"),
        ({"teacher_trunk": "x"}, "unknown teacher_trunk 'x'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with refused(message):
        PFedCS(**options)


def test_a_classifier_without_a_weight_matrix_is_refused_before_training() -> None:
    with refused("pfedcs: the classifier 'classifier' has no weight matrix"):
        tiny(PFedCS(), seeded(ScaleNet)).prepare()


def test_columns_of_a_head_are_found_wherever_it_lies() -> None:
    federation = server(PFedCS(), model=seeded(DeepHeadNet))
    assert [entry.name for entry in federation.layout.classifier_weights] == [
        "classifier.0.weight",
        "classifier.3.weight",
    ]
    assert Columns.of(*(e.columns.spans[0] for e in federation.layout.classifier_weights)).size == 8 * 5 + 5 * 3
