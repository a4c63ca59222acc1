from __future__ import annotations

import io
import sys

import pytest

from coterie.data import archives


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("enabled", "patience", "shown"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_a_bar_is_shown_on_a_terminal_for_slow_work_only(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, patience: float, shown: bool
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(archives, "PATIENCE_SECONDS", patience)
    with archives.progress_bar("decoding things", 2, enabled) as advance:
        advance(1)
        advance(1)
    assert ("decoding things" in terminal.getvalue()) == shown


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.StringIO()
    monkeypatch.setattr(sys, "stderr", plain)
    monkeypatch.setattr(archives, "PATIENCE_SECONDS", 0.0)
    with archives.progress_bar("decoding things", 1, True) as advance:
        advance(1)
    assert plain.getvalue() == ""
