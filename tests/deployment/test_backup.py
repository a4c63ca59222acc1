"""Back-up and restore as the page on operations has it: a federation goes on elsewhere, and ends as if nothing was."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from tests.deployment.test_coordinator import Trial

from coterie.deployment.agreement import Agreement
from coterie.deployment.coordinator import Coordinator
from coterie.runs.tensors import load_tensors
from coterie.testing.together import SITES, agreed

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def needed_by_the_server() -> list[str]:
    """What the page says must be backed up of `DIR/server`."""
    (row,) = re.findall(r"^\| the server's state \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [name.removeprefix("server/").rstrip("/") for name in re.findall(r"`(.*?)`", row)]


def stopped_after(round: int, folder: Path, agreement: Agreement) -> None:
    """Run a federation in a folder, and stop its server when a round is over."""
    trial = Trial(folder, agreement)

    def stop(seconds: float) -> None:
        trial.network.sleep(seconds)
        if trial.server.federation.round > round:
            raise KeyboardInterrupt

    network = trial.network
    coordinator = Coordinator(trial.server, network, trial.logbook, network.clock, stop)
    with pytest.raises(KeyboardInterrupt):
        coordinator.run()


def copied(folder: Path, place: Path, sites: bool) -> None:
    """Copy what is needed, and nothing else."""
    (place / "server").mkdir(parents=True)
    for name in needed_by_the_server():
        source = folder / "server" / name
        if source.is_dir():
            shutil.copytree(source, place / "server" / name)
        elif source.exists():
            shutil.copy(source, place / "server" / name)
    if sites:
        shutil.copytree(folder / "sites", place / "sites")


@pytest.mark.thorough
@pytest.mark.parametrize("sites_too", [True, False], ids=["everything", "the server alone, from an older copy"])
def test_a_restored_federation_ends_as_if_nothing_was(sites_too: bool, tmp_path: Path) -> None:
    agreement = agreed("ditto", rounds=6, deadline=30.0, gather=10.0, checkpoints=4)
    here, backup = tmp_path / "here", tmp_path / "backup"
    stopped_after(2, here, agreement)
    copied(here, backup, sites_too)
    stopped_after(4, here, agreement)  # what comes after the back-up is lost
    shutil.rmtree(here / "server")
    if sites_too:
        shutil.rmtree(here / "sites")
        here = tmp_path / "elsewhere"
    shutil.copytree(backup, here, dirs_exist_ok=True)
    restored = Trial(here, agreement)
    restored.run()
    assert [line.round for line in restored.lines] == [1, 2, 3, 4, 5, 6]
    assert sorted(round for name, round in restored.network.asked if name == "site-a") == [3, 4, 5, 6]
    whole = Trial(tmp_path / "whole", agreement)
    whole.run()
    for slot, ours in whole.server.federation.slots.items():
        assert torch.equal(restored.server.federation[slot].shared, ours.shared)
    for site in SITES:
        mine, theirs = (
            load_tensors(folder / "sites" / "trial" / site / "final.safetensors")[0]
            for folder in (here, tmp_path / "whole")
        )
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
