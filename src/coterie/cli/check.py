"""The command `check`: what every method promises, tried on one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from coterie.cli.merge import read_sets
from coterie.cli.problems import FailureError
from coterie.errors import require
from coterie.registry import short_name
from coterie.report.terminal import plain_table, print_result
from coterie.setup.settings import make_method
from coterie.testing.method import METHOD_CHECKS, CheckFailedError, check_method

# What each check is about, in a few words.
ABOUT = {name: (check.__doc__ or "").strip().splitlines()[0].rstrip(".") for name, check in METHOD_CHECKS.items()}


def check_command(method: str, only: Sequence[str], texts: Sequence[str]) -> None:
    """Check a method and print what it keeps and what it breaks."""
    sets = read_sets(texts)
    require(
        not any(isinstance(value, dict) for value in sets.values()), "set: give NAME=VALUE, there is just one method"
    )
    chosen = make_method(method, sets)
    results: dict[str, Exception | None] = {}
    bar = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True)
    with bar:
        line = bar.add_task("checking")

        def told(name: str, error: Exception | None) -> None:
            results[name] = error
            bar.update(line, description=f"{name} is done, {len(results)} of {len(only or METHOD_CHECKS)}")

        try:
            check_method(chosen, only, told)
        except CheckFailedError as failure:
            _print(results)
            raise FailureError(f"{short_name(method)}: {failure}") from None
    _print(results)


def _print(results: dict[str, Exception | None]) -> None:
    table = plain_table("check", "result", "promise")
    for name, error in results.items():
        table.add_row(name, "kept" if error is None else "broken", ABOUT[name])
    print_result(table)
