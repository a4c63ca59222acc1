"""Who learned from whom: the matrix by hand, the order of the clients, the picture itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from coterie.core.exchange import Applied
from coterie.data import Dataset
from coterie.display import Figure
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.partition import Partition, Pathological
from coterie.report import Learning, label_order, learning_matrix, picture
from coterie.report.figures import draw
from coterie.report.learning import class_shares, learn_differently
from coterie.rounds.listeners import Listener, RoundReport, Start
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.setup.prepared import Prepared

pytestmark = pytest.mark.thorough

NAN = np.nan
SHARED = torch.tensor([], dtype=torch.int64)


def mix(
    weights: list[list[float]], rows: Tensor, columns: list[int], group: str = "all", gated: bool = False
) -> Applied:
    return Applied(torch.tensor(weights), group, "model", gated, rows, torch.tensor(columns))


def learning(matrix: list[list[float]], counts: list[list[int]], names: list[str] | None = None) -> Learning:
    clients, classes = len(counts), len(counts[0])
    return Learning(
        np.array(matrix),
        np.array(counts),
        tuple(names or map(str, range(clients))),
        tuple(map(str, range(classes))),
        round=1,
        title="who",
        about="what",
    )


def pixels(path: Path) -> Any:
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def test_a_row_for_each_client_beats_a_shared_mean() -> None:
    mean = mix([[0.5, 0.25, 0.25]], SHARED, [0, 1, 2], "extractor")
    own = mix([[1, 0, 0], [0, 0.5, 0.5], [0.25, 0, 0.75]], torch.arange(3), [0, 1, 2], "classifier")
    expected = [[1, 0, 0], [0, 0.5, 0.5], [0.25, 0, 0.75]]
    # Wherever it stands: at download (first) or after the exchange (last); gated or not.
    for order in ([mean, own], [own, mean]):
        np.testing.assert_allclose(learning_matrix(order, 3), expected)
    gated = mix(expected, torch.arange(3), [0, 1, 2], gated=True)
    np.testing.assert_allclose(learning_matrix([mean, gated], 3), expected)


def test_of_several_personal_mixes_the_last_counts() -> None:
    first = mix([[1, 0], [0, 1]], torch.arange(2), [0, 1])
    second = mix([[0.5, 0.5], [0.25, 0.75]], torch.arange(2), [0, 1])
    np.testing.assert_allclose(learning_matrix([first, second], 2), [[0.5, 0.5], [0.25, 0.75]])


def test_a_shared_mean_gives_equal_rows_and_leaves_absent_sources_blank() -> None:
    np.testing.assert_allclose(learning_matrix([mix([[0.75, 0.25]], SHARED, [0, 2])], 3), [[0.75, NAN, 0.25]] * 3)


def test_one_row_of_weights_for_some_clients_is_repeated_for_these() -> None:
    one = mix([[0.75, 0.25]], torch.tensor([0, 2]), [0, 2])
    np.testing.assert_allclose(
        learning_matrix([one], 3), [[0.75, NAN, 0.25], [NAN, NAN, NAN], [0.75, NAN, 0.25]], equal_nan=True
    )


def test_cohort_that_learns_from_everybody_and_in_another_order() -> None:
    some = mix([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]], torch.tensor([2, 0]), [0, 1, 2])
    np.testing.assert_allclose(learning_matrix([some], 3), [[0.3, 0.3, 0.4], [NAN] * 3, [0.1, 0.2, 0.7]], rtol=1e-6)


def test_everybody_learns_from_a_cohort() -> None:
    teachers = mix([[1, 0], [0.5, 0.5], [0, 1]], torch.arange(3), [1, 2])
    np.testing.assert_allclose(learning_matrix([teachers], 3), [[NAN, 1, 0], [NAN, 0.5, 0.5], [NAN, 0, 1]])


def test_no_mixes_no_matrix() -> None:
    with pytest.raises(CoterieError, match="nobody learned from others"):
        learning_matrix([], 3)


def test_when_clients_choose_whom_to_learn_from() -> None:
    everyone = torch.arange(2)
    assert learn_differently([mix([[0.5, 0.5], [0.25, 0.75]], everyone, [0, 1])])
    assert not learn_differently([mix([[1, 0], [0, 1]], everyone, [0, 1])])
    assert not learn_differently([mix([[0.5, 0.5], [0.5, 0.5]], everyone, [0, 1])])
    assert not learn_differently([mix([[0.5, 0.5]], SHARED, [0, 1])])
    assert not learn_differently([])


@given(st.integers(2, 12), st.integers(0, 1000))
def test_clients_with_the_same_classes_stand_together(clients: int, seed: int) -> None:
    stream = np.random.default_rng(seed)
    kinds = np.array([[4, 4, 0, 0, 0], [0, 1, 0, 0, 3], [0, 0, 5, 5, 0]])
    kind = stream.integers(3, size=clients)
    order = label_order(kinds[kind] * stream.integers(1, 9, size=(clients, 1)))
    assert sorted(order) == list(range(clients))
    if clients > 2:
        changes = int((np.diff(kind[order]) != 0).sum())
        assert changes == len(set(kind.tolist())) - 1


def test_disjoint_groups_stand_in_the_order_of_their_classes() -> None:
    groups = np.repeat(np.eye(5, dtype=int), 2, axis=0)
    shuffled = np.random.default_rng(0).permutation(10)
    order = label_order(groups[shuffled])
    assert groups[shuffled][order].argmax(1).tolist() == sorted([*range(5), *range(5)])


def test_class_shares_of_a_client_without_samples() -> None:
    np.testing.assert_allclose(class_shares(np.array([[1, 3], [0, 0]])), [[0.25, 0.75], [0, 0]])


def parts(figure: Figure, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(figure.svg).iter(f"{{http://www.w3.org/2000/svg}}{name}"))


def texts(figure: Figure) -> list[str]:
    return ["".join(one.itertext()) for one in parts(figure, "text")]


def test_figure_orders_both_axes_and_the_strip_alike() -> None:
    counts = [[9, 0], [0, 9], [9, 0], [0, 9]]
    matrix = [[0.6, 0, 0.4, 0], [0, 0.6, 0, 0.4], [0.4, 0, 0.6, 0], [0, 0.4, 0, 0.6]]
    figure = draw(learning(matrix, counts, ["a", "b", "c", "d"]))
    names = [text for text in texts(figure) if text in "abcd"]
    assert names == [*"acbd", *"acbd"], "beside and below"
    assert {"learns", "from", "classes held", "who", "what"} <= set(texts(figure))
    block = [[0.6, 0.4, 0, 0], [0.4, 0.6, 0, 0], [0, 0, 0.6, 0.4], [0, 0, 0.4, 0.6]]
    cells = [float(one.get("data-value") or "nan") for one in parts(figure, "rect") if one.get("data-cell")]
    np.testing.assert_allclose(np.reshape(cells, (4, 4)), block)
    shares = [float(share) for one in parts(figure, "rect") if (share := one.get("data-share"))]
    np.testing.assert_allclose(np.reshape(shares, (4, 2)), [[1, 0], [1, 0], [0, 1], [0, 1]])
    assert any("square root" in text for text in texts(figure))


def test_the_strip_of_classes_says_what_its_tones_and_columns_are() -> None:
    classes = draw(learning([[0.5, 0.5], [0.25, 0.75]], [[9, 0], [0, 9]], ["a", "b"]))
    assert {"none of a client’s samples", "all of them"} <= set(texts(classes))
    assert any(text.startswith("classes from left to right: ") for text in texts(classes))


def test_one_row_of_weights_is_drawn_as_one_row() -> None:
    """Also where a method gives everybody the same row of its own; where clients took no part, all rows are drawn."""
    alike = draw(learning([[0.25, 0.75]] * 2, [[9, 0], [0, 9]], ["a", "b"]))
    cells = [float(one.get("data-value") or "nan") for one in parts(alike, "rect") if one.get("data-cell")]
    assert cells == [0.25, 0.75]
    assert [text for text in texts(alike) if text in ("everybody", "a", "b")] == ["everybody", "a", "b"]
    assert "classes held" not in texts(alike), "they are of clients, one by one"
    absent = draw(learning([[0.25, 0.75], [np.nan, np.nan]], [[9, 0], [0, 9]], ["a", "b"]))
    assert len([one for one in parts(absent, "rect") if one.get("data-cell")]) == 4


@pytest.mark.parametrize("clients", [1, 2, 20, 100])
def test_png_has_its_size_and_content(tmp_path: Path, clients: int) -> None:
    counts = np.random.default_rng(0).integers(1, 9, (clients, 10)).tolist()
    matrix = np.full((clients, clients), 0.5 / clients) + 0.5 * np.eye(clients)
    drawn = learning(matrix.tolist(), counts)
    path = picture(drawn, tmp_path / "deep" / "it.png")
    image = pixels(path)
    whole = ElementTree.fromstring(draw(drawn).svg)
    assert image.shape == (*(round(2 * float(whole.get(side) or "nan")) for side in ("height", "width")), 3)
    assert (image[0] == 255).all()
    assert (image < 250).any(axis=2).mean() > 0.01
    # The darkest blue of the scale stands for the largest weight.
    assert (np.abs(image - np.array([8, 48, 107])).sum(2) < 12).any()
    assert len(list(path.parent.iterdir())) == 1


def test_absent_clients_are_explained_only_if_there_are_any() -> None:
    present, absent = [[0.5, 0.5], [0.5, 0.5]], [[1.0, NAN], [NAN, NAN]]
    assert "took no part" not in texts(draw(learning(present, [[1, 1]] * 2)))
    assert texts(draw(learning(absent, [[1, 1]] * 2))).count("took no part") == 1


def test_names_are_thinned_out_where_there_is_no_room() -> None:
    figure = draw(learning(np.eye(300).tolist(), [[1, 2]] * 300, [f"site number {client}" for client in range(300)]))
    shown = [one for one in texts(figure) if one.startswith("site n")]
    assert 60 < len(shown) < 200, "beside and below"
    assert max(map(len, shown)) <= 16


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc", "local"):
        values = {"beta": 4} if name in ("pfedcs", "fedcac") else {}
        Experiment(
            METHODS[name](**values),
            partition=Pathological(clients=6),
            rounds=6,
            epochs=1,
            lr=0.05,
            threads=1,
            held_out=1,
        ).run(folder / name)
    return folder


@pytest.mark.parametrize(
    ("method", "mixed", "last_choice"),
    [
        ("pfedcs", "classifier, into teacher", 3),
        ("fedrema", "classifier, into model", 6),
        ("fedcac", "all, into model, some elements only", 4),
        ("pfedsim", "extractor, into model", 6),
        ("fedtc", "classifier, into shared_head", 6),
    ],
)
def test_each_method_shows_its_most_personal_mix(runs: Path, method: str, mixed: str, last_choice: int) -> None:
    chosen = Learning.of_run(runs / method)
    assert chosen.round == last_choice
    assert chosen.title == f"{METHODS[method].__name__}: who learns from whom in round {last_choice} of 6"
    assert chosen.about.startswith(f"mix of {mixed}\ndigits, 5 clients, pathological (classes_per_client=2, ")
    # The client that was held out is none of theirs.
    assert chosen.matrix.shape == (5, 5)
    assert chosen.counts.shape == (5, 10)
    np.testing.assert_allclose(chosen.matrix.sum(1), 1, atol=1e-6)
    held_out = RunDirectory(runs / method).partition().held_out
    assert [int(name) for name in chosen.names] == [client for client in range(6) if client not in held_out]


def test_fedtc_learns_from_all_by_size(runs: Path) -> None:
    chosen = Learning.of_run(runs / "fedtc")
    sizes = chosen.counts.sum(1)
    np.testing.assert_allclose(chosen.matrix, np.tile(sizes / sizes.sum(), (5, 1)), rtol=1e-5)


def test_a_round_under_way_gives_the_same_as_its_record(tmp_path: Path) -> None:
    seen: list[Learning] = []

    class Draw(Listener):
        def begin(self, start: Start) -> None:
            self.prepared: Prepared = start.prepared

        def round(self, report: RoundReport) -> None:
            seen.append(Learning.of_round(report, self.prepared))

    Experiment("fedrema", partition=Pathological(clients=4), rounds=2, epochs=1).run(tmp_path / "run", [Draw()])
    recorded = Learning.of_run(tmp_path / "run", round=1)
    np.testing.assert_array_equal(seen[0].matrix, recorded.matrix)
    np.testing.assert_array_equal(seen[0].counts, recorded.counts)
    assert (seen[0].names, seen[0].title, seen[0].about) == (recorded.names, recorded.title, recorded.about)


def test_what_cannot_be_drawn_says_why(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"there is nothing to draw \(nobody has learned from others\)"):
        picture(runs / "local", tmp_path / "it.png")
    with pytest.raises(CoterieError, match=r"round = 9: is not among the rounds .*\(1, 2, 3 … 6\)"):
        picture(runs / "fedtc", tmp_path / "it.png", round=9)
    with pytest.raises(CoterieError, match=r"it\.txt: must end in \.png, \.pdf, \.svg"):
        picture(runs / "fedtc", tmp_path / "it.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_data_made_in_python_is_drawn_without_them(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    data = Dataset(
        "mine", torch.tensor(stream.normal(size=(40, 3)), dtype=torch.float32), torch.arange(40) % 2, classes=2
    )
    halves = Partition(train=(np.arange(15), np.arange(20, 35)), test=(np.arange(15, 20), np.arange(35, 40)))
    Experiment("fedavg", data=data, partition=halves, rounds=1, epochs=1).run(tmp_path / "run")
    drawn = Learning.of_run(tmp_path / "run")
    assert drawn.counts.tolist() == [[8, 7], [8, 7]]
    assert drawn.classes == ("0", "1")
    assert picture(tmp_path / "run", tmp_path / "it.png").is_file()


def test_vector_formats(tmp_path: Path) -> None:
    drawn = learning([[1, 0], [0, 1]], [[1, 0], [0, 1]])
    assert picture(drawn, tmp_path / "it.pdf").read_bytes().startswith(b"%PDF")
    assert b"<svg" in picture(drawn, tmp_path / "it.svg").read_bytes()
