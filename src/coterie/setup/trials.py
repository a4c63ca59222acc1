"""Trials: how long a round would take each way, from pieces of it that are trained and tested in turns.

Whatever else the machine does hits all ways alike, since each has a turn in every pass, and single disturbances do not
count: seconds are compared within a pass, and the median of the passes counts. Worker processes take too long to start
for a trial: what they would take is what a client takes alone, and what the cores have to offer when all of them work.
Threads that train hinder each other in ways that processes do not (memory of one process is mapped by one thread at a
time), so the cores are asked directly: threads multiply and add in memory of their own that is there already, first
one, then all at once. The run itself then times real workers.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from coterie.client.trainer import stepping_of
from coterie.core.training import MemoryFormat
from coterie.engines.base import Engine
from coterie.engines.serial import Serial
from coterie.engines.stacked.engine import Stacked
from coterie.processes import cores
from coterie.setup.prepared import Prepared
from coterie.setup.workload import Piece, Round, Timer, Way

log = logging.getLogger("coterie")

# The seconds that trials may take, and those where a round takes twice as long.
BUDGET, LONGEST = 2.4, 6.0
# Passes over all ways, if there is time.
PASSES = 7
# A piece is made to take about this long with one thread: seconds.
PIECE = 0.04
MOST_CLIENTS = 16
# Ways that are foreseen to take so many times as long as the best get no further turns; and after the first of all.
HOPELESS, BEYOND = 1.5, 4.0
# The larger of two pieces for the stacked engine: clients, steps, the values that their rows may hold, and how many
# times as much there is to do as in a piece for the others, since that is what it is good at.
STACKED_CLIENTS, STACKED_STEPS, STACKED_VALUES, STACKED_PIECES = 32, 3, 2**24, 4
# What stacking saves is the price of calling operations, well under a millisecond a step: where a client's own step
# takes this long, there is nothing to gain that a trial could see. Seconds. (Trials are of the processor alone.)
LONG_STEP = 0.005
# Numbers in a matrix's row, and in what is added: a product is mostly arithmetic, a sum mostly memory.
SIDE, ADDED = 256, 1 << 18
# Seconds for one core, and for all: those that are counted come after some in which the system deals out new threads to
# the cores, and must be long enough for it to deal them out anew where others work, too.
ALONE, SETTLING, COUNTED = 0.05, 0.1, 0.2


@dataclass(frozen=True)
class Rates:
    """What was measured once: seconds to train on one batch, and to test one sample.

    Of stacked clients, a step costs `batch` for each of them and `step` besides.
    """

    batch: float
    test: float
    step: float = 0.0


Timing = Callable[[], Rates]
TimerKey = tuple[Timer, int, MemoryFormat]


def measure(prepared: Prepared, ways: Sequence[Way]) -> dict[Way, float]:
    """The seconds that a round should take each way; ways that turn out to be none are left out."""
    begin = time.perf_counter()
    with _undisturbed():
        round, timings = Round.of(prepared), dict[TimerKey, Timing]()
        size, workers = _piece_size(prepared, round, ways[0]), _workers(prepared, round)
        offer = offer_of(workers)
        for way in ways:
            if _key(way) not in timings and (timing := _timing(prepared, round, way, size)):
                timings[_key(way)] = timing
        left = [way for way in ways if _key(way) in timings]
        passes: list[dict[Way, float]] = []
        found: dict[Way, float] = {}
        for turn in range(1 + PASSES):  # the first one does not count: memory and kernels are new
            needed = {_key(way) for way in left}
            order = [key for key in timings if key in needed]
            shift = turn % len(order)
            rates = {key: timings[key]() for key in order[shift:] + order[:shift]}
            foreseen = {way: _foreseen(round, way, rates[_key(way)], workers, offer) for way in left}
            passes += [foreseen] if turn else []
            found |= typical(passes) if turn else foreseen
            best = min(found[way] for way in left)
            # Disturbances only ever make a way slower: it is dropped if it was too slow each time.
            fastest = {way: min(one[way] for one in passes or [foreseen]) for way in left}
            if turn != 1:
                left = [way for way in left if fastest[way] <= best * (HOPELESS if turn else BEYOND)]
            taken = time.perf_counter() - begin
            if turn and taken * (1 + 1 / (turn + 1)) > max(BUDGET, min(best / 2, LONGEST)):
                break
    return found


def _key(way: Way) -> TimerKey:
    return way.timer, 1 if way.spreads else way.threads, way.memory


def typical(passes: Sequence[Mapping[Way, float]]) -> dict[Way, float]:
    """What passes amount to: the median of each way's share in its pass, in seconds of a typical pass.

    A way that was dropped is judged by the passes that it was in.

    >>> a, b = Way("serial", 1, "contiguous"), Way("serial", 2, "contiguous")
    >>> found = typical([{a: 2.0, b: 1.0}, {a: 20.0, b: 10.0}, {a: 2.0, b: 5.0}])
    >>> round(found[a] / found[b], 3)
    2.0
    """
    always = [way for way in passes[-1] if all(way in seconds for seconds in passes)]
    levels = [math.exp(statistics.fmean(math.log(seconds[way]) for way in always)) for seconds in passes]
    level = statistics.median(levels)
    return {
        way: level
        * statistics.median(seconds[way] / base for seconds, base in zip(passes, levels, strict=True) if way in seconds)
        for way in passes[0]
    }


def _foreseen(round: Round, way: Way, rates: Rates, workers: int, offer: Offer) -> float:
    """The seconds of a round. Those of a single thread were counted while it was at work; now they go by the clock."""
    if way.timer == "stacked":
        steps = max(round.batches) * rates.step + sum(round.batches) * rates.batch + round.tests * rates.test
        return steps * (offer.alone if way.threads == 1 else 1.0)
    one_by_one = sum(round.batches) * rates.batch + round.tests * rates.test
    if not way.spreads:
        return one_by_one * (offer.alone if way.threads == 1 else 1.0)
    spread = offer.together * (round.longest_share(workers) * rates.batch + round.tests / workers * rates.test)
    return min(one_by_one * offer.alone, spread) if way.engine == "adaptive" else spread


def _workers(prepared: Prepared, round: Round) -> int:
    return min(prepared.experiment.workers or cores(), len(round.cohort), cores())


@dataclass(frozen=True)
class PieceSize:
    """Clients with so many batches each, neither too short to be timed nor too long to be tried; `batches` a piece.

    A `step` on one of them takes so many seconds with one thread.
    """

    clients: tuple[int, ...]
    batches_each: int
    batches: int
    step: float


def _piece_size(prepared: Prepared, round: Round, way: Way) -> PieceSize:
    ordered = round.by_size()
    middle = ordered[len(ordered) // 2]
    piece = Piece.of(prepared, way.memory, [middle], 1)
    engine = Serial(piece.problem, piece.method, seed=0)
    torch.set_num_threads(1)
    _seconds(engine, piece)
    # Processor time, which does not depend on what else the machine does.
    step = _seconds(engine, piece, time.thread_time)[0] / piece.epochs / sum(piece.batches)
    batches = math.ceil(PIECE / max(step, 1e-6))
    of_middle = round.batches[round.cohort.index(middle)]
    if batches <= of_middle:
        return PieceSize((middle,), batches, batches, step)
    clients = ordered[len(ordered) // 2 :][: min(math.ceil(batches / of_middle), MOST_CLIENTS)]
    return PieceSize(tuple(clients), of_middle, batches, step)


def _timing(prepared: Prepared, round: Round, way: Way, size: PieceSize) -> Timing | None:
    """What measures a way once; nothing if the way is none here."""
    if way.timer == "stacked":
        return None if size.step > LONG_STEP else _stacked(prepared, round, way, STACKED_PIECES * size.batches)
    piece = Piece.of(prepared, way.memory, size.clients, size.batches_each)
    engine, threads = Serial(piece.problem, piece.method, seed=0), 1 if way.spreads else way.threads

    def once() -> Rates:
        torch.set_num_threads(threads)
        train, test = _seconds(engine, piece, _clock(threads))
        return Rates(train / sum(piece.batches), test / piece.tests)

    return once


def _stacked(prepared: Prepared, round: Round, way: Way, most: int) -> Timing | None:
    """Measures all clients as one batch: many and one, since a step has a price of its own; at `most` so many batches.

    Rows too long for two of them keep the cores busy one by one.
    """
    room = min(STACKED_CLIENTS, STACKED_VALUES // max(prepared.problem_base.layout.width, 1))
    if room < 2:
        return None
    batches = min(max(most // 2, 1), STACKED_STEPS)
    many = round.by_size()[: min(max(most // batches, 2), room)]
    pieces = [Piece.of(prepared, way.memory, clients, batches) for clients in (many, many[:1])]
    engines = [Stacked(piece.problem, piece.method, seed=0) for piece in pieces]
    if engines[0].declines(pieces[0].work.recipe, stepping_of(pieces[0].federation)) is not None:
        return None

    def once() -> Rates:
        torch.set_num_threads(way.threads)
        (several, test), (alone, _) = (
            _seconds(engine, piece, _clock(way.threads)) for engine, piece in zip(engines, pieces, strict=True)
        )
        steps, extra = pieces[1].batches[0], sum(pieces[0].batches) - pieces[1].batches[0]
        batch = max(several - alone, 0.0) / extra if extra else 0.0
        return Rates(batch, test / pieces[0].tests, step=max(alone / steps - batch, 0.0))

    once()  # what the engine loads the first time takes far longer than what it is timed on
    return once


def _clock(threads: int) -> Callable[[], float]:
    """A single thread's seconds are those in which it was at work, whatever else the machine does meanwhile."""
    return time.thread_time if threads == 1 else time.perf_counter


def _seconds(engine: Engine, piece: Piece, clock: Callable[[], float] = time.perf_counter) -> tuple[float, float]:
    """The seconds that a piece takes an engine to train, with as many epochs as a round has, and to test."""
    begin = clock()
    engine.train(piece.federation, piece.work, piece.everyone)
    trained = clock()
    engine.test(piece.federation, piece.everyone)
    return (trained - begin) * piece.epochs, clock() - trained


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Trials leave PyTorch's state as it was, and what engines say of them does not concern the run."""
    threads, before = torch.get_num_threads(), log.disabled
    log.disabled = True
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        log.disabled = before
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Offer:
    """The seconds that go by where one core is busy for a second, undisturbed: at least 1 each.

    `alone`: if nobody else works but whatever else the machine does; `together`: if all cores do the same.
    """

    alone: float = 1.0
    together: float = 1.0


def offer_of(cores: int) -> Offer:
    """What so many cores offer now.

    >>> offer = offer_of(2)
    >>> offer.alone >= 1, offer.together >= 1
    (True, True)
    """
    works = [_Work() for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        by_clock, undisturbed = pool.submit(works[0].rates, time.perf_counter(), ALONE).result()
        begin = time.perf_counter() + SETTLING
        all_at_once = [rate for rate, _ in pool.map(lambda work: work.rates(begin, COUNTED), works)]
    return Offer(max(undisturbed / by_clock, 1.0), max(undisturbed / statistics.fmean(all_at_once), 1.0))


class _Work:
    """Something to do for a core, without any memory to be reserved."""

    def __init__(self) -> None:
        self._matrices = [torch.ones(SIDE, SIDE) for _ in range(3)]
        self._vectors = [torch.ones(ADDED) for _ in range(3)]

    def rates(self, begin: float, seconds: float) -> tuple[float, float]:
        """How often it is done a second, for so many of them from `begin` on; and a second of the processor's time."""
        torch.set_num_threads(1)  # each thread has its own setting
        (left, right, product), (one, other, total) = self._matrices, self._vectors
        done, counting, busy = 1, False, time.thread_time()  # who gets nothing done is slow, not infinitely so
        while (now := time.perf_counter()) < begin + seconds:
            if now >= begin and not counting:
                done, counting, busy = 0, True, time.thread_time()
            torch.mm(left, right, out=product)
            torch.add(one, other, out=total)
            done += 1
        return done / seconds, done / max(time.thread_time() - busy, 1e-6)
