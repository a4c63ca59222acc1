"""The pages on listeners and notebooks: the plug-in for MLflow runs, against a stand-in, and mistakes read as shown."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_docs import ROOT, blocks

from coterie import registry
from coterie.cli import main


class FakeMlflow(SimpleNamespace):
    """MLflow as far as the plug-in uses it: keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(told=[], begun=[], params=[], ended=[])

    def start_run(self, run_id: str | None, run_name: str) -> Any:
        self.begun.append((run_id, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "first"))

    def log_params(self, params: dict[str, Any]) -> None:
        self.params.append(params)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        assert "received/accuracy" in metrics
        self.told.append(step)

    def end_run(self, status: str) -> None:
        self.ended.append(status)


def test_the_plug_in_for_mlflow_tells_every_round_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setattr(registry, "FILES", dict(registry.FILES))  # workers of later tests would look for MLflow
    monkeypatch.chdir(tmp_path)
    (source,) = blocks(ROOT / "docs" / "listeners.md", "python mlflow")
    assert len(source.splitlines()) < 30
    Path("tracking.py").write_text(source, encoding="utf-8")
    few = ["--clients", "3", "--rounds", "2", "--epochs", "1", "--threads", "1"]
    assert main(["run", "fedavg", *few, "--listener", "./tracking.py:MLflow", "--out", "run"]) == 0
    assert main(["resume", "run", "--rounds", "4", "--listener", "./tracking.py:MLflow"]) == 0
    assert fake.told == [1, 2, 3, 4]
    assert fake.begun == [(None, "fedavg"), ("first", "fedavg")]
    assert fake.params == [{"method": "fedavg", "rounds": 2, "clients": 3}]
    assert fake.ended == ["FINISHED", "FINISHED"]


def test_mistakes_read_as_the_page_on_notebooks_shows() -> None:
    page = ROOT / "docs" / "notebooks.md"
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(blocks(page, "python")[-1], "mistakes", "exec", dont_inherit=True), {"__name__": "example"})
    assert printed.getvalue() == blocks(page, "text")[-1]
