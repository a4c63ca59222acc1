"""`coterie runs`: what lies below a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_tools import SMALL, call


@pytest.mark.thorough
def test_runs_below_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "run", "fedper", *SMALL, "--out", "all/deep/one").code == 0
    assert call(capsys, "run", "local", *SMALL, "--out", "all/two").code == 0
    assert call(capsys, "run", "local", *SMALL, "--out", "all/old").code == 0
    Path("all/two/summary.json").unlink()
    config = Path("all/old/config.toml")
    config.write_text(config.read_text().replace("format = 3\n", ""))
    Path("all/settings").mkdir()
    Path("all/settings/config.toml").write_text("rounds = 3\n")
    found = {run["run"]: run for run in call(capsys, "runs", "all", "--json").json}
    assert list(found) == ["deep/one", "old", "two"]
    one = call(capsys, "show", "all/deep/one", "--json").json
    assert found["deep/one"]["received"] == one["accuracy"]["received"]["mean"]["last"]
    assert {key: found["two"][key] for key in ("method", "data", "done", "planned", "status")} == {
        "method": "local",
        "data": "digits",
        "done": 2,
        "planned": 2,
        "status": "unfinished",
    }
    assert found["deep/one"]["status"] == "finished"
    lines = call(capsys, "runs", "all").out.splitlines()
    assert " ".join(lines[0].split()) == "run method data rounds status judged by received, last begun (UTC)"
    assert lines[2].split()[:5] == ["deep/one", "fedper", "digits", "2/2", "finished"]
    assert "was written by an older version of Coterie" in lines[3]


def test_a_folder_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "runs", tmp_path).err == f"coterie: error: folder = {tmp_path}: holds no runs\n"
    assert call(capsys, "runs", tmp_path / "no").code == 2
    assert call(capsys, "runs", tmp_path, "--json").json == []
