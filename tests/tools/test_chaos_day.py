"""What judges a chaos day can tell wrong from right; the day itself is tests/deployment/test_chaos.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

from tests.deployment.test_coordinator import Behaviour, Trial, rewritten
from tools.chaos.faults import FAMILIES, PHASES, act_of, drawn
from tools.chaos.hostile import ANSWERS, REQUESTS, TAMPERED
from tools.chaos.place import SERVER
from tools.chaos.replay import Replay
from tools.chaos.table import table_of
from tools.chaos.watch import Watch

from coterie.deployment.intact import load_intact, save_intact
from coterie.deployment.messages import Packed
from coterie.deployment.state_file import write_state
from coterie.testing.together import SITES


def test_a_seed_draws_the_same_day() -> None:
    plan = drawn(0, 200, 300)
    assert plan == drawn(0, 200, 300) != drawn(1, 200, 300)
    assert {fault.family for fault in plan} == FAMILIES.keys()
    assert {fault.phase for fault in plan} == set(PHASES)
    assert [fault.number for fault in plan] == list(range(1, 301))
    assert all(2 <= fault.round <= 197 and act_of(fault) for fault in plan)
    assert len(ANSWERS) + len(REQUESTS) >= 20
    compile(TAMPERED, "library", "exec")


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """A federation in which a site was late once, and another lied that it had lost everything."""

    def lies(contents: dict[str, object]) -> None:
        contents |= {"tensors": [], "note": {"round": 3, "diverged": False, "lost": True}}

    def lost(packed: Packed) -> Packed:
        return rewritten(lies)(Packed({}, packed.text))

    found = Trial(tmp_path / "real", site_b=Behaviour(tamper={3: lost}), site_c=Behaviour(slow={2: 1000.0}))
    found.run()
    return found


def compared(trial: Trial, folder: Path) -> list[tuple[int, list[str]]]:
    """What a replay says of each round."""
    replay = Replay(trial.agreement, folder, trial.together.data)  # type: ignore[arg-type]
    found = []
    for line in trial.lines:
        wrong = replay.take(line)
        stores = {site: trial.folder / "sites" / "trial" / site for site in SITES}
        count, other = replay.differences(
            trial.folder / "server" / "checkpoints" / f"{line.round:05d}.safetensors", stores
        )
        found.append((count, wrong + other))
    assert replay.go_back(trial.lines) == 0
    assert replay.go_back(trial.lines[:2]) == 2
    assert replay.round == 2
    again = Replay(trial.agreement, folder, trial.together.data)  # type: ignore[arg-type]
    assert again.round == 2, "a day that was interrupted goes on from there"
    for line in trial.lines[2:]:
        assert again.take(line) == []
    return found


def test_a_replay_has_the_rows_of_the_federation_and_notices_others(trial: Trial, tmp_path: Path) -> None:
    found = compared(trial, tmp_path / "replay")
    assert [wrong for _, wrong in found] == [[]] * 4
    assert sum(count for count, _ in found) >= 8
    path = trial.folder / "server" / "checkpoints" / "00003.safetensors"
    tensors, about = load_intact(path)
    tensors["slot.model.shared"].view(-1)[0] += 1e-7
    save_intact(path, tensors, about)
    wrong = compared(trial, tmp_path / "again")[2][1]
    assert wrong == ["round 3: server: slot.model.shared differ from the replay"]


class OnePlace:
    """A server's folder, and whether its command runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server, self.up = folder, folder / "server", True
        self.server.mkdir(parents=True)
        self.agreement = type("Terms", (), {"rounds": 4})

    def runs(self, host: str) -> bool:
        return self.up and host == SERVER


def test_a_status_that_is_not_true_is_seen(tmp_path: Path) -> None:
    place = OnePlace(tmp_path)
    watch = Watch(place)  # type: ignore[arg-type]
    assert watch._wrong() == "there is none, or none that can be read"
    (place.server / "rounds.jsonl").write_text("{}\n{}\n")
    for state, round, pid, wrong in (
        ("running", 3, os.getpid(), ""),
        ("running", 7, os.getpid(), "it says round 7, and 2 are done"),
        ("running", 3, 2**22 + 1, "it says running in the name of a process that has ended"),
        ("finished", 4, 0, "it says finished after 2 rounds"),
        ("failed", 2, 0, "it says failed (x) while the server runs"),
    ):
        write_state(place.server, state, round=round, message="x", **({"pid": pid} if pid else {}))  # type: ignore[arg-type]
        assert watch._wrong() == wrong
    place.up = False
    write_state(place.server, "running", round=3, message="x", pid=os.getpid())
    assert watch._wrong() == "it says running, and nothing runs"


def test_the_table_counts_misses_without_a_fault() -> None:
    rounds = {"answered": [], "seconds": 2.0, "compared": 5, "equal": True, "silence": 1.0, "lag": 0.0}
    fault = {"number": 1, "family": "lines", "kind": "line cut", "host": "site-a"}
    events = [
        {"event": "begun", "at": 0.0, "seed": 7, "rounds": 3, "faults": 2},
        {"event": "round", "at": 60.0, "round": 1, "missing": {"site-a": [1], "site-b": []}, **rounds},
        {"event": "fault", "at": 30.0, **fault},
        {"event": "over", "at": 40.0, "number": 1},
        {"event": "back", "at": 55.0, "number": 1, "site": "site-a", "missed": 1},
        {"event": "violation", "at": 60.0, "words": "round 1 went on without site-b, which had no fault"},
    ]
    text = table_of(events)
    assert text.startswith("Seed 7: 1 of 3 rounds, 1 of 2 faults, in 1 minutes.")
    assert "misses: 2 of 5 answers were missing, 1 of them of a site without a fault" in text
    assert "| lines: line cut |  | 1 | 1 | 15, 15 |" in text
    assert "- round 1 went on without site-b, which had no fault" in text
