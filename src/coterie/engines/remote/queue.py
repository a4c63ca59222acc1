"""Which client is next: the largest first, tiny ones several at a time, to whichever worker is idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coterie.engines.remote.worker import Done, Positions
from coterie.errors import CoterieError

# A message costs about a third of a millisecond of the main process, for which some worker waits: tasks are made to
# last this long where clients are small. (With 0.01, a round of 1,000 small clients took 1.15 times as long.)
TASK_SECONDS = 0.04
# Towards the end of a round tasks get shorter, so that workers finish at the same time, but not shorter than this.
SHORTEST = 0.002
# A client is given up when the workers that had it died this often.
DEATHS = 3


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
        wanted = 0.0  # one position, as long as nothing is known
        if pace:
            wanted = max(min(TASK_SECONDS / pace, self._left / (2 * self._workers)), SHORTEST / pace)
        task: list[int] = []
        size = 0
        while waiting and (not task or size + self._samples[waiting[-1]] <= wanted):
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
