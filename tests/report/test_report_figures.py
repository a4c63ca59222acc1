"""Figures for papers: every one of the page in every format, without a trace in matplotlib."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from PIL import Image
from report_tools import small_run

from coterie.report.figures import run_figures, save_figures, settled, shown_matrix, write_figures
from coterie.report.figures_search import search_figure
from coterie.report.page import report_content

pytestmark = pytest.mark.thorough

LEARNING = {"learning", "graph", "agreement", "influence"}
QUALITY = {"recall", "ranking", "calibration"}
OF_A_RUN = {"curves", "training", "clients", "partition", "bytes", "seconds", *LEARNING, *QUALITY}
OF_SEVERAL = {"methods", "against-bytes", "against-seconds", "gains", "recalls", "rankings", "calibrations"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    small_run(folder / "fedrema")
    small_run(folder / "local", "local")
    return folder


def test_every_figure_in_every_format(runs: Path, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    written = write_figures(report_content([runs / "fedrema"]), tmp_path / "new")
    assert {path.name for path in written} == {f"{name}.{kind}" for name in OF_A_RUN for kind in ("png", "pdf", "svg")}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in written}
    for path in written:
        if path.suffix == ".png":
            assert Image.open(path).size[0] > 400
        elif path.suffix == ".svg":
            texts = [text.strip() for text in ElementTree.parse(path).getroot().itertext()]
            assert any(texts)
        else:
            assert path.read_bytes().startswith(b"%PDF")
    assert dict(matplotlib.rcParams) == before


def test_the_same_numbers_give_the_same_files(runs: Path, tmp_path: Path) -> None:
    content = report_content([runs / "fedrema"])["runs"][0]
    drawn = [run_figures(content) for _ in range(2)]
    chosen = [{name: figures[name] for name in ("curves", "learning")} for figures in drawn]
    one, two = (save_figures(figures, tmp_path / str(number)) for number, figures in enumerate(chosen))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_several_runs_have_a_folder_each_and_what_has_no_numbers_is_left_out(runs: Path, tmp_path: Path) -> None:
    written = write_figures(report_content([runs]), tmp_path, [".svg"])
    assert {path.stem for path in written if path.parent == tmp_path} == OF_SEVERAL
    assert {path.stem for path in (tmp_path / "fedrema").iterdir()} == OF_A_RUN
    assert {path.stem for path in (tmp_path / "local").iterdir()} == OF_A_RUN - LEARNING


def test_axes_say_what_they_show_and_curves_are_the_runs(runs: Path) -> None:
    content = report_content([runs / "fedrema"])["runs"][0]
    figures = run_figures(content)
    axes = figures["curves"].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "accuracy, %")
    mean = next(line for line in axes.lines if line.get_label() == "mean over clients")
    np.testing.assert_allclose(mean.get_ydata(), 100 * np.array(content["curves"]["received"]["mean"]))
    matrix = shown_matrix(content)
    assert matrix is not None
    shown = np.asarray(figures["learning"].axes[0].images[0].get_array())
    np.testing.assert_allclose(shown, matrix[np.ix_(content["order"], content["order"])])


def test_dollars_in_names_are_no_formulas(runs: Path, tmp_path: Path) -> None:
    content = report_content([runs / "fedrema"])
    content["runs"][0]["clients"][0] = content["runs"][0]["classes"][0] = "$\\frac{"
    assert write_figures(content, tmp_path, [".svg"])


def test_clients_that_learn_from_each_other_stand_together() -> None:
    groups = np.kron(np.eye(3), np.ones((3, 3))) - np.eye(9)
    places = settled(groups / 2, list(range(9)))
    far = np.linalg.norm(places[:, None] - places[None], axis=2)
    assert far[groups > 0].max() < far[(groups == 0) & ~np.eye(9, dtype=bool)].min()
    assert np.isfinite(settled(np.full((4, 4), 0.25) - 0.25 * np.eye(4), [3, 1, 0, 2])).all()


def test_a_search_is_drawn_with_a_panel_for_each_option(tmp_path: Path) -> None:
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
    figure = search_figure(search)
    assert figure is not None
    rates, pulls = figure.axes
    assert (rates.get_xscale(), pulls.get_xscale()) == ("log", "linear")
    assert [text.get_text() for text in pulls.get_xticklabels()] == ["none", "some"]
    ended, given_up, chosen = rates.collections
    assert ended.get_offsets().tolist() == [[0.1, 5.0], [0.1, 5.0], [1.0, 50.0], [1.0, 50.0]]
    assert len(given_up.get_offsets()) == 4
    assert chosen.get_offsets().tolist() == [[0.1, 5.0]]
    assert search_figure({**search, "options": []}) is None
