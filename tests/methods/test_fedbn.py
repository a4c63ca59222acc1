"""FedBN: batch norm is personal; a model without it makes the method FedAvg, and the log says so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from support import final_rows, tiny, warnings_in


def warnings(model: str, caplog: pytest.LogCaptureFixture, out: Path | None = None) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "coterie"):
        tiny("fedbn", model).run(out)
    return warnings_in(caplog)


def test_a_model_without_batch_norm_is_warned_of_once_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = warnings("plain", caplog, tmp_path / "run")
    assert said == ["fedbn: the model has no batch-norm layers, so nothing is personal and this is FedAvg"]
    assert (tmp_path / "run" / "log.txt").read_text().count("this is FedAvg") == 1
    assert torch.equal(final_rows(tiny("fedbn").run()), final_rows(tiny("fedavg").run()))


def test_a_model_with_batch_norm_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings("norm", caplog) == []
    rows = final_rows(tiny("fedbn", "norm").run())
    assert not torch.equal(rows[0], rows[1])
