"""Figures for papers: those of the page in every format, by the scripts of the page, without a browser."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from report_tools import small_run

from coterie.display import Figure
from coterie.errors import CoterieError
from coterie.report.figures import OF_A_RUN, OF_SEVERAL, OF_WEIGHTS, drawn, run_figures, write_figures
from coterie.report.html import Content, light_colours
from coterie.report.learning import ABSENT, PARTS
from coterie.report.page import report_content

pytestmark = pytest.mark.thorough

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    small_run(folder / "fedrema")
    small_run(folder / "local", "local")
    return folder


@pytest.fixture(scope="module")
def content(runs: Path) -> Content:
    return report_content([runs / "fedrema"])


def elements(figure: Figure, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(figure.svg).iter(SVG + name))


def texts(figure: Figure) -> list[str]:
    return ["".join(one.itertext()) for one in elements(figure, "text")]


def test_every_figure_in_every_format(content: Content, tmp_path: Path) -> None:
    written = write_figures(content, tmp_path / "new")
    assert {path.name for path in written} == {f"{name}.{kind}" for name in OF_A_RUN for kind in ("png", "pdf", "svg")}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in written}
    for path in written:
        if path.suffix == ".png":
            assert Image.open(path).size[0] > 400
        elif path.suffix == ".svg":
            drawing = path.read_text(encoding="utf-8")
            assert any(text.strip() for text in ElementTree.fromstring(drawing).itertext())
            # Whatever shows it knows nothing of the page's style.
            assert not any(word in drawing for word in ("var(", "color-mix", "NaN", "undefined"))
        else:
            assert path.read_bytes().startswith(b"%PDF")


def test_the_same_numbers_give_the_same_files(content: Content, tmp_path: Path) -> None:
    for name in ("curves", "learning"):
        for kind in ("png", "pdf", "svg"):
            one, two = (
                run_figures(content["runs"][0], [name])[name].save(tmp_path / str(number) / f"{name}.{kind}")
                for number in range(2)
            )
            # The parts of a .pdf come in any order.
            assert one.read_bytes() == two.read_bytes() or (kind == "pdf" and one.stat().st_size == two.stat().st_size)


def test_several_runs_have_a_folder_each_and_what_has_no_numbers_is_left_out(runs: Path, tmp_path: Path) -> None:
    written = write_figures(report_content([runs]), tmp_path, [".svg"])
    assert {path.stem for path in written if path.parent == tmp_path} == set(OF_SEVERAL)
    assert {path.stem for path in (tmp_path / "fedrema").iterdir()} == set(OF_A_RUN)
    assert {path.stem for path in (tmp_path / "local").iterdir()} == set(OF_A_RUN) - {*OF_WEIGHTS, "bytes"}


def test_axes_say_what_they_show_and_curves_are_the_runs(content: Content) -> None:
    run = content["runs"][0]
    figures = run_figures(run)
    assert {"round", "accuracy, %", "mean over clients", "FedReMa on digits"} <= set(texts(figures["curves"]))
    # The heights of the line rise as the means do, on the first panel's axis.
    line = next(one for one in elements(figures["curves"], "path") if one.get("stroke-width") == "2.4")
    heights = [float(point.split()[1]) for point in (line.get("d") or "")[1:].split("L")]
    means = np.array(run["curves"]["received"]["mean"])
    slope, offset = np.polyfit(means, heights, 1)
    assert slope < 0
    np.testing.assert_allclose(slope * means + offset, heights, atol=0.11)
    track, clients = run["learning"][0], len(run["clients"])
    parts = np.array(track["weights"][track["start"]])
    matrix = np.tile(parts, (clients, 1)) if len(parts) == clients else parts.reshape(clients, clients)
    assert (matrix != ABSENT).all()
    weights = {f"{i},{j}": matrix[i, j] / PARTS for i in range(clients) for j in range(clients)}
    overlap = {f"{i},{j}": run["overlap"][i][j] for i in range(clients) for j in range(clients)}
    # The second matrix, of overlaps, stands beside the weights.
    cells = [one for one in elements(figures["learning"], "rect") if one.get("data-cell")]
    assert len(cells) == 2 * clients**2
    for drawn_cells, expected in ((cells[: clients**2], weights), (cells[clients**2 :], overlap)):
        values = {one.get("data-cell"): float(one.get("data-value") or "nan") for one in drawn_cells}
        assert values == pytest.approx(expected)
    order = [f"{i},{j}" for i in run["order"] for j in run["order"]]
    assert [one.get("data-cell") for one in cells[: clients**2]] == order


def test_texts_of_a_run_stay_texts(content: Content) -> None:
    evil = "</text><script>alert(1)</script>&\u0000\ud800\"'$\\frac{"
    run = {**content["runs"][0]}
    run["clients"], run["classes"] = [evil, *run["clients"][1:]], [evil, *run["classes"][1:]]
    for figure in run_figures({**run, "method": evil}).values():
        names = {one.tag.removeprefix(SVG) for one in ElementTree.fromstring(figure.svg).iter()}
        assert names <= {"svg", "g", "rect", "circle", "line", "path", "text"}
    assert any("<script>" in text for text in texts(run_figures({**run, "method": evil}, ["curves"])["curves"]))


def test_clients_that_learn_from_each_other_stand_together() -> None:
    groups = np.kron(np.eye(3), np.ones((3, 3)))
    for weights, alike in ((groups / 3, False), (np.full((9, 9), 1 / 9), True)):
        track = {
            "group": "all",
            "target": "model",
            "rounds": [1],
            "start": 0,
            "weights": [(weights * PARTS).ravel().tolist()],
        }
        run = {"clients": [*map(str, range(9))], "order": [*range(9)], "counts": None, "learning": [track]}
        nodes = [one.get("transform") or "" for one in elements(drawn(run, ["graph"])["graph"], "g")][-9:]
        places = np.array([[float(part) for part in one[10:-1].split()] for one in nodes])
        assert np.isfinite(places).all()
        far = np.linalg.norm(places[:, None] - places[None], axis=2)
        if not alike:
            together = (groups > 0) & ~np.eye(9, dtype=bool)
            assert far[together].max() < far[groups == 0].min()


def test_a_search_is_drawn_with_a_panel_for_each_option() -> None:
    tried = [(rate, pull) for rate in (0.001, 0.01, 0.1, 1.0) for pull in ("none", "some")]
    search = {
        "metric": {"name": "accuracy", "share": True, "higher": True},
        "options": ["lr", "pull"],
        "best": "0.1,some",
        "candidates": [
            {"name": f"{rate},{pull}", "rounds": 4 if rate > 0.01 else 2, "score": rate / 2, "values": [rate, pull]}
            for rate, pull in tried
        ],
    }
    figure = drawn(search, ["search"])["search"]
    assert {"lr", "pull", "none", "some", "0.001", "0.1"} <= set(texts(figure))
    colours = light_colours()
    dots = [one for one in elements(figure, "circle") if one.get("r") not in ("4",)]  # without those of legends
    for panel in (dots[:8], dots[8:]):
        looks = [(one.get("stroke"), one.get("fill") == colours["card"]) for one in panel]
        assert looks.count((colours["s5"], True)) == 4, "given up"
        assert looks.count((colours["s0"], False)) == 3, "ran to the end"
        assert looks.count((colours["s1"], False)) == 1, "chosen"
    # By factors: ten times as much is one step to the right.
    places = sorted({round(float(one.get("cx") or "nan"), 2) for one in dots[:8]})
    assert np.diff(places) == pytest.approx([places[1] - places[0]] * 3, abs=0.02)
    assert drawn({**search, "options": []}, ["search"]) == {}


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Path) -> None:
    real = builtins.__import__

    def without_engine(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "quickjs":
            raise ImportError(name)
        return real(name, *rest, **more)

    from coterie.report import picture

    monkeypatch.setattr(builtins, "__import__", without_engine)
    with pytest.raises(CoterieError) as problem:
        picture(runs / "fedrema", tmp_path / "it.png")
    assert str(problem.value) == 'pictures need an extra that is not installed: pip install "coterie[plots]"'
    assert list(tmp_path.iterdir()) == []


ACCURATE = {"name": "accuracy", "share": True, "higher": True}


def test_moments_side_by_side_have_the_same_axis() -> None:
    """The first method is low as received; where only the second is to be seen, the axis is the same."""

    def curve(*means: float) -> dict[str, Any]:
        return {"rounds": [1, 2], "mean": means, "std": None}

    methods = [
        {"title": "a", "curves": {"received": curve(0.1, 0.2), "trained": curve(0.8, 0.9)}},
        {"title": "b", "curves": {"received": curve(0.1, 0.3), "trained": curve(0.85, 0.9)}},
    ]
    figure = drawn({"metric": ACCURATE, "methods": methods}, ["methods"])["methods"]
    percents = [text for text in texts(figure) if text in ("20", "40", "60", "80")]
    assert percents == ["20", "40", "60", "80"] * 2


def test_gains_have_no_methods_colours_and_words_stay_clear_of_the_lines() -> None:
    gains = [{"client": "a", "seed": 0, "gain": 0.1}, {"client": "b", "seed": 0, "gain": -0.1}]
    rows = [{"method": "fedavg", "gained": 1, "lost": 1, "mean": 0.0, "gains": gains}] * 2
    figure = drawn({"metric": ACCURATE, "gains": {"moments": {"received": rows}, "why": ""}}, ["gains"])["gains"]
    colours = {value for name, value in light_colours().items() if name in {f"s{place}" for place in range(8)}}
    assert colours
    used = {one.get(part) for one in figure_elements(figure) for part in ("fill", "stroke")}
    assert not colours & used
    words = [float(one.get("y") or 0) for one in elements(figure, "text") if (one.text or "").endswith("mean 0")]
    assert len(words) == 2
    for line in elements(figure, "line"):
        low, high = sorted(float(line.get(end) or 0) for end in ("y1", "y2"))
        assert not any(low - 2 < y < high for y in words)


def figure_elements(figure: Figure) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(figure.svg).iter())
