"""What is kept of finished models: with the run, in a packed one, gone when the run goes on; older runs do without."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from coterie.errors import CoterieError
from coterie.report.page import report_content
from coterie.rounds.listeners import StopAfter
from coterie.runs.resume import resume
from coterie.runs.run import open_run
from coterie.runs.store import ABOUT, QUALITY, pack
from coterie.runs.tensors import SEAL, sealed
from support import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    tiny("fedper").run(path)
    return path


def test_it_is_that_of_the_finished_models(run: Path, tmp_path: Path) -> None:
    opened = open_run(run)
    quality, summary = opened.quality, opened.summary
    assert summary is not None
    assert_allclose(quality["auc"].mean(), summary["auc"])
    assert_allclose(quality["macro_f1"].mean(), summary["macro_f1"])
    # Recalls weighted by how many samples each class has are the accuracy.
    kept = {name: values.numpy() for name, values in opened.record.quality().items()}
    accuracy = np.array(opened.accuracy().received.by_client)
    assert_allclose(kept["hits"].sum(1) / kept["support"].sum(1), accuracy)
    pack([run], tmp_path / "run.zip")
    assert open_run(tmp_path / "run.zip").quality.equals(quality)


def test_a_run_that_goes_on_has_none_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "run"
    experiment = tiny("fedper")
    experiment.run(path, listeners=[StopAfter(1)])
    first = open_run(path).quality

    class Look(StopAfter):
        def round(self, report: object) -> None:
            assert not (path / QUALITY).exists()

    resume(path, experiment=experiment, listeners=[Look(9)])
    assert not open_run(path).quality.equals(first)
    resume(path, experiment=experiment, listeners=[Look(9)], rounds=4)
    assert len(open_run(path).quality) == 4


def test_older_and_damaged_runs_are_still_read(run: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    tiny("fedper").run(older)
    (older / QUALITY).unlink()
    assert open_run(older).quality.empty
    (content,) = report_content([older])["runs"]
    assert "has not ended" in content["quality"]["why"]
    (older / QUALITY).write_bytes(b"damaged")
    (content,) = report_content([older])["runs"]
    assert "quality.safetensors is damaged" in content["quality"]["why"]
    (older / QUALITY).write_bytes((run / QUALITY).read_bytes())
    about = {key: value for key, value in json.loads((older / ABOUT).read_text()).items() if key != SEAL}
    for foreign in ({"clients": about["clients"][:-1]}, {"data": {**about["data"], "class_names": ["a", "b"]}}):
        (older / ABOUT).write_text(json.dumps(sealed({**about, **foreign})))
        with pytest.raises(CoterieError, match=r"quality\.safetensors and about\.json are not of one run"):
            _ = open_run(older).quality
    (older / ABOUT).write_text(json.dumps(sealed(about)))
    assert not report_content([older])["runs"][0]["quality"]["why"]
