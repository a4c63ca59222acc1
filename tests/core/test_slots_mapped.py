"""Personal rows in a mapped file: the same run, to the bit, wherever rows lie."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import coterie as ct
from coterie.core.slots import LIMIT, personal_rows
from coterie.runs.tensors import stream_tensors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="rows are mapped on Linux alone")


def _experiment(**options: Any) -> ct.Experiment:
    settings: dict[str, Any] = {"rounds": 3, "epochs": 1, "threads": 1, "join": 0.5, **options}
    return ct.Experiment(ct.PFedSim(rho=0), "digits", ct.Dirichlet(clients=6, alpha=0.5), **settings)


@pytest.fixture
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "0")


def test_rows_within_the_limit_stay_in_memory_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    row = torch.arange(1000.0)
    monkeypatch.setenv(LIMIT, "1")
    assert personal_rows(row, clients=250)[1] is None
    rows, mapped = personal_rows(row, clients=251)
    assert mapped is not None
    assert torch.equal(rows, row.repeat(251, 1))
    rows[7] = 0
    assert torch.equal(mapped.opened(), rows)  # whoever maps it sees what is written


def test_a_limit_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "much")
    with pytest.raises(ct.CoterieError, match="COTERIE_ROWS_IN_MEMORY = much: must be a number of MB"):
        personal_rows(torch.zeros(3), clients=2)


@pytest.mark.usefixtures("nothing_in_memory")
def test_a_disk_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 10

    monkeypatch.setattr("coterie.core.slots.shutil.disk_usage", lambda folder: Full)
    with pytest.raises(ct.CoterieError, match=r"of 5 clients take 20 B, and .* has room for 10 B; set TMPDIR"):
        personal_rows(torch.zeros(1), clients=5)


@pytest.mark.parametrize("engine", ["serial", "stacked", pytest.param("processes", marks=pytest.mark.processes)])
def test_a_run_on_mapped_rows_is_the_run_on_rows_in_memory(
    engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = _experiment(engine=engine, workers=2).run(out=tmp_path / "plain")
    monkeypatch.setenv(LIMIT, "0")
    mapped = _experiment(engine=engine, workers=2).run(out=tmp_path / "mapped")
    assert mapped.federation["model"].mapped is not None
    assert torch.equal(mapped.federation["model"].own, plain.federation["model"].own)
    kept, again = ((tmp_path / name / "rows.safetensors").read_bytes() for name in ("plain", "mapped"))
    assert kept == again


@pytest.mark.usefixtures("nothing_in_memory")
def test_a_run_on_mapped_rows_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.runs.tensors.STREAMED", 0)
    whole = _experiment(rounds=4).run()
    _experiment(rounds=2).run(out=tmp_path / "run")
    longer = ct.resume(tmp_path / "run", rounds=4)
    assert torch.equal(longer.federation["model"].own, whole.federation["model"].own)


def test_what_is_written_piece_by_piece_is_what_the_formats_own_library_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.runs.tensors.PIECE", 16)
    tensors = {
        "b": torch.arange(10.0).view(2, 5),
        "a": torch.tensor([True, False, True]),
        "é": torch.arange(3),
        "none": torch.empty(0, 4),
        "t": torch.arange(6.0).view(2, 3).T.contiguous(),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }
    for about in ({}, {"layout": '{"round": 1, "word": "größer"}'}):
        stream_tensors(tmp_path / "rows", tensors, about)
        assert (tmp_path / "rows").read_bytes() == save(tensors, about or None)
