"""A server keeps its last checkpoints and goes back to one; sites follow, and the federation ends as if nothing was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.deployment.test_coordinator import Trial

from coterie.cli import main
from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.folder import write_folder
from coterie.deployment.flower.processes import Lock
from coterie.deployment.logbook import Logbook
from coterie.deployment.store import Store
from coterie.errors import CoterieError
from coterie.runs.tensors import load_tensors
from coterie.testing.together import SITES, Together, agreed


def test_a_site_keeps_what_it_needs_to_go_back_as_far_as_the_server(tmp_path: Path) -> None:
    store = Store(tmp_path, "trial", "a", "fingerprint")
    since = 0
    for round, counts in ((1, True), (2, False), (3, True), (7, True), (8, False), (9, True), (10, True)):
        store.save(round, {"row": torch.full((2,), float(round))}, since, back=3)
        since = round if counts else since
    # The server keeps rounds 8, 9 and 10: after 8 the site's last round was 7.
    assert store.rounds() == [7, 9, 10]
    store.save(11, {"row": torch.ones(2)}, since=10, back=1)
    assert store.rounds() == [10, 11]
    store.save(9, {"row": torch.ones(2)}, since=0, back=3)  # the server went back
    assert store.rounds() == [9]


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fedper", "pfedsim", "ditto"])
def test_a_federation_that_went_back_ends_as_if_nothing_was(method: str, tmp_path: Path) -> None:
    agreement = agreed(method, rounds=6, deadline=30.0, gather=10.0, checkpoints=4)
    trial = Trial(tmp_path, agreement)
    trial.run()
    logbook = Logbook(tmp_path / "server", agreement)
    assert logbook.checkpoints() == [3, 4, 5, 6]
    assert logbook.go_back(3) == [4, 5, 6]
    assert not (tmp_path / "server" / "summary.json").exists()
    assert trial.status["message"] == "went back to round 3; start the server"
    again = Trial(tmp_path, agreement)
    again.run()
    assert [line.round for line in again.lines] == [1, 2, 3, 4, 5, 6]
    assert sorted(round for name, round in again.network.asked if name == "site-a") == [4, 5, 6]
    assert logbook.checkpoints() == [3, 4, 5, 6]
    whole = Trial(tmp_path / "whole", agreement)
    whole.run()
    for slot, ours in whole.server.federation.slots.items():
        assert torch.equal(again.server.federation[slot].shared, ours.shared)
        assert torch.equal(again.server.federation[slot].own, ours.own)
    for name in SITES:
        mine = load_tensors(tmp_path / "sites" / "trial" / name / "final.safetensors")[0]
        theirs = load_tensors(tmp_path / "whole" / "sites" / "trial" / name / "final.safetensors")[0]
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


def two_rounds(folder: Path) -> tuple[Agreement, Logbook]:
    agreement = agreed("fedavg", rounds=9)
    together, logbook = Together(agreement, folder / "sites"), Logbook(folder / "server", agreement)
    together.admit()
    for _ in range(2):
        logbook.add(together.round())
        logbook.checkpoint(together.server)
    return agreement, logbook


def test_going_back_can_be_taken_back_until_the_server_starts(tmp_path: Path) -> None:
    _, logbook = two_rounds(tmp_path)
    before = (tmp_path / "server" / "checkpoint.safetensors").read_bytes()
    assert logbook.go_back(1) == [2]
    assert (tmp_path / "server" / "checkpoint.safetensors").read_bytes() != before
    assert logbook.go_back(2) == []
    assert (tmp_path / "server" / "checkpoint.safetensors").read_bytes() == before


def test_rounds_that_are_not_kept_damaged_or_of_another_agreement_are_refused(tmp_path: Path) -> None:
    agreement, logbook = two_rounds(tmp_path)
    with pytest.raises(CoterieError, match=r"round = 7: is not kept; those that are: 1, 2"):
        logbook.go_back(7)
    other = agreed("fedavg", rounds=9, lr=0.7)
    with pytest.raises(CoterieError, match="is of another agreement"):
        Logbook(tmp_path / "server", other).go_back(1)
    path = tmp_path / "server" / "checkpoints" / "00001.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CoterieError, match="is damaged"):
        logbook.go_back(1)
    assert load_tensors(tmp_path / "server" / "checkpoint.safetensors")[1]["round"] == "2"
    assert agreement.checkpoints == 3


def test_the_command_lists_goes_back_and_refuses_a_server_that_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agreement = Agreement(name="six", sites=SITES, shape=(6,), classes=3, rounds=9, epochs=1)
    folder = tmp_path / "six"
    write_folder(folder, agreement)
    assert main(["federation", "rollback", str(folder)]) == 2
    assert "its server has not been started yet" in capsys.readouterr().err
    together, logbook = Together(agreement, tmp_path / "sites"), Logbook(folder / "server", agreement)
    together.admit()
    for _ in range(2):
        logbook.add(together.round())
        logbook.checkpoint(together.server)
    assert main(["federation", "rollback", str(folder)]) == 0
    assert "rounds that are kept: 1, 2;" in capsys.readouterr().out
    assert main(["federation", "rollback", str(folder), "1"]) == 0
    said = capsys.readouterr().out
    assert "goes on after round 1; what came after it, up to round 2, is forgotten then" in said
    assert json.loads((folder / "server" / "status.json").read_text())["round"] == 1
    lock = Lock(folder / "server" / "lock", "a server")
    assert main(["federation", "rollback", str(folder), "2"]) == 2
    assert "the server is already running" in capsys.readouterr().err
    lock.release()
