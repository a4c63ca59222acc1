"""`coterie benchmark`: methods on sets with natural clients, all tuned alike, with statistics on who leads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coterie.cli.errors import InterruptionError, exit_code, terminable
from coterie.cli.options import OUTPUT, RUNNING, Cluster, Seeds, file, flag, listed, option, repeated
from coterie.errors import require

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.benchmark.contest import SetContest
    from coterie.benchmark.protocol import BenchmarkSet
    from coterie.benchmark.standings import SetStandings, Standings


def benchmark(
    *,
    sets: Annotated[
        list[str] | None, listed("Only these sets (with commas); data of your own: ./my.py:data.", "all", OUTPUT)
    ] = None,
    methods: Annotated[list[str] | None, listed("Only these contestants (with commas).", "all", OUTPUT)] = None,
    method: Annotated[
        list[str] | None,
        repeated("A method of your own, ./mine.py:Mine, beside the baselines; may be repeated.", OUTPUT),
    ] = None,
    grid: Annotated[
        list[str] | None,
        repeated("What is tuned of it besides the rate: NAME=LOW..HIGH or NAME=VALUE,VALUE.", OUTPUT),
    ] = None,
    budget: Annotated[int | None, option("Settings that everybody tries.", 12, RUNNING)] = None,
    seeds: Seeds = None,
    jobs: Annotated[int | None, option("Runs at the same time.", 1, RUNNING)] = None,
    cluster: Cluster = None,
    out: Annotated[
        Path, file("Where results are kept; what is there is carried on.", "runs/benchmark/natural-1", OUTPUT)
    ] = Path("runs/benchmark/natural-1"),
    settings: Annotated[
        str | None, option("Print the tuned settings of a set, such as vowel, and run nothing.", "none", OUTPUT)
    ] = None,
    write: Annotated[bool, flag("Run nothing: write the page of what is kept anew.", OUTPUT)] = False,
) -> None:
    """Run methods on sets with natural clients, all tuned alike on validation samples, and say who leads."""
    from coterie.benchmark.page import write_page
    from coterie.benchmark.protocol import contestants_named, sets_named

    if settings is not None:
        _print_settings(settings)
        return
    require(budget is None or budget >= 1, f"budget = {budget}: must be at least 1")
    require(seeds is None or bool(seeds), "seeds: name at least one")
    require(jobs is None or jobs >= 1, f"jobs = {jobs}: must be at least 1")
    require(not grid or bool(method), "grid: is for a method of your own; name it, --method ./mine.py:Mine")
    chosen, contestants = sets_named(sets), contestants_named(methods, method or [], grid or [])
    if not write:
        from coterie.benchmark.contest import SetContest
        from coterie.benchmark.protocol import BUDGET, SEEDS

        _require_here(chosen)
        for one in chosen:
            _run(SetContest(one, contestants, out, budget or BUDGET, seeds or SEEDS, jobs or 1, cluster or ""))
            write_page(out)
    standings = write_page(out)
    require(bool(standings.sets), f"out = {out}: holds no results; leave --write out")
    _print(standings, [one.name for one in chosen], out)


def _require_here(chosen: Sequence[BenchmarkSet]) -> None:
    """An error for the first set whose data are not on this machine."""
    from coterie.data.catalogue import DATASETS

    for one in chosen:
        missing = DATASETS.find(one.data).missing()
        require(missing is None, str(missing))


def _run(contest: SetContest) -> None:
    from coterie.benchmark.tuned import write_tuned
    from coterie.report.terminal import ComparisonProgress

    with terminable():
        try:
            write_tuned(contest.run(ComparisonProgress.of))
        except KeyboardInterrupt as stop:
            raise InterruptionError("interrupted; the same command carries on", exit_code(stop)) from None


def _print_settings(name: str) -> None:
    import tomli_w

    from coterie.benchmark.tuned import read_tuned

    print(tomli_w.dumps(read_tuned(name)), end="")


def _print(standings: Standings, sets: Sequence[str], out: Path) -> None:
    from coterie.benchmark.page import page_beside, progress
    from coterie.report.terminal import print_result

    for name in sets:
        if name in standings.sets:
            one = standings.sets[name]
            print_result(name, "", _set_table(one), *(f"{who} did not run: {why}" for who, why in one.failed.items()))
            print_result("")
    if len(standings.sets) > 1:
        print_result(_overall_table(standings), "")
    print_result(" ".join(progress(standings)).replace("**", ""), f"The page is {page_beside(out)}")


def _set_table(standings: SetStandings) -> Table:
    from coterie.benchmark.page import SET_HEADS, set_cells
    from coterie.report.terminal import plain_table

    shown = [place for place, head in enumerate(SET_HEADS) if head in SHOWN]
    table = plain_table(*(SET_HEADS[place] for place in shown), right=range(1, len(shown)))
    for entry in standings.entries.values():
        cells = set_cells(entry)
        table.add_row(*(cells[place] for place in shown))
    return table


SHOWN = (
    "contestant",
    "score",
    "received",
    "worst tenth",
    "gain over alone",
    "harmed, %",
    "newcomers",
    "steps",
    "bytes",
)
"""The columns that a terminal shows."""


def _overall_table(standings: Standings) -> Table:
    from coterie.benchmark.page import OVERALL_HEADS, overall_cells
    from coterie.report.terminal import plain_table

    table = plain_table(*OVERALL_HEADS, right=range(1, len(OVERALL_HEADS)))
    for row in standings.overall:
        table.add_row(*overall_cells(row))
    return table
