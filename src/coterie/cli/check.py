"""`coterie check`: what every method promises, tried on one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.errors import FailureError
from coterie.cli.options import OUTPUT, Sets, repeated
from coterie.errors import require


def check(
    method: Annotated[str, Parameter(help="A method by name, or in a file of your own: ./my.py:FedAvgM.")],
    /,
    *,
    only: Annotated[list[str] | None, repeated("Run this check alone; may be repeated.", OUTPUT, default="all")] = None,
    set: Sets = None,
) -> None:
    """Check that a method keeps what all methods promise: resuming, relabelling, travel, bytes, engines and more."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from coterie.cli.experiments import read_sets
    from coterie.registry import short_name
    from coterie.setup.settings import make_method
    from coterie.testing.method import METHOD_CHECKS, CheckFailedError, check_method

    options = read_sets(set or [])
    require(
        not any(isinstance(value, dict) for value in options.values()), "set: give NAME=VALUE, there is just one method"
    )
    chosen = make_method(method, options)
    results: dict[str, Exception | None] = {}
    bar = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True)
    with bar:
        line = bar.add_task("checking")

        def note(name: str, error: Exception | None) -> None:
            results[name] = error
            bar.update(line, description=f"{name} is done, {len(results)} of {len(only or METHOD_CHECKS)}")

        try:
            check_method(chosen, only or [], note)
        except CheckFailedError as failure:
            _print(results)
            raise FailureError(f"{short_name(method)}: {failure}") from None
    _print(results)


def _print(results: Mapping[str, Exception | None]) -> None:
    from coterie.report.terminal import plain_table, print_result
    from coterie.testing.method import METHOD_CHECKS

    table = plain_table("check", "result", "promise")
    for name, error in results.items():
        promise = (METHOD_CHECKS[name].__doc__ or "").strip().splitlines()[0].rstrip(".")
        table.add_row(name, "kept" if error is None else "broken", promise)
    print_result(table)
