"""The engine by measurement: the fastest is chosen, said, kept, and written down; results do not depend on it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from coterie.experiment import choose_engine as auto
from coterie.experiment.choose_engine import Choice, choose, with_choice
from coterie.experiment.directory import RunDirectory
from support import final_rows, tiny


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def offer(monkeypatch: pytest.MonkeyPatch, *choices: Choice) -> None:
    monkeypatch.setattr(auto, "_trials", lambda prepared: iter(choices))


SERIAL = Choice("serial", 1, "contiguous", 1.0)
STACKED = Choice("stacked", 1, "contiguous", 0.5)
PROCESSES = Choice("processes", 1, "contiguous", 0.4)


def test_the_fastest_is_chosen_and_start_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, SERIAL, STACKED, PROCESSES)
    assert choose(tiny(engine="auto", rounds=3).prepare())[0] == STACKED
    assert choose(tiny(engine="auto", rounds=300).prepare())[0] == PROCESSES


def test_a_choice_is_kept_per_machine_and_work(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, STACKED)
    prepared = tiny(engine="auto").prepare()
    assert "measured: stacked" in choose(prepared)[1]
    offer(monkeypatch, SERIAL)
    assert choose(prepared) == (STACKED, f"engine auto: {STACKED}, as measured before on this machine")
    assert choose(tiny(engine="auto", batch=3).prepare())[0] == SERIAL


def test_trials_cover_every_engine_and_memory_format() -> None:
    kinds = {(one.engine, one.memory) for one in auto._trials(tiny(engine="auto").prepare())}
    assert {("serial", "contiguous"), ("stacked", "contiguous")} <= kinds
    assert all(one.seconds > 0 for one in auto._trials(tiny(engine="auto").prepare()))
    declined = {one.engine for one in auto._trials(tiny(model="norm", engine="auto").prepare())}
    assert "stacked" not in declined


def test_a_run_says_and_writes_down_what_was_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offer(monkeypatch, STACKED)
    with caplog.at_level(logging.INFO, logger="coterie"):
        result = tiny("fedper", engine="auto").run(tmp_path / "run")
    assert any("engine auto: stacked" in record.getMessage() for record in caplog.records)
    assert "engine auto: stacked" in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert RunDirectory.open(tmp_path / "run").config()["engine"] == "stacked"
    assert result.summary["engine"] == "stacked"
    serial = tiny("fedper", threads=1).run()
    torch.testing.assert_close(final_rows(result), final_rows(serial), atol=1e-6, rtol=0)


def test_other_engines_are_left_alone() -> None:
    prepared = tiny(engine="stacked").prepare()
    assert with_choice(prepared) is prepared


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    offer(monkeypatch, SERIAL)
    assert choose(tiny(engine="auto").prepare())[0] == SERIAL
