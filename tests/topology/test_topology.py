"""Mixes among neighbours: graphs and weights by hand, rounds against a plain oracle, the same at sites."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deployment.test_same_as_serial import assert_same
from torch import Tensor

from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.report.onerun import _said
from coterie.rounds.listeners import StopAfter
from coterie.runs.resume import resume
from coterie.testing.together import agreed
from coterie.testing.toys import toy_data, toy_partition
from coterie.topology.graph import links_of, metropolis, reaches_all, spectral_gap
from support import final_rows, permuted_partition, rows_of, stepwise, tiny

RING = {"topology": "ring", "clients": 6}


def graph(topology: str, count: int, seed: int = 0) -> Tensor:
    return links_of(topology, torch.arange(count), [f"client {place}" for place in range(count)], seed)


def test_a_ring_by_hand() -> None:
    assert graph("ring", 5).int().tolist() == [
        [0, 1, 0, 0, 1],
        [1, 0, 1, 0, 0],
        [0, 1, 0, 1, 0],
        [0, 0, 1, 0, 1],
        [1, 0, 0, 1, 0],
    ]
    assert graph("ring", 2).int().tolist() == [[0, 1], [1, 0]]
    assert not graph("ring", 1).any()


@pytest.mark.parametrize(("degree", "count"), [(1, 6), (2, 7), (3, 8), (4, 30), (5, 6)])
def test_random_graphs_are_regular_and_connected(degree: int, count: int) -> None:
    links = graph(f"regular:{degree}", count)
    assert links.sum(1).tolist() == [degree] * count
    assert torch.equal(links, links.T)
    assert not links.diagonal().any()
    assert reaches_all(links) is (degree > 1 or count == 2)
    assert torch.equal(links, graph(f"regular:{degree}", count))
    if degree == 4:
        assert not torch.equal(links, graph("regular:4", count, seed=1))


def test_a_graph_belongs_to_keys_whatever_the_order() -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    names = [str(key) for key in order.tolist()]
    for topology in ("ring", "regular:2"):
        relabelled = links_of(topology, order, names, seed=0)
        assert torch.equal(relabelled, graph(topology, 5)[order][:, order])


def test_links_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "links.csv"
    file.write_text("a, b\nb,c\n\n", encoding="utf-8")
    found = links_of(str(file), torch.arange(3), ("a", "b", "c"), seed=0)
    assert found.int().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    for text, message in (
        ("a\n", "a line has 1 names"),
        ("a,d\n", "no client 'd'"),
        ("a,a\n", "links 'a' with itself"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(CoterieError, match=message):
            links_of(str(file), torch.arange(3), ("a", "b", "c"), seed=0)
    with pytest.raises(CoterieError, match="cannot be read"):
        links_of(str(tmp_path / "none.csv"), torch.arange(3), ("a", "b", "c"), seed=0)


def test_metropolis_by_hand() -> None:
    """A star: the middle has three neighbours, the others one. If a leaf is missing, the middle has two."""
    star = torch.zeros(4, 4, dtype=torch.bool)
    star[0, 1:] = star[1:, 0] = True
    everybody = torch.arange(4)
    quarter = torch.tensor([[1, 1, 1, 1], [1, 3, 0, 0], [1, 0, 3, 0], [1, 0, 0, 3]]) / 4
    torch.testing.assert_close(metropolis(star, everybody, everybody), quarter.double())
    third = torch.tensor([[1, 1, 1], [1, 2, 0], [1, 0, 2]]) / 3
    torch.testing.assert_close(metropolis(star, everybody[:3], everybody[:3]).float(), third)


@pytest.mark.parametrize("count", [4, 5, 9])
def test_the_gap_of_a_ring_is_known(count: int) -> None:
    """The eigenvalues of a ring's thirds are (1 + 2 cos 2πj/K) / 3."""
    values = sorted(abs(1 + 2 * math.cos(2 * math.pi * j / count)) / 3 for j in range(count))
    for rule in ("rows", "metropolis"):
        assert spectral_gap(graph("ring", count), torch.ones(count), rule) == pytest.approx(1 - values[-2])


def test_the_gap_with_sizes_is_that_of_the_matrix_itself() -> None:
    links, sizes = graph("regular:3", 8), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    matrix = (links | torch.eye(8).bool()).double() * sizes
    matrix = matrix / matrix.sum(1, keepdim=True)
    values = torch.linalg.eigvals(matrix).abs().sort(descending=True).values
    assert spectral_gap(links, sizes, "rows") == pytest.approx(float(1 - values[1]))
    assert spectral_gap(graph("regular:5", 6), torch.ones(6), "rows") == pytest.approx(1.0)


# Rounds


@pytest.mark.parametrize("rule", ["rows", "metropolis"])
def test_rounds_are_those_of_the_oracle(rule: str) -> None:
    """Two thirds of the clients a round: each becomes the mean of those of its neighbours that are there too."""
    rounds, engine = stepwise(tiny(rounds=4, join=0.67, topology_rule=rule, **RING))
    federation, sizes = rounds.federation, rounds.federation.sizes.tolist()
    for _ in range(4):
        before = rows_of(federation)
        report = rounds.run_round()
        cohort, trained, after = engine.cohort.tolist(), engine.trained.rows["model"].double(), rows_of(federation)
        near = {i: [j for j in cohort if (i - j) % 6 in (1, 5)] for i in cohort}
        for place, i in enumerate(cohort):
            if rule == "rows":
                raw = {j: sizes[j] for j in (*near[i], i)}
                weights = {j: value / sum(raw.values()) for j, value in raw.items()}
            else:
                weights = {j: 1 / (1 + max(len(near[i]), len(near[j]))) for j in near[i]}
                weights[i] = 1 - sum(weights.values())
            expected = sum(weight * trained[cohort.index(j)] for j, weight in weights.items())
            torch.testing.assert_close(after[i], expected.float(), atol=1e-6, rtol=1e-5)
            recorded = report.mixes[0].weights[place]
            assert recorded.tolist() == pytest.approx([weights.get(j, 0.0) for j in cohort], abs=1e-6)
        for absent in set(range(6)) - set(cohort):
            assert torch.equal(after[absent], before[absent])


def test_a_method_that_chooses_its_teachers_chooses_among_neighbours() -> None:
    """PFedCS: the rows of its W, those of neighbours alone, scaled to one."""
    free, near = (stepwise(tiny("pfedcs", rounds=4, **{"clients": 6, **more}))[0] for more in ({}, RING))
    whole, masked = free.run_round().mixes[1], near.run_round().mixes[1]
    assert masked.target == "teacher"
    heard = graph("ring", 6) | torch.eye(6).bool()
    expected = whole.weights * heard
    total = expected.sum(1, keepdim=True)
    torch.testing.assert_close(masked.weights, expected / total.where(total > 0, 1), atol=1e-6, rtol=1e-5)
    # Whoever chose nobody among its neighbours keeps the classifier that it had.
    alone = total[:, 0] == 0
    assert bool((masked.weights[alone] == 0).all())


def test_everybody_linked_with_everybody_is_the_plain_mean() -> None:
    linked, plain = tiny(clients=6, topology="regular:5").run(), tiny(clients=6).run()
    torch.testing.assert_close(final_rows(linked), final_rows(plain), atol=1e-6, rtol=1e-5)


def test_nothing_shared_is_left_and_personal_columns_stay_so() -> None:
    run = tiny("fedper", **RING).run()
    assert not run.federation["model"].shared_columns
    assert {mix.group for mix in run.mixes(1)} == {"extractor"}
    assert len(final_rows(run).unique(dim=0)) == 6


def test_models_that_start_apart_still_do() -> None:
    """FedEM's second model has a start of its own, which is everybody's also where nobody shares it."""
    apart, plain = (tiny("fedem", **{"clients": 6, **more}).prepare().federation() for more in (RING, {}))
    assert torch.equal(rows_of(apart, "model2"), rows_of(plain, "model2"))
    assert not torch.equal(rows_of(apart, "model2"), rows_of(apart, "model"))
    ours, theirs = (tiny("ifca", **{"clients": 6, **more}).prepare().federation() for more in (RING, {}))
    assert torch.equal(rows_of(ours, "centre2"), rows_of(theirs, "centre2"))


def test_whoever_hears_nobody_keeps_what_it_trained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = toy_data()
    names = toy_partition(data, 4).names
    (tmp_path / "links.csv").write_text(f"{names[0]},{names[1]}\n", encoding="utf-8")
    rounds, engine = stepwise(tiny(topology=str(tmp_path / "links.csv")))
    assert "not everybody can be reached" in caplog.text
    report = rounds.run_round()
    assert torch.equal(rows_of(rounds.federation)[2:], engine.trained.rows["model"][2:])
    assert report.mixes[0].weights[2:].tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]
    assert report.parts["topology"].gap == pytest.approx(0.0)  # type: ignore[attr-defined]


def test_relabelling_clients_changes_nothing_else() -> None:
    data = toy_data()
    partition = toy_partition(data, 6)
    relabelled, order = permuted_partition(partition)
    ours, theirs = (
        final_rows(tiny(data=data, partition=part, topology="ring").run()) for part in (partition, relabelled)
    )
    torch.testing.assert_close(theirs, ours[list(order)], atol=1e-5, rtol=1e-4)


def test_engines_and_resumed_runs_give_the_same_bits(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 4, "join": 0.67, "checkpoint_every": 2, **RING}
    whole = tiny(**settings)
    expected = whole.run(out=tmp_path / "whole")
    tiny(**settings).run(out=tmp_path / "parts", listeners=[StopAfter(3)])
    assert torch.equal(final_rows(resume(tmp_path / "parts", experiment=whole)), final_rows(expected))
    stacked = final_rows(tiny(engine="stacked", **settings | {"checkpoint_every": None}).run())
    torch.testing.assert_close(stacked, final_rows(expected), atol=1e-4, rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedavg", "pfedcs"])
def test_a_federation_of_sites_ends_with_the_same_rows(method: str, tmp_path: Path) -> None:
    assert_same(agreed(method, topology="ring", topology_rule="rows", join=0.67), tmp_path)


def test_the_report_says_the_gap(tmp_path: Path) -> None:
    run = tiny(**RING).run(out=tmp_path / "run")
    (line,) = _said(run)
    assert line.startswith("topology ring, weights rows: 6 clients, 6 links; the spectral gap is 0.")


# What is refused

REFUSED = {
    "fedproto": "FedProto gives clients more than mixes (the value 'prototypes')",
    "feddyn": "FedDyn gives clients more than mixes (what follows from its 'server_dual')",
    "fedgh": "FedGH gives clients more than mixes (shared columns that nobody uploads)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_methods_that_give_more_than_mixes_are_refused_before_the_first_round(name: str) -> None:
    with pytest.raises(CoterieError, match="topology = 'ring': ") as caught:
        tiny(METHODS[name](), **RING).prepare()
    assert REFUSED[name] in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topology": "star"}, "topology = 'star': must be ring, regular:4 (so many neighbours each), or a FILE.csv"),
        ({"topology": "regular:x"}, "topology = 'regular:x': must be ring"),
        ({"topology_rule": "metropolis"}, "topology_rule = metropolis: is for a topology; name one"),
        ({"topology": "ring", "topology_rule": "max"}, "unknown topology_rule 'max'"),
        ({"topology": "ring", "defence": "median"}, "topology = 'ring': few neighbours are no crowd"),
        ({"topology": "ring", "server": "adam"}, "topology = 'ring': there is no row that all share"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError) as caught:
        tiny(**options)
    assert str(caught.value).startswith(message)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(CoterieError, match="'regular:3': 5 clients cannot have 3 neighbours each"):
        tiny(topology="regular:3", clients=5).prepare()
    with pytest.raises(CoterieError, match="is no mean of all, which topology_rule = metropolis stands for; use rows"):
        tiny("pfedcs", topology_rule="metropolis", **RING).run()
    with pytest.raises(CoterieError, match="sites cannot agree on somebody's file"):
        agreed("fedavg", topology="links.csv")
