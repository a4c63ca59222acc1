"""The day itself: faults at their moments, commands that end started again, and every round judged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from coterie.deployment.as_run import note_of
from coterie.deployment.state_file import read_state
from coterie.errors import CoterieError
from coterie.runs.record import Line
from tools.chaos.faults import Fault, act_of
from tools.chaos.place import SERVER, SITES, Place
from tools.chaos.replay import Replay
from tools.chaos.watch import Watch

TICK = 0.05  # seconds between two looks
RESTART = 2.0  # seconds after which a command that has ended is started again
BACK = 240.0  # seconds within which a site must take part again once its fault is over
STARTING = 60.0  # seconds that a server's command may take on a full machine until it can speak
LEDGER = "ledger.jsonl"


@dataclass
class Excuse:
    """Why a site may miss rounds, until it has answered one that was opened after the fault was over."""

    fault: int
    over: float | None = None
    missed: int = 0


@dataclass
class Day:
    """A day at a place; `say` is told of everything that happens."""

    place: Place
    plan: Sequence[Fault]
    say: Callable[[str], None] = print
    seed: int = 0
    excuses: dict[str, list[Excuse]] = field(default_factory=lambda: {site: [] for site in SITES})

    def __post_init__(self) -> None:
        place = self.place
        self.ledger = place.folder / LEDGER
        self.events = [json.loads(line) for line in self.ledger.read_text().splitlines()] if place.begun else []
        done = {event["number"] for event in self.events if event["event"] == "fault"}
        self.left = [fault for fault in self.plan if fault.number not in done]
        self.watch = Watch(place)
        self.replay = Replay(place.agreement, place.folder / "replay", place.data)
        self._timers: list[tuple[float, Callable[[], object], Fault]] = []
        self._conditions: list[tuple[Callable[[], bool], Fault]] = []
        self._ended: dict[str, float] = {}
        self._losses: list[tuple[int, str, int, bool]] = []  # before which round, the site, what, whether torn
        self._opened = time.monotonic()  # the round that is open
        self._phase = (0, "", 0.0)
        self._audit = 0
        self._answers = 0
        self._stamp: tuple[int, int] | None = None
        self._lines: list[Line] = []
        self._begin = time.monotonic()
        self._before = max((event["at"] for event in self.events), default=0.0)

    # What faults need

    def later(self, seconds: float, then: Callable[[], object], fault: Fault) -> None:
        """Do something later, with which a fault is over."""
        self._timers.append((time.monotonic() + seconds, then, fault))

    def healed_when(self, over: Callable[[], bool], fault: Fault) -> None:
        """A fault is over as soon as something is so."""
        self._conditions.append((over, fault))

    def lose(self, site: str, round: int, torn: bool) -> None:
        """Something of a site is lost: the snapshot of a round, or all after one. The replay loses it too."""
        newest = round if torn else max([round, *self._snapshots(site)])
        self._losses.append((max(newest, self.replay.round) + 1, site, round, torn))
        self.note("lost", site=site, round=round, torn=torn)

    def _snapshots(self, site: str) -> list[int]:
        return self.replay.together.sites[site].store.rounds()

    def environment(self, host: str) -> dict[str, str]:
        """What the environment of a host's command is."""
        library = {} if host == SERVER else {"PYTHONPATH": str(self.place.folder / "library")}
        return {**os.environ, **library, "CHAOS_ORDERS": str(self.place.orders(host)), "OMP_NUM_THREADS": "1"}

    def note_violation(self, words: str) -> None:
        """A rule was broken."""
        self.note("violation", words=words)
        self.say(f"VIOLATION: {words}")

    def note(self, event: str, **more: Any) -> None:
        """Write down what has happened."""
        at = self._before + time.monotonic() - self._begin
        entry = {"event": event, "at": round(at, 2), **more}
        self.events.append(entry)
        with self.ledger.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    # Its course

    def run(self, until: float = float("inf")) -> bool:
        """From the first round to the last; whether it came to that in time."""
        self.watch.excuse(STARTING)
        if not self.place.begun:
            self.note("begun", seed=self.seed, rounds=self.place.agreement.rounds, faults=len(self.plan))
        else:
            self.note("carried on")
        for host in (SERVER, *SITES):
            self.place.launch(host)
            if host != SERVER and self.place.begun:
                self.excuses[host].append(Excuse(0, time.monotonic()))
        self.watch.start()
        heard = time.monotonic()
        try:
            while time.monotonic() < until:
                time.sleep(TICK)
                self._act_later()
                self._read_rounds()
                if self._keep_up():
                    self._read_rounds(last=True)
                    self._finish()
                    return True
                self._inject()
                if time.monotonic() - heard > 60:
                    heard = time.monotonic()
                    self.say(self._standing())
            return False
        finally:
            self.watch.stop()

    def _standing(self) -> str:
        silent = [site for site in SITES if self.excuses[site]]
        done = len(self.plan) - len(self.left)
        wrong = sum(event["event"] == "violation" for event in self.events)
        state = read_state(self.place.server)
        return (
            f"{(self._lines and self._lines[-1].round) or 0} rounds, {done} faults, {wrong} violations; excused: "
            f"{', '.join(silent) or 'none'}; {state.get('state')}: {state.get('message')}"
        )

    def _act_later(self) -> None:
        now = time.monotonic()
        for due in [one for one in self._timers if one[0] <= now]:
            self._timers.remove(due)
            due[1]()
            self._heal(due[2])
        for condition in [one for one in self._conditions if one[0]()]:
            self._conditions.remove(condition)
            self._heal(condition[1])

    def _heal(self, fault: Fault) -> None:
        now = time.monotonic()
        self.note("over", number=fault.number)
        for excuse in self.excuses.get(fault.host, ()):
            if excuse.fault == fault.number:
                excuse.over = now

    def _keep_up(self) -> bool:
        """Start again what has ended, as a supervisor would; whether the federation is at its end."""
        now = time.monotonic()
        for host in (SERVER, *SITES):
            if self.place.runs(host):
                continue
            if (
                host == SERVER
                and self.place.ended(SERVER) == 0
                and read_state(self.place.server)["state"] == "finished"
            ):
                return True
            if host not in self._ended:
                self._ended[host] = now
                code = self.place.ended(host)
                self.note("ended", host=host, code=code)
                by_itself = code is not None and code >= 0
                if by_itself:
                    self.say(f"{host} has ended by itself with code {code}")
                if by_itself and code == 2:
                    self.note_violation(f"{host} does not start any more: {self._last_words(host)}")
            if now >= self._ended[host] + RESTART:
                del self._ended[host]
                if host == SERVER:
                    self.watch.excuse(STARTING)
                self.place.launch(host)
        return False

    def _last_words(self, host: str) -> str:
        lines = [line for line in self.place.said(host).splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def _inject(self) -> None:
        """The next fault, if its moment has come."""
        if not self.left:
            return
        fault, done = self.left[0], len(self._lines)
        if fault.round > done + 1 or (fault.round == done + 1 and not self._reached(fault.phase, done + 1)):
            return
        self.left.pop(0)
        excuse = Excuse(fault.number)
        if fault.host != SERVER:
            self.excuses[fault.host].append(excuse)
        waiting = len(self._timers) + len(self._conditions)
        try:
            detail = act_of(fault)(self, fault, Random(fault.seed))
        except (OSError, CoterieError) as error:
            detail = f"could not be injected: {type(error).__name__}: {error}"
        if fault.host == SERVER and not self.place.runs(SERVER):
            self.watch.excuse(STARTING)
        self.note("fault", **asdict(fault), open=done + 1, detail=detail)
        self.say(f"round {done + 1}, {fault.phase}: {fault.host}: {fault.kind}: {detail}")
        if len(self._timers) + len(self._conditions) == waiting:
            self._heal(fault)

    def _reached(self, phase: str, round: int) -> bool:
        """Whether the round that is open has come to one of its phases."""
        if phase == "opening":
            return True
        if phase == "closing":
            return False  # when its line is there, it is the round before
        under_way = str(read_state(self.place.server).get("message", "")).startswith(f"round {round}")
        if not under_way:
            return False
        if self._phase[0] != round:
            self._count_answers()
            self._phase = (round, "asked", time.monotonic())
            self._answers = 0
        if phase == "training":
            return time.monotonic() - self._phase[2] > 0.3
        if phase == "answering":
            self._count_answers()
            return self._answers > 0 or time.monotonic() - self._phase[2] > 20
        return True

    def _count_answers(self) -> None:
        """Read what is new in the server's audit log."""
        path = self.place.server / "audit.jsonl"
        with suppress(OSError):
            size = path.stat().st_size
            if size < self._audit:
                self._audit = 0
            with path.open("rb") as file:
                file.seek(self._audit)
                new = file.read(size - self._audit)
            self._audit = size
            self._answers += new.count(b'"event": "answered"')

    # Its judgement

    def _read_rounds(self, last: bool = False) -> None:
        path = self.place.server / "rounds.jsonl"
        try:
            about = path.stat()
            stamp = (about.st_mtime_ns, about.st_size)
            if stamp == self._stamp and not last:
                return
            lines = self.place.rounds()
        except (OSError, CoterieError, ValueError):
            return  # it is damaged just now, or is being written
        if not lines or [line.round for line in lines] != list(range(1, len(lines) + 1)):
            return
        whole = self._kept(len(lines)).is_file() or last
        if whole:
            self._stamp = stamp
        else:
            lines = lines[:-1]  # its checkpoint is still being written
        if back := self.replay.go_back(lines):
            self.note("taken back", rounds=back, to=self.replay.round)
            self.say(f"{back} rounds are taken back, to round {self.replay.round}")
        for line in lines[self.replay.round :]:
            self._judge(line)
        self._lines = lines

    def _kept(self, round: int) -> Path:
        return self.place.server / "checkpoints" / f"{round:05d}.safetensors"

    def _judge(self, line: Line) -> None:
        now = time.monotonic()
        for loss in [loss for loss in self._losses if loss[0] <= line.round]:
            self._losses.remove(loss)
            _, site, round, torn = loss
            self.replay.tear(site, round) if torn else self.replay.lose(site, round)
        wrong = self.replay.take(line)
        answered = note_of(line).answered
        compared, other = self.replay.differences(
            self._kept(line.round), {site: self.place.store(site) for site in answered}
        )
        missing = self._excused(line, answered, now)
        silence, lag, seen = self.watch.taken()
        for words in (*wrong, *other, *seen):
            self.note_violation(words)
        self.note(
            "round",
            round=line.round,
            answered=answered,
            missing=missing,
            seconds=round_of(now - self._opened),
            compared=compared,
            equal=not (wrong or other),
            silence=round_of(silence),
            lag=round_of(lag),
        )
        self._opened = now

    def _excused(self, line: Line, answered: list[str], now: float) -> dict[str, list[int]]:
        """Who missed a round, each with the faults that excuse it; a violation if none does."""
        missing = {}
        for site in SITES:
            excuses = self.excuses[site]
            if site not in answered:
                missing[site] = [excuse.fault for excuse in excuses]
                for excuse in excuses:
                    excuse.missed += 1
                    if excuse.over is not None and now - excuse.over > BACK and excuse.over < self._opened - BACK:
                        self.note_violation(f"{site} has not come back in round {line.round} (fault {excuse.fault})")
                        excuse.over = now
                if not excuses:
                    self.note_violation(f"round {line.round} went on without {site}, which had no fault")
                continue
            for excuse in [one for one in excuses if one.over is not None and one.over < self._opened]:
                excuses.remove(excuse)
                self.note("back", site=site, number=excuse.fault, round=line.round, missed=excuse.missed)
        return missing

    def _finish(self) -> None:
        """After the last round: everybody has its finished model, and nothing is left open."""
        summary = json.loads((self.place.server / "summary.json").read_text())
        without = sorted(set(SITES) - set(summary["finished"]))
        for site in without:
            if not self.excuses[site]:
                self.note_violation(f"{site}, which had no fault, did not get its finished model")
        self.note("finished", rounds=len(self._lines), without=without)


def round_of(seconds: float) -> float:
    """Seconds as they are written down."""
    return round(seconds, 2)
