"""What engines share whose clients train in other processes, here or elsewhere: tasks in a queue, and results."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.client.effort import EffortColumns
from coterie.client.problem import Problem
from coterie.client.recipe import phases
from coterie.client.scores import Score, TrainingSums
from coterie.core.federation import Federation
from coterie.core.task.base import SAMPLES
from coterie.engines.base import NOBODY, Engine, PeersOf, Trained, Work
from coterie.engines.worker import EFFORT, MEASURED, TRAINING, Call, Done, Failed, Positions
from coterie.errors import CoterieError
from coterie.methods.base import Method

Item = TypeVar("Item")

# A message costs about a third of a millisecond of the main process, for which some worker waits: tasks are made to
# last this long where clients are small. (With 0.01, a round of 1,000 small clients took 1.15 times as long.)
TASK_SECONDS = 0.04
# Towards the end of a round tasks get shorter, so that workers finish at the same time, but not shorter than this.
SHORTEST = 0.002
# A client is given up when the workers that had it died this often.
DEATHS = 3
WAY_OUT = "or use engine='serial'"


class WorkersFailError(CoterieError):
    """Workers cannot start or keep dying. The work itself may be fine: it can be done in this process."""


class Pace:
    """Seconds a sample takes, as measured so far."""

    def __init__(self) -> None:
        self.seconds_per_sample: float | None = None

    def observe(self, samples: int, seconds: float) -> None:
        """Take a measurement into account. Fast ones count more: slow ones may tell of other programs."""
        new = seconds / max(samples, 1)
        old = self.seconds_per_sample
        self.seconds_per_sample = new if old is None or new < old else 0.9 * old + 0.1 * new


class TaskQueue:
    """The positions that are still to be done, dealt out as tasks.

    `samples` says how large each position is, `name` what to call some of them in messages. Where positions have
    `homes` (the number of a worker each), a worker first does those at home with it, then helps out where most is
    left. `tell` is called with the number of positions done whenever it grows.

    >>> queue = TaskQueue([1, 9, 5], str, Pace(), workers=2)
    >>> queue.next_task(), queue.next_task(), queue.next_task(), queue.next_task()
    ((1,), (2,), (0,), None)
    >>> queue = TaskQueue([1, 9, 5], str, Pace(), workers=2, homes=[0, 1, 1])
    >>> queue.next_task(0), queue.next_task(0), queue.next_task(1)
    ((0,), (1,), (2,))
    """

    def __init__(
        self,
        samples: Sequence[int],
        name: Callable[[Positions], str],
        pace: Pace,
        workers: int,
        homes: Sequence[int] | None = None,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        self._samples, self._name, self._pace, self._workers = samples, name, pace, workers
        self._waiting: dict[int, list[int]] = {}  # by home, the largest last
        for position in sorted(range(len(samples)), key=lambda position: samples[position]):
            self._waiting.setdefault(0 if homes is None else homes[position], []).append(position)
        self._left = sum(samples)
        self._again: list[int] = []
        self._deaths = dict[int, int]()
        self._open = len(samples)
        self._tell = tell
        self.results: list[tuple[Positions, Done]] = []

    @property
    def finished(self) -> bool:
        """Whether every position is done."""
        return self._open == 0

    def next_task(self, worker: int = 0) -> Positions | None:
        """What an idle worker (its number matters where positions have homes) should do now."""
        if self._again:
            return (self._again.pop(),)
        waiting = self._waiting.get(worker) or max(self._waiting.values(), key=self._size, default=[])
        if not waiting:
            return None
        pace = self._pace.seconds_per_sample
        most = 0.0  # one position, as long as nothing is known
        if pace:
            most = max(min(TASK_SECONDS / pace, self._left / (2 * self._workers)), SHORTEST / pace)
        task: list[int] = []
        size = 0
        while waiting and (not task or size + self._samples[waiting[-1]] <= most):
            task.append(waiting.pop())
            size += self._samples[task[-1]]
        self._left -= size
        return tuple(task)

    @property
    def undealt(self) -> int:
        """How many positions nobody has been given."""
        return len(self._again) + sum(map(len, self._waiting.values()))

    def put_back(self, task: Positions) -> None:
        """A task was dealt out, but not begun: it is dealt again."""
        self._again.extend(task)

    def done(self, task: Positions, result: Done) -> None:
        """A task's result has arrived."""
        self.results.append((task, result))
        self._open -= len(task)
        self._pace.observe(sum(self._samples[position] for position in task), result.seconds)
        if self._tell is not None:
            self._tell(len(self._samples) - self._open)

    def lost(self, task: Positions, ending: str) -> None:
        """The worker that had the task is dead: its positions are done anew, each on its own."""
        for position in task:
            self._deaths[position] = self._deaths.get(position, 0) + 1
            if self._deaths[position] == DEATHS:
                raise WorkersFailError(
                    f"{self.named((position,))}: {DEATHS} worker processes died at it (the last by {ending}); "
                    "is there enough memory? fewer workers need less, engine='serial' shows the cause"
                )
            self._again.append(position)

    def _size(self, positions: list[int]) -> int:
        return sum(self._samples[position] for position in positions)

    def named(self, positions: Positions) -> str:
        """What to call positions in messages."""
        return self._name(positions)


class RemoteEngine(Engine):
    """Cuts the work into positions, has them done by workers, and puts the results in order again.

    Workers work out the method's recipe by themselves: the work given must be the method's own.
    They use one PyTorch thread each. Unless told otherwise (`threads`), so does the main process while it runs
    an experiment: results are then bit-identical to the serial engine's with one thread.
    """

    has_workers: ClassVar[bool] = True
    main_threads: ClassVar[int] = 1

    def __init__(self, problem: Problem, method: Method, seed: int) -> None:
        self._problem, self._method, self._seed = problem, method, seed
        self._train_pace, self._test_pace = Pace(), Pace()

    @abstractmethod
    def _room(self, federation: Federation, work: Work, count: int) -> dict[str, Tensor]:
        """Room for the trained rows of `count` clients: slot -> `[count, slot width]`."""

    @abstractmethod
    def _perform(
        self, federation: Federation, call: Call, samples: Sequence[int], pace: Pace, rows: dict[str, Tensor]
    ) -> list[tuple[Positions, Done]]:
        """Have the call's positions done (`samples` says how large each is), trained rows put into `rows`."""

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        """Have every client of the cohort do the work."""
        self._require_own_work(federation, work)
        clients = cohort.tolist()
        rows = self._room(federation, work, len(clients))
        call = Call("train", federation.round, tuple(clients), dict(work.peers), test_trained=work.test)
        begin = time.perf_counter()
        samples = [len(self._problem.train[client]) for client in clients]
        results = self._perform(federation, call, samples, self._train_pace, rows)
        lasted = time.perf_counter() - begin
        sent, scores = _by_client(results, [len(self._problem.test[client]) for client in clients])
        measured = {name: torch.stack(sent[f"{MEASURED}{name}"]) for name in work.measured}
        trained = Trained(rows, measured, scores, training=_training(sent), efforts=_efforts(sent))
        busy = sum(done.seconds for _, done in results)
        tested = sum(done.test_seconds for _, done in results)
        trained.test_seconds = lasted * tested / busy if busy else 0.0
        return trained

    def test(
        self, federation: Federation, clients: Tensor, keep_scores: bool = False, peers: PeersOf = NOBODY
    ) -> list[Score]:
        """Score the clients' models; a model that all share is run once, in the serial engine's batches."""
        chosen = clients.tolist()
        sizes = [len(self._problem.test[client]) for client in chosen]
        together = federation.is_uniform and not self._method.tune(federation)
        action: Literal["batches", "test"] = "batches" if together else "test"
        call = Call(action, federation.round, tuple(chosen), dict(peers), keep_scores=keep_scores)
        if not together:
            return _by_client(self._perform(federation, call, sizes, self._test_pace, {}), sizes)[1]
        total, at_once = sum(sizes), self._problem.test_batch
        batches = [min(at_once, total - start) for start in range(0, total, at_once)]
        results = self._perform(federation, call, batches, self._test_pace, {})
        return Score.joined(_by_client(results, batches)[1]).split(sizes)

    def _require_own_work(self, federation: Federation, work: Work) -> None:
        method = self._method
        by_recipe = Work(method.recipe(federation))
        if _outline(by_recipe) != _outline(work):
            raise CoterieError(
                f"engine = '{self.name}': workers do the recipe of {type(method).__name__} itself; for another use "
                "engine='serial'"
            )


def position_names(call: Call) -> Callable[[Positions], str]:
    """What to call positions of a call in messages: "round 3, client 7", "round 3, clients 7, 2"."""

    def name(positions: Positions) -> str:
        singular, several = ("test batch", "test batches") if call.action == "batches" else ("client", "clients")
        numbers = positions if call.action == "batches" else [call.clients[position] for position in positions]
        return f"round {call.round}, {singular if len(positions) == 1 else several} {', '.join(map(str, numbers))}"

    return name


def packed(values: dict[str, Tensor]) -> bytes:
    """Values as safetensors bytes."""
    return save({name: value.contiguous().clone() for name, value in values.items()}) if values else b""


def _outline(work: Work) -> list[object]:
    """What can be compared of a piece of work: terms and rules may be functions made for the round."""
    trained = [(phase.slot, phase.train, dict(phase.also), phase.epochs, phase.lr) for phase in phases(work.recipe)]
    return [trained, work.measured]


def _by_client(results: list[tuple[Positions, Done]], tests: list[int]) -> tuple[dict[str, list[Tensor]], list[Score]]:
    """What workers sent of every position (by name), and the scores, in order; `tests` counts each one's samples."""
    sent: dict[str, dict[int, Tensor]] = {}
    scores: dict[int, Score] = {}
    for task, done in results:
        tensors = load(done.tensors) if done.tensors else {}
        if quantities := {name: tensors.pop(name) for name in list(tensors) if name.startswith("score.")}:
            named = {name.removeprefix("score."): values for name, values in quantities.items()}
            parts = Score(named, tensors.pop("kept", None)).split([tests[position] for position in task])
            tuned = zip(tensors.pop("untuned").tolist(), tensors.pop("tuning").tolist(), strict=True)
            scores |= {
                position: replace(part, untuned=untuned, tuning=steps)
                for position, part, (untuned, steps) in zip(task, parts, tuned, strict=True)
            }
        for name, rows in tensors.items():
            sent.setdefault(name, {}).update(zip(task, rows, strict=True))
    return {name: _in_order(by_position) for name, by_position in sent.items()}, _in_order(scores)


def _training(sent: dict[str, list[Tensor]]) -> list[TrainingSums]:
    """The sums over training samples among what workers sent, client by client."""
    columns = {name.removeprefix(TRAINING): values for name, values in sent.items() if name.startswith(TRAINING)}
    by_client = [dict(zip(columns, map(float, sums), strict=True)) for sums in zip(*columns.values(), strict=True)]
    return [{**sums, SAMPLES: int(sums[SAMPLES])} for sums in by_client]


def _efforts(sent: dict[str, list[Tensor]]) -> EffortColumns:
    """What workers counted, number by number."""
    counts = {name.removeprefix(EFFORT): values for name, values in sent.items() if name.startswith(EFFORT)}
    return {name: [int(value) for value in values] for name, values in sorted(counts.items())}


def _in_order(by_position: dict[int, Item]) -> list[Item]:
    return [by_position[position] for position in sorted(by_position)]


def cannot_import(reason: str, engine: str = "processes") -> CoterieError:
    """The error for classes that exist in the main process alone."""
    return WorkersFailError(
        f"engine = '{engine}': the workers cannot import the method or the model ({reason}); put its class into a "
        f"module of its own (a .py file) and import it, {WAY_OUT}"
    )


def raised_here(failed: Failed, queue: TaskQueue) -> Exception:
    """The error that a worker met, as the main process raises it."""
    message = f"{queue.named((failed.position,))}: {failed.message}"
    if failed.expected:
        return CoterieError(message)
    error = RuntimeError(message)
    error.add_note(f"In the worker process:\n{failed.details}")
    return error
