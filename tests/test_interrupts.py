"""Ctrl-C and SIGTERM, put off for a moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coterie.cli.errors import TerminationError, terminable
from coterie.partition import Iid
from coterie.processes import SIGNALS, interrupts_wait
from coterie.rounds.evaluate import Evaluation
from coterie.rounds.judge import Judge
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from support import PATIENCE

CTRL_C = signal.SIGINT


@pytest.fixture(autouse=True)
def _handlers_are_as_before() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


class Block:
    """What is done while interrupts wait."""

    def __init__(self, *signals: signal.Signals, then: Callable[[], object] = lambda: None) -> None:
        self.signals, self.then, self.done = signals, then, False

    def run(self, seconds: float = PATIENCE) -> None:
        with interrupts_wait(seconds):
            for number in self.signals:
                signal.raise_signal(number)
            self.then()
            self.done = True


def test_an_interrupt_waits_for_the_end() -> None:
    block = Block(CTRL_C)
    with pytest.raises(KeyboardInterrupt):
        block.run()
    assert block.done


def test_a_second_interrupt_does_not_wait() -> None:
    block = Block(CTRL_C, CTRL_C)
    with pytest.raises(KeyboardInterrupt):
        block.run()
    assert not block.done


def test_an_interrupt_waits_for_so_long_only() -> None:
    """Also where the main thread waits for something itself."""
    block = Block(CTRL_C, then=lambda: time.sleep(PATIENCE))
    with pytest.raises(KeyboardInterrupt):
        block.run(0.05)
    assert not block.done


def test_sigterm_does_what_it_would_have_done() -> None:
    """Whoever handles it ignores further ones while it saves, and that stands."""
    block = Block(signal.SIGTERM)
    with terminable():
        with pytest.raises(TerminationError):
            block.run()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    assert block.done


def test_an_error_does_not_swallow_an_interrupt() -> None:
    """Whoever goes on after errors must still hear of it."""
    block = Block(CTRL_C, then=lambda: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        block.run()
    assert not block.done


def test_nothing_happens_without_an_interrupt_or_in_another_thread() -> None:
    found = []

    def other() -> None:
        with interrupts_wait(PATIENCE):
            found.append(signal.getsignal(CTRL_C))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with interrupts_wait(PATIENCE):
        assert signal.getsignal(CTRL_C) != found[0]
    assert found == [signal.getsignal(CTRL_C)]


@pytest.mark.parametrize(("times", "kept"), [(1, 3), (2, 0)])
def test_a_round_that_is_being_tested_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, kept: int
) -> None:
    """Its rows are mixed: thrown away, the run would fall back to the last checkpoint, here to none."""
    test = Judge.evaluate_received

    def interrupted(self: Judge, *given: object, **named: object) -> Evaluation:
        if self.federation.round == 3:
            for _ in range(times):
                signal.raise_signal(CTRL_C)
        return test(self, *given, **named)

    monkeypatch.setattr(Judge, "evaluate_received", interrupted)
    experiment = Experiment(method="fedavg", partition=Iid(clients=3), rounds=9, epochs=1, threads=1, engine="serial")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").checkpointed_round() == kept
