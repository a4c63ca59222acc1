"""Commands that train: their arguments, and nothing else. What they need is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.app import TRAIN, app
from coterie.cli.arguments import (
    OUTPUT,
    AsJson,
    Cluster,
    Columns,
    ConfigFile,
    Jobs,
    Listeners,
    Seed,
    Seeds,
    Sets,
    Texts,
)
from coterie.cli.settings import RUNNING, GivenSettings, option, read_numbers


@app.command(group=TRAIN)
def run(
    method: Annotated[str | None, Parameter(help="The method (see 'coterie methods').", show_default=False)] = None,
    /,
    *,
    set: Sets = None,
    config: ConfigFile = None,
    out: Annotated[
        Path | None,
        Parameter(
            help="The directory to keep the run in; it must be new.", show_default="runs/METHOD-DATA-N", group=OUTPUT
        ),
    ] = None,
    listener: Listeners = None,
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),  # noqa: B008 (frozen)
    seed: Seed = None,
) -> None:
    """Run one method and keep everything about the run in a directory."""
    from coterie.cli.commands import run_command

    given = settings.given() | ({} if seed is None else {"seed": seed})
    run_command(method, config, given, set or [], out, json, listener or [])


@app.command(group=TRAIN)
def compare(
    *methods: Annotated[
        str,
        Parameter(
            help="The methods to compare (see 'coterie methods'); NAME:OPTION=VALUE,OPTION=VALUE is one with options "
            "or settings of its own."
        ),
    ],
    seeds: Annotated[
        list[int] | None,
        Parameter(
            help="Every method runs once with each seed, all on the seed's partition.",
            show_default="0 1 2",
            consume_multiple=True,
            negative=(),
            converter=read_numbers,
            group=OUTPUT,
        ),
    ] = None,
    set: Annotated[
        list[str] | None,
        Parameter(
            help="An option for all methods that have it (NAME=VALUE) or for one (METHOD.NAME=VALUE); may be repeated.",
            negative=(),
            group=OUTPUT,
        ),
    ] = None,
    config: ConfigFile = None,
    out: Annotated[
        Path | None,
        Parameter(
            help="The directory to keep all runs and comparison.json in; one of these methods is carried on and "
            "extended.",
            show_default="nothing is kept",
            group=OUTPUT,
        ),
    ] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    columns: Columns = None,
    tune: Annotated[
        list[str] | None,
        Parameter(
            help="Settings to try for every method before, NAME=VALUE,VALUE; validation chooses. May be repeated.",
            negative=(),
            group=OUTPUT,
        ),
    ] = None,
    listener: Listeners = None,
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),  # noqa: B008 (frozen)
) -> None:
    """Run several methods on the same partitions with several seeds; print mean ± spread in a table."""
    from coterie.cli.commands import compare_command

    chosen = [0, 1, 2] if seeds is None else seeds
    given, sets, heard = settings.given(), set or [], listener or []
    how = out, jobs or 0, json, columns or [], tune or [], heard, cluster or ""
    compare_command(methods, chosen, config, given, sets, *how)


@app.command(group=TRAIN)
def sweep(
    method: Annotated[str, Parameter(help="The method; NAME:OPTION=VALUE is one with options of its own.")],
    /,
    *,
    grid: Annotated[
        list[str] | None,
        Parameter(
            help="An option of the method or a setting, with values to try: NAME=VALUE,VALUE or NAME=LOW..HIGH; may be "
            "repeated.",
            negative=(),
            group=OUTPUT,
        ),
    ] = None,
    random: Annotated[
        int | None, option("Try only so many combinations, drawn by chance.", "all of them", OUTPUT)
    ] = None,
    optuna: Annotated[
        int | None, option("Try this many settings, each proposed by Optuna from the results so far.", "none", OUTPUT)
    ] = None,
    full: Annotated[
        bool, Parameter(help="Run all of them to the end; none is given up early.", negative=(), group=OUTPUT)
    ] = False,
    seeds: Seeds = None,
    set: Sets = None,
    config: ConfigFile = None,
    out: Annotated[
        Path | None,
        Parameter(
            help="The directory to keep all runs and best.toml in; one that was begun is carried on.",
            show_default="runs/sweep-METHOD-DATA-N",
            group=OUTPUT,
        ),
    ] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    listener: Listeners = None,
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),  # noqa: B008 (frozen)
) -> None:
    """Try settings of a method and choose by validation alone; hopeless ones are given up early."""
    from coterie.cli.sweep import sweep_command

    chosen = [0] if seeds is None else seeds
    given, sets = settings.given(), set or []
    how = out, jobs or 0, full, json, listener or [], cluster or ""
    sweep_command(method, grid or [], random, optuna, chosen, config, given, sets, *how)


@app.command(group=TRAIN)
def resume(
    run: Annotated[Path, Parameter(help="The directory of a run that was stopped, or that is to have more rounds.")],
    /,
    *,
    rounds: Annotated[int | None, option("Go on until there are so many rounds in all.", "as planned", RUNNING)] = None,
    engine: Annotated[
        str | None, option("Go on without a Ray cluster ('processes'), which computes the same.", "as begun", RUNNING)
    ] = None,
    listener: Listeners = None,
    json: AsJson = False,
) -> None:
    """Carry a stopped run on from its last checkpoint; it ends as if it had never been stopped."""
    from coterie.cli.commands import resume_command

    resume_command(run, rounds, json, listener or [], engine or "")


@app.command(group=TRAIN)
def reproduce(
    *tables: Annotated[str, Parameter(help="The tables to rebuild; none: list them.", show_default=False)],
    columns: Texts = None,
    methods: Texts = None,
    seeds: Seeds = None,
    rounds: Annotated[int | None, option("Fewer rounds than the paper's.", "the paper's", RUNNING)] = None,
    share: Annotated[float | None, option("Only this share of the data.", 1.0, RUNNING)] = None,
    data: Annotated[
        str | None, option("In the manner of the paper, on another data set.", "the paper's", RUNNING)
    ] = None,
    hours: Annotated[
        float | None, option("Run what fits into so many hours, the most informative first.", "all", RUNNING)
    ] = None,
    jobs: Annotated[int | None, option("Cells at the same time.", "one per core", RUNNING)] = None,
    cluster: Cluster = None,
    cells: Annotated[Path, Parameter(help="Where the runs are kept; they are carried on there.", group=OUTPUT)] = Path(
        "runs/cells"
    ),
    results: Annotated[Path, Parameter(help="Where the rebuilt tables are written.", group=OUTPUT)] = Path("results"),
    check: Annotated[
        bool,
        Parameter(help="Check results against the tables, and repeat a first round.", negative=(), group=OUTPUT),
    ] = False,
) -> None:
    """Rebuild result tables of the five papers, paper beside ours; what has run before is not run again."""
    from coterie.cli.reproduce import check_command, list_command, reproduce_command
    from coterie.reproduce.cells import Amount

    if check:
        check_command(results)
    elif not tables:
        list_command(results)
    else:
        amount = Amount(rounds, 1.0 if share is None else share, data or "")
        chosen = columns or [], methods or [], [0] if seeds is None else seeds
        reproduce_command(tables, *chosen, amount, hours, jobs or 0, cells, results, cluster or "")
