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
from coterie.deployment.journal import DAMAGED, Entry, Journal
from coterie.deployment.logbook import Logbook
from coterie.deployment.server import Server
from coterie.errors import CoterieError
from coterie.files import sealed_line
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


LINE_DAMAGES: dict[str, Callable[[list[bytes]], bytes]] = {
    "torn": lambda lines: b"".join(lines)[:-40],
    "cut off": lambda lines: b"".join(lines[:-1]),
    "empty": lambda lines: b"",
    "flipped": lambda lines: lines[0] + lines[1].replace(b'"mean":0.', b'"mean":1.', 1) + lines[2],
    "reordered": lambda lines: lines[0] + lines[2] + lines[1],
    "no lines": lambda lines: b"x" * 1000,
}


@pytest.mark.parametrize("kind", LINE_DAMAGES)
def test_no_line_of_a_round_is_lost_whatever_becomes_of_their_file(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn file once lost rounds without a word, or ended the server at each start."""
    agreement = agreed("fedper", rounds=4, deadline=30.0, gather=10.0)
    stopped(tmp_path, agreement, 3)
    path = tmp_path / "server" / "rounds.jsonl"
    whole = path.read_bytes()
    path.write_bytes(LINE_DAMAGES[kind](whole.splitlines(keepends=True)))
    server = Server(agreement)
    with caplog.at_level(logging.ERROR, logger="coterie"):
        assert Logbook(tmp_path / "server", agreement).restore(server)
    assert "rounds.jsonl' is damaged; its lines are those of the checkpoint" in caplog.text
    assert path.read_bytes() == whole
    caplog.clear()
    assert Logbook(tmp_path / "server", agreement).restore(server)
    assert not caplog.records


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


WHOLE = sealed_line(b'{"mark":{"site":"a","node":"17"}}')


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        WHOLE[:20],
        WHOLE.replace(b"17", b"16"),
        *map(sealed_line, (b'{"mark":{"site":"a"}}', b'{"m":3}')),
    ],
)
def test_a_record_of_registered_keys_that_is_not_as_it_was_written_has_them_registered_anew(
    text: bytes, tmp_path: Path
) -> None:
    """With another node's number a site's own node was taken for a stranger's, and its key shut out for good."""
    link = ServerProcesses(tmp_path, None)
    (tmp_path / REGISTERED).write_bytes(WHOLE)
    assert link.forget_unless([]) == ["a"]
    (tmp_path / REGISTERED).write_bytes(text)
    assert link.forget_unless(["a"]) == []
    assert (tmp_path / UNSETTLED).exists(), "all that the SuperLink kept is forgotten at the start"
    assert not (tmp_path / REGISTERED).exists()


FIRST: Entry = {"round": 1, "received": {"accuracy": 0.5, "recall": [0.25, None]}, "bytes": {"up": 3, "down": 4}}
SECOND: Entry = {"round": 2, "seconds": {"own": 0.5}}


@pytest.mark.parametrize(
    ("damage", "left", "said"),
    [
        (lambda lines: lines[0] + lines[1][:20], [FIRST], "line 2: its SHA-256 is missing"),
        (lambda lines: b"", [], "it is empty"),
        (lambda lines: lines[0].replace(b"0.5", b"0.7") + lines[1], [SECOND], "line 1: its SHA-256 is another"),
        (lambda lines: lines[1] + lines[0], [FIRST, SECOND], "its lines are in another order"),
        (lambda lines: b"\x00" * 100 + b"\n" + lines[1], [SECOND], "line 1: its SHA-256 is missing"),
        (
            lambda lines: sealed_line(b'{"round":"1"}') + lines[1],
            [SECOND],
            "line 1: it is of another kind (round is a text, not a whole number)",
        ),
    ],
)
def test_a_journal_goes_on_with_what_is_whole(
    damage: Callable[[list[bytes]], bytes],
    left: list[Entry],
    said: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal(tmp_path)
    for entry in (FIRST, SECOND):
        journal.add(entry)
    assert journal.entries() == [FIRST, SECOND]
    damaged = damage(journal.path.read_bytes().splitlines(keepends=True))
    journal.path.write_bytes(damaged)
    with caplog.at_level(logging.ERROR, logger="coterie"):
        assert journal.entries() == journal.entries() == left
    assert [record.message for record in caplog.records] == [
        f"'{journal.path}' is damaged ({said}); what is whole of it is gone on with"
    ]
    journal.add({"round": 3})
    assert journal.entries() == [*left, {"round": 3}]
    assert journal.path.with_suffix(DAMAGED).read_bytes() == damaged, "it is put aside"
