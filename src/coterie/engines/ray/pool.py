"""Ray actors from the main process's side: start them, send what they lack, notice and replace the lost."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import uuid4

import torch

from coterie.client.problem import Problem
from coterie.core.federation import Federation
from coterie.engines.ray.actor import Actor, Array, Arrived, Block, News, Rows, job_without_data
from coterie.engines.ray.session import RaySession
from coterie.engines.remote import DEATHS, WAY_OUT, TaskQueue, cannot_import, packed, raised_here
from coterie.engines.shared_memory import Changes
from coterie.engines.worker import Call, Done, Positions, Refused
from coterie.errors import CoterieError, PassingError, described
from coterie.methods.base import Method
from coterie.registry import FILES

log = logging.getLogger("coterie")

START_SECONDS = 120.0  # after which actors that nothing is heard of count as impossible to place
# Seconds after which it is said what is waited for, and how often it is looked whether the cluster's head still lives.
TOLD_SECONDS, LOOK_SECONDS = 15.0, 2.0

Held = dict[str, tuple[int, set[int]]]
"""The rows that an actor holds: slot -> since which call they are as they are, and whose."""


class Cargo:
    """A federation as it is sent to actors: what all clients see once a call, own rows to whoever needs them.

    Rows are sent again only after something was written to their slot: what a client was tested with at the end
    of a round is not sent a second time when it trains in the next one at the same actor.
    """

    def __init__(
        self, session: RaySession, problem: Problem, method: Method, seed: int, federation: Federation, data: Any
    ) -> None:
        self.federation, self.data = federation, data
        self._ray = session.ray
        try:
            self.job = self._ray.put(job_without_data(problem, method, seed, federation))
        except Exception as error:  # whatever packing the user's classes may raise
            raise cannot_import(described(error), "ray") from error
        self._changes = Changes()
        self._since: dict[str, int] = {}
        self.number = 0

    def begin(self, call: Call) -> None:
        """Prepare a call: the federation stays as it is until the next one."""
        self.number += 1
        slots, values = self.federation.slots, self.federation.values
        changed = self._changes.of(
            {f"shared.{name}": slot.shared for name, slot in slots.items()}
            | {f"own.{name}": slot.own for name, slot in slots.items()}
            | {f"value.{name}": value for name, value in values.items()}
        )
        self._since |= {name: self.number for name in slots if f"own.{name}" in changed}
        self._new_shared = [name for name in slots if f"shared.{name}" in changed]
        self._new_values = [name for name in values if f"value.{name}" in changed]
        self._call = replace(call, values=frozenset(values))
        self._peers = self._all_peers(call)
        self._parcels: dict[bool, Any] = {}

    def news(self, up_to_date: bool, held: Held) -> Any:
        """The call for an actor that knows all until the one before, or nothing; made once for all such actors."""
        if up_to_date not in self._parcels:
            slots, values = self.federation.slots, self.federation.values
            shared, sent_values = (self._new_shared, self._new_values) if up_to_date else (list(slots), list(values))
            self._parcels[up_to_date] = self._ray.put(
                News(
                    replace(self._call, new_values=packed({name: values[name] for name in sent_values})),
                    {name: slots[name].shared.numpy() for name in shared},
                    self.federation.rounds_taken.numpy(),
                    {"model": self._block("model", self._peers)} if self._peers else {},
                )
            )
        if self._peers:
            self._held("model", held).update(self._peers)
        return self._parcels[up_to_date]

    def blocks(self, task: Positions, held: Held) -> dict[str, Block]:
        """The own rows of a task's clients that are not yet held, which then are."""
        if self._call.action == "batches":
            return {}
        blocks: dict[str, Block] = {}
        for name, slot in self.federation.slots.items():
            if not slot.own_columns:
                continue
            known = self._held(name, held)
            missing = [client for position in task if (client := self._call.clients[position]) not in known]
            if missing:
                blocks[name] = self._block(name, missing)
                known.update(missing)
        return blocks

    def _held(self, slot: str, held: Held) -> set[int]:
        """Whose rows of a slot are held as they are now."""
        since = self._since[slot]
        if slot not in held or held[slot][0] != since:
            held[slot] = since, set()
        return held[slot][1]

    def _block(self, slot: str, clients: list[int]) -> Block:
        rows: Array = self.federation[slot].own[torch.tensor(clients)].numpy()
        return Block(clients, rows)

    def _all_peers(self, call: Call) -> list[int]:
        """The clients whose models others download in this call: every actor gets them."""
        if not self.federation["model"].own_columns:
            return []
        return sorted({peer for peers in call.peers.values() for peer in peers})


@dataclass(eq=False)
class _ActorState:
    """An actor. It is `joining` while it starts and takes on a job, then `idle` or `busy` with a task."""

    number: int
    handle: Any
    stage: Literal["joining", "idle", "busy"] = "joining"
    cargo: Cargo | None = None
    answers: deque[Any] = field(default_factory=deque)  # references of what it was asked, the first under way
    tasks: deque[Positions] = field(default_factory=deque)
    told: int = 0  # the number of the last call that it knows of
    held: Held = field(default_factory=dict)
    where: str = "not yet placed"
    key: str = field(default_factory=lambda: f"coterie.{uuid4().hex}")  # under which it notes what it has begun
    sent: int = 0  # tasks so far


class ActorPool:
    """`size` actors that live until `stop`; a lost one is replaced by another with its number.

    One for which there is no room on the cluster waits until there is, and the others do its work.
    """

    def __init__(self, session: RaySession, size: int, gpus: float = 0.0, device: str = "") -> None:
        self.session, self.size = session, size
        self._ray = session.ray
        self._kind = self._ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(Actor)
        self._device = device or ("cuda" if gpus else "cpu")
        self._members: list[_ActorState] = []
        self._failures = 0  # actors that were lost without a task since something was last done

    @property
    def handles(self) -> list[Any]:
        """Ray's handles of the actors that there are now, by number."""
        return [member.handle for member in sorted(self._members, key=lambda member: member.number)]

    def perform(self, cargo: Cargo, queue: TaskQueue, collect: Callable[[Positions, Rows], None]) -> None:
        """Have an queue's positions done and trained rows collected. After an error all actors are stopped."""
        try:
            self._failures = 0
            for member in self._members:
                if member.stage == "idle" and member.cargo is not cargo:
                    self._introduce(member, cargo)
            while not queue.finished:
                self._complete(cargo)
                self._deal(cargo, queue)
                self._listen(self._heard(), cargo, queue, collect)
        except BaseException:
            self.stop()
            raise

    def resize(self, size: int) -> None:
        """Be so many actors from the next call on: of those that are too many, whoever has not arrived goes first."""
        kept = sorted(self._members, key=lambda member: (member.stage == "joining", member.number))
        for member in kept[size:]:
            self._kill(member)
        self._members, self.size = kept[:size], size
        free = sorted(set(range(size)) - {member.number for member in self._members})
        for member in self._members:
            if member.number >= size:
                member.number = free.pop(0)

    def stop(self) -> None:
        """End all actors, busy or not: they own nothing."""
        for member in self._members:
            self._kill(member)
        self._members.clear()

    def _kill(self, member: _ActorState) -> None:
        with suppress(Exception):  # it may be gone, or Ray itself
            self._ray.kill(member.handle)
            self.session.forget(member.key)

    def _complete(self, cargo: Cargo) -> None:
        """Start the actors that are missing."""
        present = {member.number for member in self._members}
        for number in range(self.size):
            if number not in present:
                member = _ActorState(number, self.session.asked(lambda: self._kind.remote(self._device)))
                self._members.append(member)
                self._introduce(member, cargo)

    def _introduce(self, member: _ActorState, cargo: Cargo) -> None:
        member.stage, member.cargo, member.told, member.held = "joining", cargo, 0, {}
        if FILES:  # what was loaded from a file cannot be imported there
            member.handle.know.remote(tuple(FILES.values()))
        member.answers.append(member.handle.take_on.remote(cargo.job, cargo.data))

    def _deal(self, cargo: Cargo, queue: TaskQueue) -> None:
        """A task for every idle actor, and a second one in advance, unless it might be begun sooner elsewhere."""
        for member in self._members:
            if member.stage == "idle" and (task := queue.next_task(member.number)) is not None:
                self._send(member, cargo, task)
        for member in self._members:
            early = member.stage == "busy" and len(member.tasks) < 2 and queue.undealt >= self.size
            if early and (task := queue.next_task(member.number)) is not None:
                self._send(member, cargo, task)

    def _send(self, member: _ActorState, cargo: Cargo, task: Positions) -> None:
        news = None
        if member.told != cargo.number:
            news = cargo.news(0 < member.told == cargo.number - 1, member.held)
        blocks = cargo.blocks(task, member.held)
        member.stage, member.told = "busy", cargo.number
        member.sent += 1
        # Nobody hears from here when a task that was sent in advance is begun, so the actor makes a note of it.
        mark = (member.key, member.sent) if member.tasks else None
        member.tasks.append(task)
        member.answers.append(member.handle.perform.remote(task, news, blocks, mark))

    def _heard(self) -> _ActorState:
        """Wait until an actor answers or is lost."""
        waiting = {member.answers[0]: member for member in self._members if member.stage != "idle"}
        begun, warned = time.monotonic(), False
        while True:
            answered, _ = self._ray.wait(list(waiting), num_returns=1, timeout=LOOK_SECONDS)
            if answered:
                return waiting[answered[0]]
            self.session.require_head()
            waited = time.monotonic() - begun
            if any(member.stage != "joining" for member in waiting.values()):
                continue
            if waited >= START_SECONDS:
                raise PassingError(
                    f"engine = 'ray': no actor could start within {START_SECONDS:g} s; are the cluster's CPUs and GPUs "
                    "taken by others?"
                )
            if waited >= TOLD_SECONDS and not warned:
                warned = True
                log.warning(
                    "engine = 'ray': no actor has started yet (%s); given up after %g s", self._room(), START_SECONDS
                )

    def _room(self) -> str:
        """What of the cluster is free."""
        return f"{self.session.free('CPU'):g} of the cluster's {self.session.total('CPU'):g} CPUs are free"

    def _listen(
        self, member: _ActorState, cargo: Cargo, queue: TaskQueue, collect: Callable[[Positions, Rows], None]
    ) -> None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(member.answers[0])
        except errors.RayTaskError as error:
            if member.stage == "joining":  # it could not even read its job
                raise cannot_import(described(error), "ray") from error
            raise RuntimeError(f"engine = 'ray': an actor failed: {described(error)}") from error
        except errors.RayError as error:
            self._bury(member, queue, error)
            return
        member.answers.popleft()
        if isinstance(answer, Refused):
            raise CoterieError(f"engine = 'ray': {answer.reason}")
        if isinstance(answer, Arrived):
            member.where = f"{answer.host}, process {answer.process}"
            member.stage = "idle"
            if member.cargo is not cargo:
                self._introduce(member, cargo)
            return
        outcome, rows = answer
        if not isinstance(outcome, Done):
            raise raised_here(outcome, queue)
        task = member.tasks.popleft()
        collect(task, rows)
        queue.done(task, outcome)
        member.stage = "busy" if member.tasks else "idle"
        self._failures = 0

    def _under_way(self, member: _ActorState) -> Positions:
        """The task that a lost actor was doing.

        That need not be the first which is unanswered: an answer that was still on its way is lost with the actor.
        """
        begun = 0
        if len(member.tasks) > 1:
            with suppress(Exception):  # Ray itself may be gone
                begun = self.session.noted(member.key)
        answered = member.sent - len(member.tasks)
        return member.tasks[max(begun - answered - 1, 0)]

    def _bury(self, member: _ActorState, queue: TaskQueue, error: Exception) -> None:
        """Let go of an actor that was lost; what it had to do is done elsewhere, from the same rows."""
        begun = self._under_way(member) if member.stage == "busy" else ()
        self._kill(member)
        self._members.remove(member)
        ending = type(error).__name__
        if begun:
            queue.lost(begun, ending)
            for task in member.tasks:
                if task != begun:
                    queue.put_back(task)
            lost = queue.named(begun), member.number, member.where, ending
            log.warning("%s: Ray actor %d (%s) was lost (%s); done again", *lost)
            return
        self._failures += 1
        if self._failures == DEATHS:
            raise CoterieError(
                f"engine = 'ray': actors cannot start ({described(error)}); every node needs coterie and the same "
                f"Python, {WAY_OUT}"
            )
