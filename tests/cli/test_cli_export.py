"""`coterie export`, and what `coterie predict` makes of it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from cli_tools import SMALL, call

from coterie import load, open_run


@pytest.mark.thorough
def test_an_exported_model_predicts_as_the_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "run", "fedper", *SMALL, "--out", "it").code == 0
    answer = call(capsys, "export", "it", "--client", "3")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "The model of client 3 (mlp, fedper, round 2 of 2) is in it-client-3.safetensors\n"
    data = load("digits")
    np.savez("new.npz", x=data.inputs[:30].numpy(), y=data.labels[:30].numpy())
    answer = call(capsys, "predict", "it-client-3.safetensors", "new.npz", "--out", "new.csv")
    assert answer.code == 0, answer.err
    predicted = [int(row["predicted"]) for row in csv.DictReader(io.StringIO(Path("new.csv").read_text()))]
    wanted = open_run("it").predict(3, data.inputs[:30])
    assert predicted == wanted.tolist()
    assert f"accuracy {float((wanted == data.labels[:30]).float().mean()):.4f}" in answer.out


@pytest.mark.thorough
def test_a_run_that_has_not_ended_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "run", "fedper", *SMALL, "--checkpoint-every", "1", "--out", "it").code == 0
    Path("it/summary.json").unlink()
    answer = call(capsys, "export", "it", "--client", "0", "--out", "a.safetensors")
    assert answer.code == 0
    assert answer.err == "coterie: warning: the run has not ended: this is the model of round 2\n"
    answer = call(capsys, "export", "it", "--client", "7")
    assert (answer.code, answer.err) == (2, "coterie: error: client = 7: must lie in 0..3\n")


@pytest.mark.slow
@pytest.mark.parametrize("format", ["pt2", "onnx"])
def test_an_exported_program_is_taken_by_predict(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if format == "onnx":
        pytest.importorskip("onnxscript")
    # Batch norm has statistics, and counters that are whole numbers.
    settings = ("--model", "resnet8", "--batch", "64")
    assert call(capsys, "run", "fedper", *SMALL, *settings, "--out", "it").code == 0
    answer = call(capsys, "export", "it", "--client", "2", "--format", format)
    assert answer.code == 0, answer.err
    data = load("digits")
    np.savez("new.npz", x=data.inputs[:20].numpy(), y=data.labels[:20].numpy())
    answer = call(capsys, "predict", f"it-client-2.{format}", "new.npz", "--out", "new.csv")
    assert answer.code == 0, answer.err
    rows = list(csv.DictReader(io.StringIO(Path("new.csv").read_text())))
    assert [int(row["predicted"]) for row in rows] == open_run("it").predict(2, data.inputs[:20]).tolist()
