"""Whole runs at the same time: the same results, and nothing left over whatever happens."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import stand_in
from cli_tools import SMALL, Answer, assert_same_run, call

from coterie.compare import joint_runs as comparing
from coterie.compare import workers as parallel
from coterie.compare.table import compare
from coterie.compare.workers import PlannedRun, obstacle, run_in_parallel
from coterie.errors import CoterieError
from coterie.methods import METHODS, FedAvg
from coterie.processes import CannotStartError
from coterie.report.terminal import ComparisonProgress
from coterie.runs.experiment import Experiment
from coterie.setup.workload import expected_seconds
from plugins import ENGINE
from support import PATIENCE, eventually, tiny, without_times

pytestmark = pytest.mark.processes


class Notes:
    """A watcher that writes everything down."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.summaries: dict[str, dict[str, Any]] = {}

    def begun(self, run: PlannedRun) -> None:
        self.lines.append(f"{run} begun")

    def round_done(self, run: PlannedRun, round: int, received: float | None) -> None:
        self.lines.append(f"{run} {round} {received}")

    def ended(self, run: PlannedRun, summary: dict[str, Any]) -> None:
        self.lines.append(f"{run} ended")
        self.summaries[str(run)] = summary

    def failed(self, run: PlannedRun, error: Exception) -> None:
        raise error


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """For tests whose workers are stand-ins."""
    monkeypatch.setattr(parallel, "serve", stand_in.serve)
    return Notes()


def runs_of(*seeds: int) -> list[PlannedRun]:
    return [PlannedRun("a", Experiment(seed=seed), Path("kept") / str(seed)) for seed in seeds]


def assert_no_workers() -> None:
    assert multiprocessing.active_children() == []


def test_workers_live_on_and_take_the_runs_in_order(notes: Notes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coterie"):
        run_in_parallel(runs_of(0, 5, 10, 15, 20), 2, notes)
    begun = [line for line in notes.lines if line.endswith("begun")]
    assert begun == [f"a, seed {seed} begun" for seed in (0, 5, 10, 15, 20)]
    assert notes.lines.index("a, seed 0 1 0.5") < notes.lines.index("a, seed 0 ended")
    assert len({summary["pid"] for summary in notes.summaries.values()}) <= 2
    # The configuration says what the run was run with.
    assert {summary["config"]["threads"] for summary in notes.summaries.values()} == {1}
    assert notes.summaries["a, seed 5"]["out"] == str(Path("kept") / "5")
    assert "a, seed 5: beware" in caplog.messages
    assert_no_workers()


@pytest.mark.parametrize(
    ("ending", "error", "message"),
    [
        (stand_in.MISTAKEN, CoterieError, r"^a, seed 1: lr = 7: too much$"),
        (stand_in.BUGGY, RuntimeError, r"^a, seed 2: KeyError: 'x'\nIn the worker process:\nthe worker's traceback$"),
        (stand_in.KILLED, CoterieError, r"^a, seed 3: its worker process died \(signal 9\); is there enough memory"),
    ],
)
def test_one_failure_ends_everything_at_once(notes: Notes, ending: int, error: type[Exception], message: str) -> None:
    begin = time.monotonic()
    with pytest.raises(error, match=message):
        run_in_parallel(runs_of(stand_in.ENDLESS, ending, 5, 10), 2, notes)
    assert time.monotonic() - begin < PATIENCE
    assert "a, seed 5 begun" not in notes.lines
    assert_no_workers()


def test_an_interrupt_ends_everything(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(notes, "round_done", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_in_parallel(runs_of(stand_in.ENDLESS, stand_in.ENDLESS + 5), 2, notes)
    assert_no_workers()


def test_workers_that_cannot_start_are_reported_before_any_run(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "serve", stand_in.leave)
    with pytest.raises(CannotStartError, match="they import the script: put what the script does under"):
        run_in_parallel(runs_of(0, 5, 10), 2, notes)
    assert notes.lines == []
    assert_no_workers()


def test_compare_falls_back_to_one_job_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parallel, "serve", stand_in.leave)
    answer = call(capsys, "compare", "local", "--seeds", "0", "1", *SMALL, "--jobs", "2", "--json")
    assert answer.code == 0
    warning, *rounds = answer.err.splitlines()
    assert warning.startswith("coterie: warning: jobs = 2: no worker process can start (they import the script:")
    assert not any("warning" in line for line in rounds)
    assert answer.json["seeds"] == [0, 1]


@pytest.fixture
def jobs_used(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Each call's number of jobs and its runs in order; nothing is run."""
    used: list[tuple[int, list[str]]] = []

    def note(runs: list[PlannedRun], jobs: int, watcher: parallel.Watcher) -> None:
        used.append((jobs, [str(run) for run in runs]))
        for run in runs:
            prepared = run.experiment.prepare()
            watcher.ended(run, {"partition": {"hash": prepared.partition.hash}, "identity": prepared.identity})

    monkeypatch.setattr(comparing, "run_in_parallel", note)
    monkeypatch.setattr(comparing, "run_one_by_one", lambda runs, watcher: note(runs, 1, watcher))
    monkeypatch.setattr(comparing, "cores", lambda: 4)
    return used


def test_the_longest_runs_begin_first(jobs_used: list[tuple[int, list[str]]]) -> None:
    pair = {"short": Experiment("local", rounds=1), "long": Experiment("local", rounds=3)}
    compare(pair, [0, 1], jobs=2)
    compare(pair, [0, 1], jobs=1)
    assert jobs_used == [
        (2, ["long, seed 0", "long, seed 1", "short, seed 0", "short, seed 1"]),
        (1, ["short, seed 0", "long, seed 0", "short, seed 1", "long, seed 1"]),
    ]


@pytest.mark.parametrize(
    ("experiment", "jobs"),
    [
        (Experiment("local", rounds=10_000, engine="serial"), 3),
        (Experiment("local", rounds=10_000, engine="stacked"), 3),
        (Experiment("local", rounds=10_000, engine="serial", threads=2), 2),
        (Experiment("local", rounds=10_000, engine="serial", threads=3), 1),
        (Experiment("local", rounds=10_000, engine="processes"), 1),
        (tiny("local", rounds=100_000, engine="serial"), 1),  # with objects of its own
        (Experiment("local", rounds=1), 1),  # over before a worker has started
    ],
)
def test_jobs_are_chosen(experiment: Experiment, jobs: int, jobs_used: list[tuple[int, list[str]]]) -> None:
    compare({"one": experiment}, [0, 1, 2])
    assert [used for used, _ in jobs_used] == [jobs]


def test_a_single_run_has_a_single_job(jobs_used: list[tuple[int, list[str]]]) -> None:
    compare({"one": Experiment("local", rounds=10_000, engine="serial")}, [0])
    compare({"one": Experiment("local", rounds=10_000, engine="serial")}, [0], jobs=2)
    assert [used for used, _ in jobs_used] == [1, 1]


def test_wished_jobs_that_cannot_be() -> None:
    with pytest.raises(CoterieError, match="jobs = 2: 'own' cannot run beside others, it uses Python objects"):
        compare({"own": tiny("local")}, [0, 1], jobs=2)
    with pytest.raises(CoterieError, match="jobs = 2: 'p' cannot run beside others, engine 'processes' shares"):
        compare({"p": Experiment(engine="processes")}, [0, 1], jobs=2)
    with pytest.raises(CoterieError, match="jobs = -1: must not be negative"):
        compare({"a": Experiment()}, [0], jobs=-1)


def test_methods_of_ones_own_stay_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(FedAvg):
        pass

    assert obstacle(Experiment(Mine())) is not None
    monkeypatch.setitem(METHODS, "mine", Mine)  # known by name, but not to the workers
    assert obstacle(Experiment("mine")) is not None
    assert all(obstacle(Experiment(name)) is None for name in METHODS if name != "mine")


def test_expected_seconds_follow_the_work() -> None:
    def seconds(**options: Any) -> float:
        return expected_seconds(Experiment(**{"validation": 0.2, **options}).prepare())

    usual = seconds()
    assert seconds(epochs=10) == pytest.approx(2 * usual)
    assert seconds(join=0.5) == pytest.approx(usual / 2)
    assert seconds(model="resnet8") > seconds(model="cnn") > usual
    assert seconds(engine="stacked") < usual
    assert seconds(method="ditto") > usual
    assert all(seconds(method=name) > 0 for name in METHODS)


def test_plain_lines_name_the_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.rounds.progress.SECONDS_BETWEEN_LINES", 0.0)
    one, other, third = (PlannedRun(name, Experiment(rounds=2)) for name in ("fedavg", "fedper", "local"))
    with ComparisonProgress(3, 6) as progress:
        progress.begun(one)
        progress.begun(other)
        progress.round_done(other, 1, 0.25)
        progress.round_done(one, 1, None)
        assert list(progress.under_way.values()) == [one, other]
        progress.round_done(other, 2, None)
        progress.ended(other, {})
        progress.round_done(one, 2, 0.5)
        progress.ended(one, {})
        progress.begun(third)
        progress.ended(third, {})
    assert progress.finished == 3
    assert [line.rpartition(", ETA ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "fedper, seed 0 (2/3): round 1/2, received mean 0.2500",
        "fedavg, seed 0 (1/3): round 1/2, received mean –",
        "fedper, seed 0 (2/3): round 2/2, received mean 0.2500",
        "fedavg, seed 0 (1/3): round 2/2, received mean 0.5000",
        "local, seed 0 (3/3): finished",  # it had been run before
    ]


def test_ctrl_c_says_how_to_carry_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: ComparisonProgress, run: PlannedRun, round: int, received: float | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ComparisonProgress, "round_done", interrupt)
    answer = call(capsys, "compare", "local", *SMALL, "--checkpoint-every", "1", "--out", tmp_path / "all")
    assert answer.code == 130
    way = f"'coterie resume {tmp_path / 'all' / 'local-s0'}' carries on after round 1"
    assert answer.err == f"coterie: interrupted; {way} (0 of 3 runs were finished)\n"
    assert call(capsys, "compare", "local", *SMALL).err == "coterie: interrupted (0 of 3 runs were finished)\n"


# Below, the workers are real.


@contextmanager
def script(path: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """A script that runs in a process group of its own."""
    path.write_text(text)
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finished(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=PATIENCE)
    return Answer(process.returncode, out, err)


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_are_those_of_one_job_bit_for_bit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = ("compare", "fedper", "pfedcs", "--seeds", "3", "4", "--clients", "4", "--rounds", "3", "--epochs", "1")
    # Threads are left to the workers, which use one.
    both = call(capsys, *usual, "--jobs", "2", "--out", "both", "--json")
    assert both.code == 0, both.err
    assert_no_workers()
    one = call(capsys, *usual, "--jobs", "1", "--threads", "1", "--out", "one", "--json")
    assert one.code == 0
    assert without_times(one.json["runs"]) == without_times(both.json["runs"])
    assert list(one.json["runs"]) == list(both.json["runs"]) == ["fedper", "pfedcs"]
    for method in ("fedper", "pfedcs"):
        for seed in (3, 4):
            run = f"{method}-s{seed}"
            assert_same_run(Path("one", run), Path("both", run))
            assert Path("one", run, "config.toml").read_bytes() == Path("both", run, "config.toml").read_bytes()


def test_runs_with_an_engine_from_a_file_take_place_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loud.py").write_text(ENGINE, encoding="utf-8")
    usual = ("compare", "local", "fedavg", "--seeds", "3", "--clients", "4", "--rounds", "2", "--epochs", "1")
    own = call(capsys, *usual, "--engine", "./loud.py:Loud", "--jobs", "2", "--out", "own", "--json")
    assert own.code == 0, own.err
    assert_no_workers()
    plain = call(capsys, *usual, "--engine", "serial", "--threads", "1", "--jobs", "1", "--out", "plain", "--json")
    for method in ("local", "fedavg"):
        ((loud,), (serial,)) = (without_times(answer.json["runs"])[method] for answer in (own, plain))
        assert {key for key in loud if loud[key] != serial[key]} == {"engine", "config"}
        config = tomllib.loads(Path("own", f"{method}-s3", "config.toml").read_text(encoding="utf-8"))
        assert config["engine"] == f"{tmp_path / 'loud.py'}:Loud"


def test_engines_with_workers_of_their_own_run_alone(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN_ENGINES, encoding="utf-8")
    assert obstacle(Experiment(engine=f"{file}:Plain")) is None
    why = obstacle(Experiment(engine=f"{file}:Crowd"))
    assert why == f"engine '{file}:Crowd' shares the cores out by itself"


OWN_ENGINES = """
from coterie.engines import Processes, Serial


class Plain(Serial):
    name = "plain"


class Crowd(Processes):
    name = "crowd"
"""
COMMAND = "compare local fedavg --clients 4 --epochs 1 --record-every 0 --seeds 0 1 --jobs 2"


@pytest.mark.slow
def test_an_unguarded_script_runs_one_by_one_with_a_warning(tmp_path: Path) -> None:
    text = f"from coterie.cli import main\nraise SystemExit(main('{COMMAND} --rounds 1'.split()))"
    with script(tmp_path / "unguarded.py", text) as process:
        answer = finished(process)
    assert answer.code == 0, answer.err
    assert answer.err.count("warning") == 1
    assert "coterie: warning: jobs = 2: no worker process can start (they import the script:" in answer.err
    assert "Traceback" not in answer.err
    assert answer.out.count("fedavg") == 1


def test_ctrl_c_ends_everything_without_a_traceback(tmp_path: Path) -> None:
    command = f"{COMMAND} --rounds 1000000 --out {tmp_path / 'kept'}"
    text = (
        "import signal\nfrom coterie.cli import main\n"
        "if __name__ == '__main__':\n"
        # A test run in the background of a shell would hand down that Ctrl-C is ignored.
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"    raise SystemExit(main({command!r}.split()))"
    )
    with script(tmp_path / "interrupted.py", text) as process:
        assert process.stderr is not None
        assert "round" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: the workers are hit as well
        answer = finished(process)
        assert eventually(lambda: not group_is_alive(process.pid))
    assert answer.code == 130
    last = answer.err.splitlines()[-1]
    assert last.startswith("coterie: interrupted")
    assert last.endswith("(0 of 4 runs were finished)")
    assert "Traceback" not in answer.err


def test_a_worker_ends_with_the_main_process(tmp_path: Path) -> None:
    task = json.dumps({"config": "rounds = 1000000", "out": None, "until": None, "listeners": []})
    text = (
        "import multiprocessing, stand_in\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    ours, theirs = context.Pipe()\n"
        "    context.Process(target=stand_in.real_serve, args=(theirs,), daemon=True).start()\n"
        "    print(ours.recv_bytes().decode(), flush=True)\n"
        f"    ours.send_bytes({task!r}.encode())\n"
        "    print(ours.recv_bytes().decode(), flush=True)\n"
        "    while True:\n        ours.recv_bytes()\n"
    )
    with script(tmp_path / "killed.py", text) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == '{"ready": true}\n'
        assert process.stdout.readline().startswith('{"round": 1, "received": 0.')
        process.kill()
        assert finished(process).err == ""
        assert eventually(lambda: not group_is_alive(process.pid))
