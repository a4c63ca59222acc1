"""State that heals: what is torn or flipped is noticed and said, and the last that is whole is gone on from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.deployment.test_coordinator import Trial

from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.server_processes import REGISTERED, UNSETTLED, ServerProcesses
from coterie.deployment.intact import DamagedError, load_intact, save_intact
from coterie.deployment.logbook import Logbook
from coterie.errors import CoterieError
from coterie.runs.tensors import load_tensors, save_tensors
from coterie.testing.together import SITES, Together, agreed

Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    """One bit of the numbers."""
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Damage] = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "flipped": flip,
    "another file": lambda path: path.write_bytes(b"x" * 1000),
    "without a checksum": lambda path: save_plain(path),
}


def save_plain(path: Path) -> None:
    tensors, about = load_tensors(path)
    save_tensors(path, tensors, {name: text for name, text in about.items() if name != "sha256"})


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_file_that_is_not_as_it_was_written_is_told_from_one_that_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    save_intact(path, {"row": torch.arange(5.0), "more": torch.ones(2).bool()}, {"b": "2", "a": "1"})
    assert load_intact(path)[1] == {"a": "1", "b": "2"}
    DAMAGES[kind](path)
    with pytest.raises(DamagedError, match="rows' is damaged"):
        load_intact(path)


def stopped(folder: Path, agreement: Agreement, rounds: int) -> Together:
    """A federation whose server was stopped after some rounds."""
    together, logbook = Together(agreement, folder / "sites"), Logbook(folder / "server", agreement)
    together.admit()
    for _ in range(rounds):
        logbook.add(together.round())
        logbook.checkpoint(together.server)
    return together


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_server_goes_on_from_its_last_whole_checkpoint_and_ends_as_if_nothing_was(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One flipped bit was once restored without a word, and half a checkpoint was the end."""
    agreement = agreed("fedper", rounds=4, deadline=30.0, gather=10.0)
    stopped(tmp_path, agreement, 3)
    DAMAGES[kind](tmp_path / "server" / "checkpoint.safetensors")
    trial = Trial(tmp_path, agreement)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        trial.run()
    assert "is damaged" in caplog.text
    whole = 3 if kind == "without a checksum" else 2  # that is written anew, beside what is kept of the round
    assert f"the server goes on from round {whole}, the last that is whole on the disk" in caplog.text
    assert [line.round for line in trial.lines] == [1, 2, 3, 4]
    quiet = Trial(tmp_path / "quiet", agreement)
    quiet.run()
    for slot, ours in trial.server.federation.slots.items():
        assert torch.equal(ours.shared, quiet.server.federation[slot].shared)


def test_without_any_whole_checkpoint_the_way_out_is_said(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=4, deadline=30.0, gather=10.0)
    stopped(tmp_path, agreement, 3)
    for path in (tmp_path / "server" / "checkpoints").iterdir():
        flip(path)
    with pytest.raises(CoterieError, match=r"no checkpoint in .* is as it was written; bring it back from a back-up"):
        Trial(tmp_path, agreement).run()


def test_a_checkpoint_that_is_gone_is_found_among_the_former_ones(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=4, deadline=30.0, gather=10.0)
    stopped(tmp_path, agreement, 3)
    (tmp_path / "server" / "checkpoint.safetensors").unlink()
    trial = Trial(tmp_path, agreement)
    trial.run()
    assert [line.round for line in trial.lines] == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_site_goes_on_from_its_last_whole_snapshot(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn snapshot once shut a site out for good; a flipped bit was believed."""
    agreement = agreed("fedper", rounds=5, deadline=30.0, gather=10.0)
    together = stopped(tmp_path, agreement, 3)
    folder = tmp_path / "sites" / "trial" / "site-a"
    before = load_tensors(folder / "round-00002.safetensors")[0]["slot.model.own"]
    DAMAGES[kind](folder / "round-00003.safetensors")
    together.sites["site-a"] = together.site("site-a")
    with caplog.at_level(logging.WARNING, logger="coterie"):
        fourth = together.round()
        assert (fourth.lost, fourth.answered) == (["site-a"], ["site-b", "site-c"])
        task = together.server.open_round(list(SITES))["site-a"]
    assert "round-00003.safetensors' is damaged" in caplog.text
    assert "what was kept after round 2 is whole" in caplog.text
    site = together.sites["site-a"]
    assert site._take(task)
    assert torch.equal(site.federation["model"].own, before), "its classifier is that of round 2"
    answer = together.answer("site-a", task)
    together.server.receive("site-a", answer)
    assert together.server.close_round().answered == ["site-a"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"mark": {"site": "a"}}', '{"mark": 3}'])
def test_a_record_of_registered_keys_that_cannot_be_read_has_them_registered_anew(text: str, tmp_path: Path) -> None:
    link = ServerProcesses(tmp_path, None)
    (tmp_path / REGISTERED).write_text(text)
    assert link.forget_unless(["a"]) == []
    assert (tmp_path / UNSETTLED).exists(), "all that the SuperLink kept is forgotten at the start"
    assert not (tmp_path / REGISTERED).exists()


@pytest.mark.parametrize("kind", ["torn", "empty", "without its last line"])
def test_rounds_whose_lines_are_lost_are_taken_again(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that was written after a line that was not: the next line then made the whole file unreadable."""
    agreement = agreed("fedper", rounds=4, deadline=30.0, gather=10.0)
    stopped(tmp_path, agreement, 3)
    path = tmp_path / "server" / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    left = {"torn": b"".join(lines)[: len(lines[0]) + 40], "empty": b"", "without its last line": b"".join(lines[:2])}
    path.write_bytes(left[kind])
    trial = Trial(tmp_path, agreement)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        trial.run()
    assert "the server goes on from round 2" in caplog.text
    assert "rounds.jsonl tells of no more than 2 rounds" in caplog.text
    assert [line.round for line in trial.lines] == [1, 2, 3, 4]
    quiet = Trial(tmp_path / "quiet", agreement)
    quiet.run()
    for slot, rows in trial.server.federation.slots.items():
        assert torch.equal(rows.shared, quiet.server.federation[slot].shared)


def test_a_server_without_the_lines_of_its_rounds_says_so(tmp_path: Path) -> None:
    agreement = agreed("fedper", rounds=9, checkpoints=2)
    stopped(tmp_path, agreement, 5)
    for name in ("rounds.jsonl", "rounds.former.jsonl"):
        (tmp_path / "server" / name).write_bytes(b"")
    server = Together(agreement, tmp_path / "other").server
    with pytest.raises(CoterieError, match=r"no checkpoint in '.*' is as it was written and of at most 0 rounds"):
        Logbook(tmp_path / "server", agreement).restore(server)
