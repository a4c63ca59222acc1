"""Who has influence: column weights of W, and the hostile told apart."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from coterie.partition import Dirichlet
from coterie.report.figures import run_figures
from coterie.report.html import light_colours
from coterie.report.learning import influence, learning_matrix
from coterie.report.onerun import run_content
from coterie.report.reading import read_run
from coterie.runs.experiment import Experiment

NAN = float("nan")


def test_influence_worked_out_by_hand() -> None:
    """Two learners: client 1 has 0.5 of client 0's row, client 2 nothing; client 2 took no part."""
    matrix = np.array([[0.5, 0.5, NAN], [0.25, 0.75, NAN], [NAN, NAN, NAN]])
    np.testing.assert_allclose(influence(matrix), [0.125, 0.25, 0.0])


@pytest.mark.thorough
def test_the_report_tells_the_hostile_from_the_honest(tmp_path: Path) -> None:
    found = Experiment(
        "fedrema", partition=Dirichlet(clients=5, alpha=5.0), rounds=3, share=0.2, attack="copycat:0.4", threads=1
    ).run(out=tmp_path / "run")
    content = run_content(read_run(tmp_path / "run"))
    assert [content["clients"][row] for row in content["hostile"]] == found.summary["hostile"]
    track = next(one for one in content["learning"] if one["group"] == "classifier")
    matrices = [learning_matrix([m for m in found.mixes(round) if m.group == "classifier"], 5) for round in (1, 2, 3)]
    np.testing.assert_allclose(track["influence"], np.mean([influence(one) for one in matrices], axis=0), atol=1e-4)
    figure = ElementTree.fromstring(run_figures(content, ["influence"])["influence"].svg)
    bars = [one for one in figure.iter("{http://www.w3.org/2000/svg}rect") if one.get("data-influence")]
    shown = [(float(one.get("data-influence") or "nan"), one.get("fill")) for one in bars[:5]]
    hostile, tracks = set(content["hostile"]), content["learning"]
    colours = light_colours()
    assert shown == [
        (pytest.approx(tracks[0]["influence"][k], abs=1e-4), colours["s1" if k in hostile else "s0"])
        for k in content["order"]
    ]
    assert len(bars) == 5 * len(tracks)
    assert run_figures({**content, "learning": []}, ["influence"]) == {}
