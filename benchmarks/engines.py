"""The engines against each other and against bare PyTorch loops: a round of FedAvg, training only.

The rounds are those of a run (cohort, training, exchange) without evaluation. The bare loops do the same steps on
the same samples: in one process with all threads and in as many processes of one thread, contiguous and channels-last.
Engine `auto` stands for what it chooses here and now; nothing that it remembers of earlier runs is used.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from benchmarks.bare import bare_round, bare_test, load
from benchmarks.bare_pool import BareCrew
from benchmarks.harness import Figure, in_turns, random_images, ratio
from coterie.client.problem import Problem
from coterie.core.pixels import as_memory
from coterie.core.training import MemoryFormat
from coterie.engines import EngineOptions, Stacked, make_engine
from coterie.partition import Dirichlet, Iid
from coterie.rounds.judge import Judge
from coterie.rounds.round import Rounds
from coterie.rounds.sampler import draw_cohort
from coterie.runs.experiment import Experiment
from coterie.setup.engine_choice import with_choice
from coterie.setup.prepared import Prepared

LR = 0.01
NEVER = 10**6
TRAINED = 0.75  # the share of a client's samples that is trained on
CIFAR = (3, 32, 32)

BEGINNING = (5, 5.0)  # rounds and seconds
HOPELESS = 4.0  # times the fastest

Runs = dict[str, Callable[[], object]]
Context = AbstractContextManager[Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """What is trained, and which bars the engines have to meet on it."""

    name: str
    experiment: Callable[[float], Experiment]  # of the scale: 1, or less for a smoke run
    repeats: int = 7
    stacked: float | None = None  # how many times faster than the serial engine with one thread
    processes: float | None = None  # likewise
    bare: float | None = None  # the share of the best bare loop's speed that `auto` reaches


@dataclass(frozen=True)
class Setting:
    """An engine with its threads and memory format."""

    engine: str
    threads: int
    memory: MemoryFormat = "contiguous"

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        words = [self.engine, threads] if self.engine == "serial" else [self.engine]
        return ", ".join([*words, self.memory.replace("_", "-")])


def tiny_conv() -> nn.Module:
    """A really small convolutional network for 8×8 digits."""
    features = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
    )
    parts: OrderedDict[str, nn.Module] = OrderedDict(features=features, classifier=nn.Linear(64, 10))
    return nn.Sequential(parts)


def on_digits(
    clients: int, least: int | None = None, model: str = "mlp", epochs: int = 5
) -> Callable[[float], Experiment]:
    """Digits in batches of 10, dealt out evenly or (with `least`) in Dirichlet(0.1) proportions."""

    def make(scale: float) -> Experiment:
        rule = Iid(clients=clients) if least is None else Dirichlet(clients=clients, alpha=0.1, least=least)
        own = model == "tiny"
        return Experiment(
            data="digits",
            partition=rule,
            model=tiny_conv() if own else model,
            classifier="classifier" if own else "last",
            batch=10,
            epochs=max(1, int(epochs * scale)),
            lr=LR,
            rounds=1000,
        )

    return make


def on_noise(model: str, batch: int, clients: int, trained: int, join: float = 1.0) -> Callable[[float], Experiment]:
    """Images of CIFAR-10's size, `trained` of them at each of the clients, for one epoch."""

    def make(scale: float) -> Experiment:
        samples = clients * max(2, round(trained * scale / TRAINED))
        data, rule = random_images(samples, CIFAR), Iid(clients=clients)
        return Experiment(data=data, partition=rule, model=model, batch=batch, epochs=1, lr=LR, join=join, rounds=1000)

    return make


CNN_10 = on_noise("cnn", 10, clients=8, trained=240)
CNN_100 = on_noise("cnn", 100, clients=4, trained=600)
LENET5_10_OF_100 = on_noise("lenet5", 32, 100, trained=375, join=0.1)
RESNET8 = on_noise("resnet8", 32, clients=4, trained=128)
CASES = (
    Case("mlp, digits, 20 equal clients", on_digits(20), 15, stacked=5.0),
    Case("mlp, digits, 100 equal clients", on_digits(100), 15, stacked=9.0),
    Case("mlp, digits, 20 Dirichlet clients", on_digits(20, least=2), 15, stacked=3.0),
    Case("mlp, digits, 100 Dirichlet clients", on_digits(100, least=2), 15, stacked=5.0),
    Case("small conv net, digits, 20 clients", on_digits(20, model="tiny", epochs=2), 9, stacked=2.0),
    Case("cnn, digits, 20 clients", on_digits(20, model="cnn", epochs=1)),
    Case("cnn, batch 10", CNN_10, processes=1.8, bare=0.97),
    Case("cnn, batch 100", CNN_100, processes=1.8, bare=0.97),
    Case("lenet5, batch 32, 10 of 100 clients", LENET5_10_OF_100, bare=0.97),
    Case("resnet8, batch 32", RESNET8, bare=0.97),
)


def speedup(name: str, slow: list[float], fast: list[float], labels: tuple[str, str], bar: float) -> Figure:
    """How many times the time of `fast` the `slow` one takes: at least the bar."""
    return replace(ratio(name, slow, fast, labels, bar), at_most=False)


def case_figures(case: Case, repeats: int | None = None, scale: float = 1.0) -> Iterator[Figure]:
    """A case's figures; the median seconds of everything that was measured go to standard error."""
    cores = torch.get_num_threads()
    prepared = case.experiment(scale).prepare()
    auto = chosen(prepared)
    settings = list(dict.fromkeys([*settings_for(prepared, cores), auto]))
    with ExitStack() as stack:
        engines = {str(setting): stack.enter_context(training(prepared, setting)) for setting in settings}
        begin_run(engines[str(auto)], scale)
        loops = {name: stack.enter_context(loop) for name, loop in bare_loops(prepared, cores)}
        needed = {str(setting) for setting in (auto, *settings) if setting == auto or setting.engine != "serial"}
        needed |= {str(Setting("serial", 1, memory)) for memory in formats(prepared)}
        needed |= set(list(loops)[:1])  # on a busy machine all of them may seem hopeless
        seconds = in_turns(contenders({**engines, **loops}, needed), repeats or case.repeats, warmup=0)
    note(case.name, seconds, f"auto: {auto}")
    alone = str(Setting("serial", 1))
    if case.stacked is not None:
        fast = str(Setting("stacked", 1))
        yield speedup(
            f"{case.name}: time of serial, 1 thread",
            seconds[alone],
            seconds[fast],
            ("serial, 1 thread", "stacked"),
            case.stacked,
        )
    for memory in formats(prepared) if case.processes is not None else ():
        slow, fast = str(Setting("serial", 1, memory)), str(Setting("processes", 1, memory))
        name = f"{case.name}: time of {slow}"
        yield speedup(name, seconds[slow], seconds[fast], (slow, fast), case.processes or 0.0)
    ours, label = seconds[str(auto)], f"auto ({auto})"
    best = fastest(seconds, engines)
    yield speedup(f"{case.name}: time of the best engine ({best})", seconds[best], ours, (best, label), 0.95)
    if case.bare is not None:
        best = fastest(seconds, loops)
        yield speedup(
            f"{case.name}: time of the best bare loop ({best})", seconds[best], ours, (best, label), case.bare
        )


def chosen(prepared: Prepared) -> Setting:
    """What engine `auto` chooses, without what it remembers."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as empty:
        os.environ["XDG_CACHE_HOME"] = empty
        try:
            choice = with_choice(replace(prepared, experiment=replace(prepared.experiment, engine="auto"))).experiment
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before
    assert choice.memory != "auto"
    return Setting(choice.engine, choice.threads or torch.get_num_threads(), choice.memory)


def formats(prepared: Prepared) -> tuple[MemoryFormat, ...]:
    """Memory formats only matter to convolutions."""
    convolutions = any(len(entry.shape) == 4 for entry in prepared.problem_base.layout.entries)
    return ("contiguous", "channels_last") if convolutions else ("contiguous",)


def settings_for(prepared: Prepared, cores: int) -> Iterator[Setting]:
    """Every engine in every memory format; the stacked one where it does not hand the work to the serial one."""
    for memory in formats(prepared):
        for threads in dict.fromkeys((1, cores)):
            yield Setting("serial", threads, memory)
        yield Setting("processes", 1, memory)
    stacked = Stacked(prepared.problem(), prepared.method, seed=0)
    if stacked.declines(prepared.method.recipe(prepared.federation())) is None:
        yield Setting("stacked", 1)


@contextmanager
def training(prepared: Prepared, setting: Setting, evaluate_every: int = NEVER) -> Iterator[Callable[[], object]]:
    """A function that runs a round with an engine; worker processes start with the first."""
    case = replace(prepared, problem_base=prepared.problem_in_memory(setting.memory))
    engine = make_engine(
        setting.engine, case.problem(), case.method, seed=0, options=EngineOptions(torch.get_num_threads())
    )
    federation = case.federation()
    rounds = Rounds(
        case.method, federation, engine, case.sampler, Judge(case.method, federation, engine, evaluate_every)
    )
    try:
        yield with_threads(setting.threads, rounds.run_round)
    finally:
        engine.close()


def bare_loops(prepared: Prepared, cores: int, tested: bool = False) -> Iterator[tuple[str, Context]]:
    """The bare loops by name: processes × threads, memory format; `tested`: with the tests of a whole round."""
    federation, problem = prepared.federation(), prepared.problem()
    cohort = draw_cohort(federation.keys, prepared.experiment.join, seed=0, round=1).tolist()
    for memory in formats(prepared):
        words = memory.replace("_", "-")
        work = replace(problem, module=copy.deepcopy(problem.module), inputs=as_memory(problem.inputs, memory))
        for parameter in work.module.parameters():
            parameter.data = as_memory(parameter.data, memory)
        yield f"bare 1 × {cores}, {words}", _in_this_process(work, cohort, cores, tested)
        if cores > 1:
            yield f"bare {cores} × 1, {words}", _in_processes(work, cohort, cores, tested)


@contextmanager
def _in_this_process(problem: Problem, cohort: list[int], threads: int, tested: bool) -> Iterator[Callable[[], object]]:
    everybody = torch.cat(problem.test)

    def round() -> None:
        found = bare_round(problem, cohort, LR, tested)
        if tested:
            load(problem.module, found)
            bare_test(problem, problem.module, everybody)

    yield with_threads(threads, round)


@contextmanager
def _in_processes(problem: Problem, cohort: list[int], processes: int, tested: bool) -> Iterator[Callable[[], object]]:
    with BareCrew(problem, cohort, LR, processes, tested) as pool:
        yield with_threads(1, pool.round)


def with_threads(count: int, work: Callable[[], object]) -> Callable[[], None]:
    """The same work with so many PyTorch threads in this process."""

    def run() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            work()
        finally:
            torch.set_num_threads(before)

    return run


def begin_run(run: Callable[[], object], scale: float = 1.0) -> None:
    """A run's first rounds, which are not timed: engine `adaptive` finds out meanwhile who is faster."""
    begin, count = time.perf_counter(), 0
    while count < BEGINNING[0] or time.perf_counter() - begin < BEGINNING[1] * scale:
        run()
        count += 1


def contenders(cases: Runs, wanted: set[str]) -> Runs:
    """Those worth a measurement, by two trials: the wanted ones, and all that are not hopelessly slow."""
    for limit in (5 * HOPELESS, HOPELESS):  # the first trial is the warm-up
        trial = {name: times[0] for name, times in in_turns(cases, repeats=1, warmup=0).items()}
        bound = limit * min(trial.values())
        cases = {name: run for name, run in cases.items() if name in wanted or trial[name] <= bound}
    return cases


def fastest(seconds: dict[str, list[float]], among: Runs) -> str:
    """The measured name with the least median."""
    return min((name for name in among if name in seconds), key=lambda name: statistics.median(seconds[name]))


def note(title: str, seconds: dict[str, list[float]], more: str = "") -> None:
    """Say the median seconds of everything on standard error."""
    medians = sorted((statistics.median(times), name) for name, times in seconds.items())
    words = "; ".join(f"{name} {median:.3g} s" for median, name in medians)
    print(f"{title}: {words}" + (f" ({more})" if more else ""), file=sys.stderr)
