"""The same rounds with the same sites in one process, to which nothing happens but what was lost for good."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.intact import DamagedError, load_intact
from coterie.deployment.messages import read_text
from coterie.deployment.server import Server
from coterie.deployment.wire import Parcel, pack
from coterie.runs.record import Line
from coterie.runs.tensors import load_tensors, save_tensors
from coterie.testing.together import Together

BACK = 30  # rounds that can be gone back


class Replay:
    """A federation in one process, kept beside the real one. `losses` are those of sites that are still to come."""

    def __init__(self, agreement: Agreement, folder: Path, data: Mapping[str, Dataset]) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.together = Together(agreement, folder, data)
        self.together.admit()
        self.seen: dict[int, str] = {}  # what tells the line of a round from another of the same round
        if (path := folder / "seen.json").is_file():
            self.seen = {int(round): mark for round, mark in json.loads(path.read_text()).items()}
            self._restore(max(self.seen, default=0))

    @property
    def round(self) -> int:
        """The last round that was taken."""
        return self.together.server.federation.round

    def go_back(self, lines: list[Line]) -> int:
        """Take back what the real federation has taken back; how many rounds those were."""
        done = self.round
        same = [line.round for line in lines if self.seen.get(line.round) == mark(line)]
        to = next((round for round in range(len(lines)) if round + 1 not in same and round + 1 in self.seen), len(same))
        to = min(to, len(lines))
        if to < done:
            self._restore(to)
        return done - self.round

    def _restore(self, round: int) -> None:
        server = Server(self.together.agreement)
        server.standing = self.together.server.standing
        for what in ("sizes", "validation_sizes", "class_counts"):  # what sites have said of themselves
            setattr(server.federation, what, getattr(self.together.server.federation, what).clone())
        if round:
            server.federation.restore(load_tensors(self._kept(round))[0])
            server.federation.round = round
            self.together.server = server
        else:
            self.together.server = server
            self.together.admit()
        self._note({known: text for known, text in self.seen.items() if known <= round})

    def _note(self, seen: dict[int, str]) -> None:
        self.seen = seen
        (self.folder / "seen.json").write_text(json.dumps(seen))

    def take(self, line: Line) -> list[str]:
        """The next round, as its line says it went; what is other than it was, in words."""
        note, together = note_of(line), self.together
        server = together.server
        for site in note.answered:  # what it had lost it has told when it came back
            last = int(server.federation.last_round[together.agreement.sites.index(site)])
            if last and not self._has(site, last):
                together.admit(site)
        for site, task in server.open_round(note.asked).items():
            if site in note.lost:
                answer = together.answer(site, task)
                if not read_text(answer.text)["note"].get("lost"):  # it said so all the same
                    answer = pack(Parcel({}, {"round": line.round, "diverged": False, "lost": True}))
                server.receive(site, answer)
            elif site in note.answered:
                server.receive(site, together.answer(site, task))
        for site, task in server.ask_more([site for site in note.lost if site in note.answered]).items():
            server.receive(site, together.answer(site, task))  # it was asked once more
        report = server.close_round()
        both = [(what, getattr(note, what), getattr(report, what)) for what in ("answered", "lost")]
        wrong = [f"round {line.round}: {what}: {real}; replayed: {ours}" for what, real, ours in both if real != ours]
        save_tensors(self._kept(line.round), dict(server.federation.state()), {})
        self._kept(line.round - BACK).unlink(missing_ok=True)
        self._note({**self.seen, line.round: mark(line)})
        return wrong

    def differences(self, checkpoint: Path, stores: Mapping[str, Path]) -> tuple[int, list[str]]:
        """How many files of the round were compared, and what in them is other: the server's and those of sites."""
        compared, wrong = 0, []
        ours = dict(self.together.server.federation.state())
        pairs = [(SERVER_FILE, checkpoint, ours)]
        for site, path in stores.items():
            pairs.append((site, path / f"round-{self.round:05d}.safetensors", self.kept(site)))
        for who, path, expected in pairs:
            try:
                found, _ = load_intact(path) if path.is_file() else ({}, {})
            except (DamagedError, SafetensorError, OSError):
                continue  # it was damaged on purpose, or made way for the next
            if not found:
                continue
            compared += 1
            names = [name for name in expected if who == SERVER_FILE or name.startswith("slot.")]
            other = [name for name in names if not equal(found.get(name), expected[name])]
            if other:
                wrong.append(f"round {self.round}: {who}: {', '.join(other[:4])} differ from the replay")
        return compared, wrong

    def kept(self, site: str) -> dict[str, Tensor]:
        """What a site keeps of the round."""
        return self.together.sites[site].store.snapshot(self.round) or {}

    def lose(self, site: str, after: int) -> None:
        """Let a site lose its snapshots after a round, as if it had never made them."""
        self._begin_anew(site, [round for round in self._store(site).rounds() if round > after], remove=True)

    def tear(self, site: str, round: int) -> None:
        """Damage a site's snapshot of a round."""
        self._begin_anew(site, [round], remove=False)

    def _begin_anew(self, site: str, rounds: list[int], remove: bool) -> None:
        for round in rounds:
            path = self._store(site).path / f"round-{round:05d}.safetensors"
            if path.is_file():
                path.unlink() if remove else path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        self.together.sites[site] = self.together.site(site)

    def _store(self, site: str):  # type: ignore[no-untyped-def]
        return self.together.sites[site].store

    def _has(self, site: str, round: int) -> bool:
        return round in self._store(site).rounds()

    def _kept(self, round: int) -> Path:
        return self.folder / f"{round:05d}.safetensors"


SERVER_FILE = "server"


def mark(line: Line) -> str:
    """What tells the line of a round from another of the same round."""
    note = note_of(line)
    return json.dumps([line.round, note.answered, note.lost, str(line.seconds)])


def equal(found: Tensor | None, expected: Tensor) -> bool:
    """Whether two tensors hold the same bits."""
    if found is None or found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    return found.numpy().tobytes() == expected.contiguous().numpy().tobytes()
