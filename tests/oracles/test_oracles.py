"""The plain single-file versions of the five methods, on their own: formulas by hand and degenerate cases."""

from __future__ import annotations

import copy
import doctest
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.rng import stream_seed, torch_stream
from coterie.rounds.sampler import draw_cohort

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc")


def load_example(name: str) -> ModuleType:
    full = f"{name}_plain"
    spec = importlib.util.spec_from_file_location(full, EXAMPLES / f"{full}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    spec.loader.exec_module(module)
    return module


ORACLES = {name: load_example(name) for name in NAMES}
pfedcs, fedrema, fedcac, pfedsim, fedtc = (ORACLES[name] for name in NAMES)

CLASSES = 4
GROUPS = [(0, 1), (0, 1), (2, 3), (2, 3), (0, 3), (1, 2)]
SIZES = [13, 9, 21, 17, 16, 8]  # 13: with batches of 12, the last one has a single sample


@pytest.fixture(scope="module")
def problem() -> dict[str, Any]:
    """Six clients with two of four classes each, in five dimensions."""
    stream = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(CLASSES, 5, generator=stream)
    labels = torch.cat([torch.tensor(group)[torch.arange(n) % 2] for group, n in zip(GROUPS, SIZES, strict=True)])
    inputs = centres[labels] + torch.randn(len(labels), 5, generator=stream)
    return {"inputs": inputs, "labels": labels, "train": list(torch.arange(len(labels)).split(SIZES))}


def plain_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, CLASSES))


def norm_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.2), nn.Linear(7, CLASSES))


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {"plain": (plain_model, "2"), "norm": (norm_model, "4")}
SETTINGS: dict[str, Any] = {"rounds": 4, "epochs": 1, "batch": 12, "lr": 0.2, "seed": 3, "momentum": 0.5}


def run(oracle: ModuleType, problem: dict[str, Any], model: str = "plain", **options: Any) -> Any:
    build, classifier = MODELS[model]
    return oracle.run(**problem, module=build(), classifier=classifier, **{**SETTINGS, **options})


def reference(
    problem: dict[str, Any], model: str, shared: Callable[[str], bool], join: float = 1.0
) -> list[dict[str, Tensor]]:
    """FedAvg on the `shared` parameters, everything else local: all that degenerate cases collapse to."""
    build, _ = MODELS[model]
    train, sizes = problem["train"], [len(own) for own in problem["train"]]
    models = [build() for _ in train]
    newest = {n: p.detach().clone() for n, p in models[0].named_parameters() if shared(n)}
    for t in range(1, SETTINGS["rounds"] + 1):
        cohort = draw_cohort(torch.arange(len(train)), join, SETTINGS["seed"], t).tolist()
        for k in cohort:
            torch.manual_seed(stream_seed(SETTINGS["seed"], "dropout", t, k))
            models[k].load_state_dict(newest, strict=False)
            models[k].train()
            optimiser = torch.optim.SGD(models[k].parameters(), lr=SETTINGS["lr"], momentum=SETTINGS["momentum"])
            stream = torch_stream(SETTINGS["seed"], "batches:0", t, k)
            for _ in range(SETTINGS["epochs"]):
                for part in torch.randperm(sizes[k], generator=stream).split(SETTINGS["batch"]):
                    if len(part) == 1 and model == "norm":
                        continue
                    index = train[k][part]
                    optimiser.zero_grad()
                    logits = models[k](problem["inputs"][index])
                    nn.functional.cross_entropy(logits, problem["labels"][index]).backward()
                    optimiser.step()
        total = sum(sizes[k] for k in cohort)
        states = {k: dict(models[k].named_parameters()) for k in cohort}
        newest = {n: sum(sizes[k] / total * states[k][n].detach() for k in cohort) for n in newest}
    for one in models:
        one.load_state_dict(newest, strict=False)
    return [{n: v.clone() for n, v in one.state_dict().items() if v.is_floating_point()} for one in models]


def assert_same(ours: list[dict[str, Tensor]], theirs: list[dict[str, Tensor]]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)


def differ(ours: list[dict[str, Tensor]], theirs: list[dict[str, Tensor]]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return any(not torch.allclose(one[name], other[name], atol=1e-4) for one, other in pairs for name in one)


VARIANTS = [
    ("pfedcs", {}),
    *[("pfedcs", {"selection": s, "beta": 4}) for s in ("none", "all", "random", "kmeans", "hierarchical", "fixed")],
    *[("pfedcs", {"weights": w, "beta": 4}) for w in ("self_inclusive", "renormalised", "peers_only")],
    ("pfedcs", {"dist_power": 1, "rho": 0, "lam": 0.9, "beta": 4}),
    *[("fedrema", {"variant": v}) for v in ("", "F", "A", "A&F")],
    ("fedrema", {"delta": 0.999, "probe": "per_row", "num_probes": 3, "probe_high": 0.5}),
    *[("fedcac", {"mask": m}) for m in ("sensitivity", "random", "reverse")],
    *[("fedcac", {"collaboration": c, "beta": 3}) for c in ("none", "top1", "top5", "as_critical")],
    *[("pfedsim", {"similarity": s}) for s in ("code", "paper")],
    *[("fedtc", {"lr_classifier": 0.01, "reset_local_head": r}) for r in (False, True)],
]


@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_all_models_are_finite_complete_and_repeatable(
    problem: dict[str, Any], name: str, options: dict[str, Any], join: float
) -> None:
    build, _ = MODELS["norm"]
    module = build()
    before = copy.deepcopy(module.state_dict())
    outcome = run(ORACLES[name], problem, "norm", join=join, decay=0.9, weight_decay=1e-3, **options)
    wanted = {n for n, v in module.state_dict().items() if v.is_floating_point()}
    assert len(outcome.models) == len(SIZES)
    for model in outcome.models:
        assert model.keys() == wanted
        assert all(bool(torch.isfinite(tensor).all()) for tensor in model.values())
        assert any(not torch.equal(tensor, before[n]) for n, tensor in model.items())
    if join == 1.0:
        return
    torch.manual_seed(99)  # nothing may depend on the global generator's state
    again = run(ORACLES[name], problem, "norm", join=join, decay=0.9, weight_decay=1e-3, **options)
    for one, other in zip(outcome.models, again.models, strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_mixing_matrices_are_row_stochastic(problem: dict[str, Any], name: str, options: dict[str, Any]) -> None:
    weights = run(ORACLES[name], problem, join=0.5, **options).weights
    matrices = list(weights.values()) if isinstance(weights, dict) else weights
    assert bool(matrices) is (options.get("selection") != "none")  # without collaborators there is nothing to mix
    for matrix in matrices:
        sums = matrix.reshape(-1, len(SIZES)).sum(1)
        assert bool((matrix >= 0).all())
        assert all(total == 0 or abs(total - 1) < 1e-9 for total in sums.tolist())
        assert bool((sums > 0).any())


@pytest.mark.parametrize("name", NAMES)
def test_the_given_model_is_left_alone(problem: dict[str, Any], name: str) -> None:
    module = plain_model()
    before = copy.deepcopy(module.state_dict())
    ORACLES[name].run(**problem, module=module, classifier="2", **SETTINGS)
    assert all(torch.equal(before[n], v) for n, v in module.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(ORACLES[name]).failed == 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("join", [1.0, 0.5])
class TestDegenerateCases:
    def test_pfedcs_without_collaborators_or_teachers_is_fedper(
        self, problem: dict[str, Any], model: str, join: float
    ) -> None:
        head = MODELS[model][1]
        fedper = reference(problem, model, lambda n: not n.startswith(head), join)
        without = run(pfedcs, problem, model, join=join, selection="none", beta=4)
        assert_same(without.models, fedper)
        assert without.teachers == {}
        assert_same(run(pfedcs, problem, model, join=join, beta=1).models, fedper)
        assert differ(run(pfedcs, problem, model, join=join, beta=4).models, fedper)

    def test_fedcac_without_critical_parameters_is_fedavg(
        self, problem: dict[str, Any], model: str, join: float
    ) -> None:
        fedavg = reference(problem, model, lambda n: True, join)
        ours = run(fedcac, problem, model, join=join, tau=0.0, weights="size").models
        if join == 1.0:
            assert_same(ours, fedavg)
        else:  # whoever sat out the last round keeps its own model; the others hold the mean
            last = draw_cohort(torch.arange(len(SIZES)), join, SETTINGS["seed"], SETTINGS["rounds"]).tolist()
            parameters = [n for n, _ in MODELS[model][0]().named_parameters()]
            assert all(torch.equal(ours[k][n], ours[last[0]][n]) for k in last for n in parameters)
        assert differ(run(fedcac, problem, model, join=join, tau=0.5, weights="size").models, ours)
        assert differ(run(fedcac, problem, model, join=join, tau=0.0).models, ours)  # the paper's mean is uniform

    def test_pfedsim_that_never_personalises_is_fedavg(self, problem: dict[str, Any], model: str, join: float) -> None:
        fedavg = reference(problem, model, lambda n: True, join)
        outcome = run(pfedsim, problem, model, join=join, rho=1.0)
        assert_same(outcome.models, fedavg)
        assert_same(outcome.stored, fedavg)
        assert differ(run(pfedsim, problem, model, join=join, rho=0.5).models, fedavg)

    def test_pfedsim_that_trusts_only_itself_is_local(self, problem: dict[str, Any], model: str, join: float) -> None:
        local = reference(problem, model, lambda n: False, join)
        assert_same(run(pfedsim, problem, model, join=join, rho=0.0, self_weight=1e12).models, local)

    def test_fedcac_with_everything_critical_and_no_collaboration_is_local(
        self, problem: dict[str, Any], model: str, join: float
    ) -> None:
        local = reference(problem, model, lambda n: False, join)
        assert_same(run(fedcac, problem, model, join=join, collaboration="as_critical", beta=0).models, local)


def test_fedrema_with_equal_similarities_is_fedavg(problem: dict[str, Any]) -> None:
    fedavg = reference(problem, "plain", lambda n: True)
    outcome = run(fedrema, problem, temperature=1e18)
    assert outcome.gaps == [0.0] * SETTINGS["rounds"]
    assert_same(outcome.models, fedavg)


def test_fedrema_rounds_with_two_clients_say_nothing_about_gaps(problem: dict[str, Any]) -> None:
    outcome = run(fedrema, problem, join=0.34)
    assert outcome.gaps == []
    assert outcome.critical == [True] * SETTINGS["rounds"]


def test_fedrema_leaves_the_critical_period_for_good(problem: dict[str, Any]) -> None:
    always = run(fedrema, problem, seed=2, rounds=6, delta=0.0)
    assert always.critical == [True] * 6
    end = next(t for t in range(1, 6) if always.gaps[t] < max(always.gaps[: t + 1])) + 1  # the first smaller gap
    outcome = run(fedrema, problem, seed=2, rounds=6, delta=0.999)
    assert outcome.critical == [True] * end + [False] * (6 - end)
    assert outcome.gaps == always.gaps[:end]
    assert outcome.chosen.diagonal().tolist() == [float(end)] * len(SIZES)
    torch.testing.assert_close(outcome.weights[-1], outcome.chosen / outcome.chosen.sum(1, keepdim=True))


def test_fedtc_trains_the_extractor_through_the_shared_classifier(problem: dict[str, Any]) -> None:
    still = run(fedtc, problem, lr_classifier=0.0)
    initial = plain_model().state_dict()
    for model in still.models:  # nobody's classifier moves, so the shared one is the initial one throughout
        torch.testing.assert_close(model["2.weight"], initial["2.weight"])
        assert not torch.allclose(model["0.weight"], initial["0.weight"])
    one, other = (run(fedtc, problem, rounds=1, lr_classifier=rate) for rate in (0.0, 0.1))
    for a, b in zip(one.models, other.models, strict=True):  # in a round the extractor does not see the own classifier
        assert torch.equal(a["0.weight"], b["0.weight"])
        assert not torch.equal(a["2.weight"], b["2.weight"])


def test_fedtc_reset_installs_the_shared_classifier(problem: dict[str, Any]) -> None:
    outcome = run(fedtc, problem, lr_classifier=0.1, reset_local_head=True)
    for model in outcome.models:
        assert torch.equal(model["2.weight"], outcome.shared_head["weight"])
    kept = run(fedtc, problem, lr_classifier=0.1)
    assert not torch.equal(kept.models[0]["2.weight"], kept.models[2]["2.weight"])


def test_fedtc_newcomers_start_from_the_shared_classifier(problem: dict[str, Any]) -> None:
    """One client a round, and rates that vanish after the first: the second client holds the first one's classifier."""
    first, second = (draw_cohort(torch.arange(6), 0.2, SETTINGS["seed"], t).tolist()[0] for t in (1, 2))
    assert first != second
    models = run(fedtc, problem, join=0.2, lr_classifier=0.1, rounds=2, decay=1e-9).models
    initial = plain_model().state_dict()["2.weight"]
    torch.testing.assert_close(models[second]["2.weight"], models[first]["2.weight"])
    assert not torch.allclose(models[first]["2.weight"], initial)
    absent = next(k for k in range(6) if k not in (first, second))
    torch.testing.assert_close(models[absent]["2.weight"], models[second]["2.weight"])


class TestMaximumDifference:
    def test_hand_case(self) -> None:
        relevant, gap = fedrema.mds({0: 0.1, 1: 0.2, 2: 0.8, 3: 0.9, 4: 1.0}, k=4)
        assert relevant == [2, 3, 4]
        assert gap == pytest.approx(0.6)

    def test_the_gap_to_the_client_itself_does_not_count(self) -> None:
        assert fedrema.mds({0: 1.0, 1: 0.1, 2: 0.15, 3: 0.3}, k=0)[0] == [0, 3]

    def test_equal_similarities_and_too_few_clients_choose_everybody(self) -> None:
        assert fedrema.mds({0: 1.0, 1: 0.5, 2: 0.5}, k=0) == ([0, 1, 2], 0.0)
        assert fedrema.mds({3: 1.0, 5: 0.1}, k=3) == ([3, 5], 0.0)
        below = fedrema.mds({0: 0.1, 1: 0.2, 2: 0.8, 3: 0.9, 4: 1.0}, k=4, include_lower=True)
        assert below == ([1, 2, 3, 4], pytest.approx(0.6))
        assert fedrema.mds({3: 1.0}, k=3) == ([3], 0.0)

    def test_a_diverged_client_resembles_nobody(self) -> None:
        heads = {k: nn.Linear(2, 3) for k in range(3)}
        nn.init.constant_(heads[1].weight, math.nan)
        S = fedrema.similarities(heads, {k: torch.ones(1, 2) for k in range(3)}, 0.5)
        assert (S[0][1], S[1][0], S[1][1]) == (0.0, 0.0, 1.0)
        assert S[0][2] == pytest.approx(S[2][0])
        assert S[0][2] > 0

    @pytest.mark.parametrize(
        ("gaps", "delta", "goes_on"),
        [([0.4], 0.999, True), ([0.4, 0.2], 0.5, False), ([0.4, 0.21], 0.5, True), ([0.0], 0.5, True)],
    )
    def test_critical_period(self, gaps: list[float], delta: float, goes_on: bool) -> None:
        assert fedrema.still_critical(gaps, delta) is goes_on


class TestPFedCSServer:
    def test_distances_use_weights_and_are_divided_by_the_row_maximum(self) -> None:
        heads = {k: {"weight": torch.tensor([[float(x), 0.0]]), "bias": torch.tensor([9.0 * k])}
                 for k, x in enumerate((0, 1, 3))}  # fmt: skip
        D = pfedcs.distances(heads)
        assert D[0] == pytest.approx({0: 0, 1: 1 / 9, 2: 1})
        assert D[1] == pytest.approx({0: 1 / 4, 1: 0, 2: 1})
        assert pfedcs.distances(heads, dist_power=1)[0] == pytest.approx({0: 0, 1: 1 / 3, 2: 1})
        same = {0: heads[0], 1: heads[0]}
        assert pfedcs.distances(same) == {0: {0: 0, 1: 0}, 1: {0: 0, 1: 0}}

    @pytest.mark.parametrize("selection", ["gmm", "kmeans", "hierarchical", "fixed"])
    def test_two_perfect_clusters_give_the_own_cluster(self, selection: str) -> None:
        assert pfedcs.candidates([0.1, 0.95, 0.12, 1.0, 0.11, 0.9], selection) == [
            True,
            False,
            True,
            False,
            True,
            False,
        ]

    @pytest.mark.parametrize("selection", ["gmm", "kmeans", "hierarchical"])
    def test_what_cannot_be_grouped(self, selection: str) -> None:
        assert pfedcs.candidates([0.7], selection) == [True]
        assert pfedcs.candidates([0.7] * 4, selection) == [True] * 4
        assert pfedcs.candidates([1.0, 0.999999], selection) == [False, True]

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.sampled_from(["gmm", "kmeans", "hierarchical"]))
    def test_the_nearest_is_a_candidate_and_candidates_are_monotone(self, values: list[float], selection: str) -> None:
        chosen = pfedcs.candidates(values, selection)
        assert chosen[values.index(min(values))]
        ceiling = max(v for v, c in zip(values, chosen, strict=True) if c)
        assert chosen == [v <= ceiling for v in values]

    def test_a_wide_far_component_does_not_claim_the_nearest(self) -> None:
        values = [0.001, *[0.05 + 0.001 * i for i in range(10)], 0.3, 0.6, 0.9, 1.0]
        assert not pfedcs.gaussian_mixture(values)[1]
        assert pfedcs.gaussian_mixture(values)[0]  # without the rule, the nearest would be called far
        assert pfedcs.candidates(values)[0]

    def test_threshold_shrinks_to_the_nearest(self) -> None:
        D_k = {0: 0.0, 1: 0.30, 2: 0.35, 3: 0.40, 4: 1.0, 5: 0.99}
        sizes = [len(pfedcs.collaborators(D_k, 0, t, 10, "gmm", seed=0)) for t in range(1, 11)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == 3
        assert pfedcs.collaborators(D_k, 0, 10, 10, "gmm", seed=0) == [1]

    def test_worked_weights(self) -> None:
        D_k = {0: 0.0, 1: 0.30, 2: 0.35, 3: 0.40}
        own = pfedcs.aggregation_weights(D_k, 0, [1, 2, 3], [1] * 4, 1.0)
        assert [own[i] for i in range(4)] == pytest.approx([8 / 11, 2 / 11, 1 / 11, 0])
        renormalised = pfedcs.aggregation_weights(D_k, 0, [1, 2, 3], [1] * 4, 1.0, "renormalised")
        assert renormalised == pytest.approx(own)
        peers = pfedcs.aggregation_weights(D_k, 0, [1, 2, 3], [1] * 4, 1.0, "peers_only")
        assert peers == pytest.approx({1: 2 / 3, 2: 1 / 3, 3: 0.0})
        mixed = pfedcs.aggregation_weights(D_k, 0, [1], [30, 10], 0.5)
        assert mixed == pytest.approx({0: 0.5 * 1 + 0.5 * 0.75, 1: 0.5 * 0 + 0.5 * 0.25})

    @pytest.mark.parametrize("weights", ["self_inclusive", "renormalised", "peers_only"])
    @pytest.mark.parametrize("D_k", [{0: 0.0, 1: 0.0, 2: 0.0}, {0: 0.0, 1: 1.0, 2: 1.0}, {0: 0.0, 1: 1.0}, {0: 0.0}])
    def test_equal_distances_give_finite_weights(self, weights: str, D_k: dict[int, float]) -> None:
        p = pfedcs.aggregation_weights(D_k, 0, [j for j in D_k if j], [1, 2, 3], 0.5, weights)
        assert sum(p.values()) == pytest.approx(1)
        assert all(0 <= value <= 1 for value in p.values())

    def test_identical_classifiers_are_mixed_uniformly(self) -> None:
        p = pfedcs.aggregation_weights({0: 0.0, 1: 0.0, 2: 0.0}, 0, [1, 2], [1, 2, 3], 1.0)
        assert p == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})

    def test_teachers_are_made_for_rounds_two_to_beta(self, problem: dict[str, Any]) -> None:
        assert list(run(pfedcs, problem, beta=3).teachers) == [2, 3]
        assert list(run(pfedcs, problem, beta=9).teachers) == [2, 3, 4, 5]
        assert list(run(pfedcs, problem).teachers) == [2, 3, 4]

    def test_random_selection_has_three_peers(self, problem: dict[str, Any]) -> None:
        P = run(pfedcs, problem, selection="random", lam=0.0, beta=4).weights[2]
        assert ((P > 0).sum(1) == 4).all()
        assert (P.diagonal() > 0).all()


class TestFedCACServer:
    def test_masks(self) -> None:
        scores = torch.tensor([[0.5, 0.1], [0.3, 0.3]])
        assert fedcac.top(scores, 0.5).tolist() == [[True, False], [True, True]]  # ties are included
        assert fedcac.bottom(scores, 0.5).tolist() == [[False, True], [True, True]]
        assert not fedcac.top(scores, 0.2).any()  # int(0.8) = 0
        assert not fedcac.top(torch.ones(1), 0.9).any()
        assert not fedcac.top(torch.zeros(4), 0.5).any()
        assert fedcac.top(torch.zeros(4), 1.0).all()
        assert fedcac.top(torch.tensor([1e-12, 2e-12, 3e-12, 4e-12]), 0.5).tolist() == [False, False, True, True]
        assert fedcac.top(torch.tensor([0.0, 0.0, 0.0, 1e-15, 1e-3]), 0.6).tolist() == [False] * 3 + [True] * 2

    def test_sensitivity_is_displacement_times_value(self) -> None:
        start, end = {"w": torch.tensor([1.0, -2.0, 0.0, 5.0])}, {"w": torch.tensor([2.0, -3.0, 1.0, 5.0])}
        # |1 · 2|, |−1 · −3|, |1 · 1|, |0 · 5|
        masks = [fedcac.critical_parameters(start, end, tau, "sensitivity", torch.Generator()) for tau in (0.25, 0.5)]
        assert [mask["w"].tolist() for mask in masks] == [[False, True, False, False], [True, True, False, False]]
        reverse = fedcac.critical_parameters(start, end, 0.5, "reverse", torch.Generator())
        assert reverse["w"].tolist() == [False, False, True, True]

    def test_overlap_is_one_for_equal_and_zero_for_complementary_masks(self) -> None:
        mask = torch.tensor([True, True, False, False])
        M = {
            0: {"w": mask},
            1: {"w": mask.clone()},
            2: {"w": ~mask},
            3: {"w": torch.tensor([True, False, True, False])},
        }
        O = fedcac.overlaps(M)  # noqa: E741
        assert (O[0][1], O[0][2], O[0][3]) == (1.0, 0.0, 0.5)
        nothing = fedcac.overlaps({0: {"w": mask}, 1: {"w": torch.zeros_like(mask)}})
        assert (nothing[0][1], nothing[1][0]) == (0.0, 0.0)

    def test_threshold_grows_and_ends_with_the_best_pair(self) -> None:
        O = {0: {1: 0.9, 2: 0.2}, 1: {0: 0.9, 2: 0.3}, 2: {0: 0.2, 1: 0.3}}  # noqa: E741
        steps = [fedcac.threshold(O, t, 5) for t in range(1, 6)]
        assert steps == sorted(steps)
        assert steps[-1] == pytest.approx(0.9)
        assert fedcac.collaborators(O, 5, 5, "threshold") == {0: [1], 1: [0], 2: []}
        assert fedcac.collaborators(O, 6, 5, "threshold") == {0: [], 1: [], 2: []}
        assert fedcac.collaborators(O, 6, 5, "top1") == {0: [1], 1: [0], 2: [1]}
        assert fedcac.collaborators(O, 6, 5, "top5") == {0: [1, 2], 1: [0, 2], 2: [0, 1]}

    def test_equal_overlaps_let_everybody_collaborate(self) -> None:
        O = {i: dict.fromkeys(range(3), 0.1 + 0.2) for i in range(3)}  # noqa: E741
        assert fedcac.collaborators(O, 5, 5, "threshold") == {0: [1, 2], 1: [0, 2], 2: [0, 1]}


class TestPFedSimServer:
    def test_hand_case(self) -> None:
        a = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        b = torch.tensor([[3.0, 4.0], [0.0, -1.0]])  # cosines 0.6 and −1
        assert pfedsim.classifier_similarity(a, b, "paper") == pytest.approx(-math.log(0.4) / 2)
        assert pfedsim.classifier_similarity(a, b, "code") == 0
        c = torch.tensor([[3.0, 4.0], [4.0, 3.0]])  # cosines 0.6 and 0.6
        assert pfedsim.classifier_similarity(a, c, "code") == pytest.approx(-math.log(0.4))

    def test_zero_rows_and_identical_classifiers(self) -> None:
        zero, one = torch.zeros(2, 3), torch.ones(2, 3)
        for similarity in ("code", "paper"):
            assert pfedsim.classifier_similarity(zero, one, similarity) == 0
            assert pfedsim.classifier_similarity(one, one, similarity) == pytest.approx(23 * math.log(2))

    @settings(max_examples=50, deadline=None)
    @given(st.integers(0, 10_000))
    def test_symmetric_and_paper_is_at_least_code(self, seed: int) -> None:
        a, b = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(seed))
        code, paper = (pfedsim.classifier_similarity(a, b, similarity) for similarity in ("code", "paper"))
        assert paper >= code - 1e-12
        assert pfedsim.classifier_similarity(b, a, "code") == code

    def test_only_pairs_drawn_together_are_similar(self, problem: dict[str, Any]) -> None:
        outcome = run(pfedsim, problem, join=0.34, rho=0.5)
        cohorts = [draw_cohort(torch.arange(6), 0.34, SETTINGS["seed"], t).tolist() for t in (3, 4)]
        for i in range(6):
            assert outcome.similarity[i, i] == pytest.approx(9.2103, abs=1e-4)
            for j in range(6):
                if i != j and not any(i in cohort and j in cohort for cohort in cohorts):
                    assert outcome.similarity[i, j] == 0
        assert torch.equal(outcome.similarity, outcome.similarity.T)
        never = [k for k in range(6) if not any(k in cohort for cohort in cohorts)]
        assert never
        globally = run(pfedsim, problem, join=0.34, rho=1.0, rounds=2).models
        assert_same([outcome.models[k] for k in never], [globally[k] for k in never])
