"""What is shown of a run while it is under way, and when nothing is."""

from __future__ import annotations

import io
import logging
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from coterie.core.numbers import ACCURACY
from coterie.partition import Iid
from coterie.rounds import progress
from coterie.rounds.listeners import Start
from coterie.rounds.progress import RoundProgress
from coterie.runs.experiment import Experiment

Clock = SimpleNamespace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The display's clock, which the test moves."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal is sent."""
    text = io.StringIO()
    monkeypatch.setattr(
        progress,
        "Console",
        lambda **_: Console(file=text, force_terminal=True, width=120, color_system=None, _environ={"TERM": "xterm"}),
    )
    return text


def start(rounds: int, first_round: int = 1) -> Start:
    federation: Any = None
    return Start("fedavg", ("a", "b"), rounds, first_round, federation)


def over(number: int, accuracy: float | None = None) -> Any:
    received = None
    if accuracy is not None:
        received = SimpleNamespace(scale=ACCURACY, mean=accuracy, worst_decile=accuracy / 2, sample=None)
    return SimpleNamespace(round=number, received=received, bytes={"up": 400_000, "down": 600_000}, parts={})


def test_warnings_stop_being_shown_when_there_are_many(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundProgress():
        for number in range(100):
            logging.getLogger("coterie").warning("number %d", number)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == progress.MOST_WARNINGS + 1
    assert lines[0] == "coterie: warning: number 0"
    assert "more" in lines[-1]
    assert not logging.getLogger("coterie").handlers


def test_plain_progress_is_a_line_a_second_and_the_last(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with RoundProgress() as shown:
        shown.begin(start(rounds=21))
        for number in range(1, 22):
            clock.now += 0.3
            shown.round(over(number, number / 100 if number % 2 == 0 else None))
    assert capsys.readouterr().err.splitlines() == [
        "round 4/21, received mean 0.0400, worst tenth 0.0200, 4.0 MB moved, ETA 0:00:05",
        "round 8/21, received mean 0.0800, worst tenth 0.0400, 8.0 MB moved, ETA 0:00:03",
        "round 12/21, received mean 0.1200, worst tenth 0.0600, 12.0 MB moved, ETA 0:00:02",
        "round 16/21, received mean 0.1600, worst tenth 0.0800, 16.0 MB moved, ETA 0:00:01",
        "round 20/21, received mean 0.2000, worst tenth 0.1000, 20.0 MB moved, ETA 0:00:00",
        "round 21/21, received mean 0.2000, worst tenth 0.1000, 21.0 MB moved, ETA 0:00:00",
    ]


def test_a_short_run_says_nothing(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with RoundProgress() as shown:
        shown.begin(start(rounds=3))
        for number in (1, 2, 3):
            clock.now += 0.3
            shown.clients_done(number, 1, 2)
            shown.round(over(number))
    assert capsys.readouterr().err == ""


def test_a_resumed_run_is_timed_from_where_it_carries_on(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with RoundProgress() as shown:
        shown.begin(start(rounds=20, first_round=17))
        for number in range(17, 21):
            clock.now += 2
            shown.round(over(number))
    assert [line.rpartition("ETA ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "?",
        "0:00:04",
        "0:00:02",
        "0:00:00",
    ]


def test_long_rounds_show_their_clients_at_most_once_a_second(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with RoundProgress() as shown:
        shown.begin(start(rounds=2))
        for number in (1, 2):
            for client in range(1, 9):
                clock.now += 0.4
                shown.clients_done(number, client, 8)
            shown.round(over(number, 0.5))
    assert capsys.readouterr().err.splitlines() == [
        "round 1/2, 3/8 clients trained, received mean –, worst tenth –, 0 B moved, ETA ?",
        "round 1/2, 6/8 clients trained, received mean –, worst tenth –, 0 B moved, ETA ?",
        "round 2/2, 3/8 clients trained, received mean 0.5000, worst tenth 0.2500, 1.0 MB moved, ETA 0:00:02",
        "round 2/2, 6/8 clients trained, received mean 0.5000, worst tenth 0.2500, 1.0 MB moved, ETA 0:00:00",
        "round 2/2, received mean 0.5000, worst tenth 0.2500, 2.0 MB moved, ETA 0:00:00",
    ]


def test_a_terminal_shows_a_bar_with_clients(screen: io.StringIO, clock: Clock) -> None:
    with RoundProgress() as shown:
        shown.begin(start(rounds=4))
        clock.now += 2
        shown.clients_done(1, 3, 8)
        shown._bar.refresh()
        assert "0/4 3/8 clients, received accuracy –, worst tenth –, 0 B moved" in screen.getvalue()
        shown.round(over(1, 0.25))
    assert "1/4 received accuracy 0.2500, worst tenth 0.1250, 1.0 MB moved" in screen.getvalue()
    assert not shown._bar.live.transient


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (120, "37/100 received accuracy 0.8312, worst tenth 0.4156, 37.0 MB moved"),
        (80, "37/100 12/20 clients accuracy 0.8312 worst 0.4156 37.0 MB 0:"),
        (60, "37/100 12/20 accuracy 0.8312"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_line_is_as_wide_as_the_terminal(
    width: int, expected: str, encoding: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = io.BytesIO()
    file = io.TextIOWrapper(sent, encoding=encoding)
    terminal = {"file": file, "force_terminal": True, "width": width, "color_system": None, "legacy_windows": False}
    monkeypatch.setattr(progress, "Console", lambda **_: Console(**terminal, _environ={"TERM": "xterm"}))
    with RoundProgress() as shown:
        shown.begin(start(rounds=100))
        shown._bar.refresh()  # nothing is known yet: the dash must be one that the terminal has
        for number in range(1, 38):
            clock.now += 2
            shown.round(over(number, 0.8312))
        clock.now += 2
        if width < 120:
            shown.clients_done(38, 12, 20)
        shown._bar.refresh()
    file.flush()
    screen = sent.getvalue().decode(encoding)
    drawn = [line for line in re.split(r"[\r\n]|\x1b\[[0-9?]*[A-Za-z]", screen) if line.strip()]
    assert max(map(len, drawn)) <= width
    assert expected in " ".join(drawn[-1].split())


def test_a_resumed_run_counts_what_was_moved_before(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with RoundProgress() as shown:
        shown.begin(replace(start(rounds=4, first_round=3), moved=7_000_000))
        clock.now += 2
        shown.round(over(3, 0.5))
    assert "8.0 MB moved" in capsys.readouterr().err


def test_a_bar_of_a_short_run_goes_away(screen: io.StringIO, clock: Clock) -> None:
    with RoundProgress() as shown:
        shown.begin(start(rounds=1))
        clock.now += 0.1
        shown.round(over(1))
    erased = "\x1b[1A\x1b[2K"
    assert screen.getvalue().endswith(erased)


@pytest.mark.parametrize(("widgets", "bars"), [(True, True), (False, False)])
def test_a_notebook_shows_bars_if_it_can(widgets: bool, bars: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: object() if widgets else None)
    assert progress._shows_bars(Console(force_jupyter=True)) is bars
    assert not progress._shows_bars(Console(file=io.StringIO()))


def test_a_run_from_python_shows_what_the_command_line_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_UPDATES", 0.0)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    run = Experiment("fedavg", partition=Iid(clients=3), rounds=2, epochs=1)
    run.run(progress=True)
    lines = [line.partition(", received")[0] for line in capsys.readouterr().err.splitlines()]
    clients = [[f"round {number}/2, {done}/3 clients trained" for done in (1, 2, 3)] for number in (1, 2)]
    assert lines == [*clients[0], "round 1/2", *clients[1], "round 2/2"]
    run.run()
    assert capsys.readouterr().err == ""
