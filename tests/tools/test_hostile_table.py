"""The table of attacks and defences: what is in it, and that a cell is the honest clients' numbers."""

from __future__ import annotations

import pytest
from tools.hostile_table import ATTACKS, DEFENCES, METHODS, cells, page, result_of

from coterie.data import load
from tools import hostile_table


def test_every_cell_once_and_attacks_without_defence_first() -> None:
    found = list(cells())
    assert len(set(found)) == len(found) == len(METHODS) * len(ATTACKS) * len(DEFENCES)
    assert all(not defence for _, _, defence in found[: len(METHODS) * len(ATTACKS)])


def test_the_page_shows_numbers_refusals_and_what_has_not_been_run() -> None:
    text = page(
        {
            "fedavg / nobody / none": {"mean": 0.71, "worst_decile": 0.5, "honest": 16, "seconds": 2.25},
            "fedavg / sign-flip:0.2 / none": {"mean": 0.5, "worst_decile": 0.5, "honest": 16, "seconds": 4.75},
            "pfedcs / sign-flip:0.2 / krum:4": {"refused": "too few"},
        }
    )
    assert "| nobody | 71.0 / 50.0 |  |" in text
    assert "A cell took 3.5 s of one processor's time on average (2 timed), the longest 5 s." in text
    assert "## `krum:4`" in text
    assert "| `sign-flip:0.2` |  |  | *refused* |" in text
    assert "## `median`" not in text


@pytest.mark.thorough
def test_a_cell_leaves_the_same_clients_out_whether_they_are_hostile_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {**hostile_table.SETTINGS, "rounds": 1, "epochs": 1, "evaluate_every": 1}
    monkeypatch.setattr(hostile_table, "SETTINGS", short)
    monkeypatch.setattr(hostile_table, "SAMPLES", 40)
    data = load("digits")
    assert {result_of("fedavg", attack, "", data)["honest"] for attack in ("", "nan:0.2")} == {16}
    assert "too small" in result_of("fedrema", "", "krum:9", data)["refused"]
