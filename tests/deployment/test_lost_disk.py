"""A site that loses its disk gets back what the server knows of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coterie.deployment.store import Store
from federated import Together, agreed


def rows_after(name: str, folder: Path, lost_before: int | None) -> dict[str, Tensor]:
    """The server's rows after four rounds; site-b loses its disk before one of them."""
    together = Together(agreed(name, rounds=4, epochs=1, validation=0.2), folder)
    together.admit()
    for round in range(1, 5):
        if round == lost_before:
            shutil.rmtree(Store(folder, "trial", "site-b", together.agreement.fingerprint).path)
            together.sites["site-b"] = together.site("site-b")
            together.admit("site-b")
        together.round()
    federation = together.server.federation
    return {slot: federation[slot].rows(federation.everyone) for slot in federation.slots}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedfomo", "fedamp", "fedcac", "pfedsim"])
def test_nothing_changes_where_the_server_knows_all_that_a_site_held(name: str, tmp_path: Path) -> None:
    expected = rows_after(name, tmp_path / "whole", None)
    found = rows_after(name, tmp_path / "lost", 3)
    for slot, rows in expected.items():
        assert torch.equal(found[slot], rows), slot


@pytest.mark.parametrize("name", ["fedper", "feddyn"])
def test_what_never_left_the_site_is_gone(name: str, tmp_path: Path) -> None:
    expected = rows_after(name, tmp_path / "whole", None)
    assert not torch.equal(rows_after(name, tmp_path / "lost", 3)["model"], expected["model"])


def test_a_slot_that_served_its_purpose_is_not_sent_again(tmp_path: Path) -> None:
    together = Together(agreed("pfedcs", rounds=4), tmp_path)
    together.admit()
    for _ in range(4):
        together.round()
    assert together.server.federation["teacher"].dropped
    together.sites["site-b"].store = Store(tmp_path, "elsewhere", "site-b", together.agreement.fingerprint)
    together.admit("site-b")
    task = together.server.farewells(["site-b"])["site-b"]
    assert "slot.model" in task.tensors
    assert "slot.teacher" not in task.tensors
