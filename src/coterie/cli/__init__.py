"""The command `coterie`. Commands import what they need when they run: `coterie --help` loads no PyTorch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter

from coterie.cli.arguments import OUTPUT, AsJson, Columns, ConfigFile, Jobs, Seed, Seeds, Sets, Texts
from coterie.cli.exporting import export, pack
from coterie.cli.federation import federation
from coterie.cli.lists import datasets, methods, models, partitions, protocols
from coterie.cli.problems import FailureError, InterruptionError, one_line
from coterie.cli.settings import RUNNING, GivenSettings, option, read_values
from coterie.errors import CoterieError
from coterie.version import VERSION

TRAIN = Group("Train", sort_key=1)
LOOK = Group("Look up", sort_key=2)
FEDERATE = Group("Federate over a network", sort_key=3)
ABOUT = Group("About", sort_key=4)

app = App(
    name="coterie",
    help="Personalised federated learning: every client gets its own model and learns from those that resemble it.",
    version=VERSION,
    suppress_keyboard_interrupt=False,
)
app["--help"].group = ABOUT
app["--version"].group = ABOUT
federation.group = (FEDERATE,)
app.command(federation)


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
    listener: Annotated[
        list[str] | None,
        Parameter(
            help="A listener of your own, such as ./my.py:EarlyStop; may be repeated.", negative=(), group=OUTPUT
        ),
    ] = None,
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
            converter=read_values,
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
    columns: Columns = None,
    tune: Annotated[
        list[str] | None,
        Parameter(
            help="Settings to try for every method before, NAME=VALUE,VALUE; validation chooses. May be repeated.",
            negative=(),
            group=OUTPUT,
        ),
    ] = None,
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),  # noqa: B008 (frozen)
) -> None:
    """Run several methods on the same partitions with several seeds; print mean ± spread in a table."""
    from coterie.cli.commands import compare_command

    chosen = [0, 1, 2] if seeds is None else seeds
    compare_command(
        methods, chosen, config, settings.given(), set or [], out, jobs or 0, json, columns or [], tune or []
    )


@app.command(group=TRAIN)
def sweep(
    method: Annotated[str, Parameter(help="The method; NAME:OPTION=VALUE is one with options of its own.")],
    /,
    *,
    grid: Annotated[
        list[str] | None,
        Parameter(
            help="An option of the method or a setting, with values to try: NAME=VALUE,VALUE; may be repeated.",
            negative=(),
            group=OUTPUT,
        ),
    ] = None,
    random: Annotated[
        int | None, option("Try only so many combinations, drawn by chance.", "all of them", OUTPUT)
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
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),  # noqa: B008 (frozen)
) -> None:
    """Try settings of a method and choose by validation alone; hopeless ones are given up early."""
    from coterie.cli.sweep import sweep_command

    chosen = [0] if seeds is None else seeds
    given, sets = settings.given(), set or []
    sweep_command(method, grid or [], random, chosen, config, given, sets, out, jobs or 0, full, json)


@app.command(group=TRAIN)
def resume(
    run: Annotated[Path, Parameter(help="The directory of a run that was stopped, or that is to have more rounds.")],
    /,
    *,
    rounds: Annotated[int | None, option("Go on until there are so many rounds in all.", "as planned", RUNNING)] = None,
    json: AsJson = False,
) -> None:
    """Carry a stopped run on from its last checkpoint; it ends as if it had never been stopped."""
    from coterie.cli.commands import resume_command

    resume_command(run, rounds, json)


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
        reproduce_command(tables, *chosen, amount, hours, jobs or 0, cells, results)


@app.command(group=LOOK)
def check(
    method: Annotated[str, Parameter(help="A method by name, or in a file of your own: ./my.py:FedAvgM.")],
    /,
    *,
    only: Annotated[
        list[str] | None,
        Parameter(help="Run this check alone; may be repeated.", negative=(), show_default="all", group=OUTPUT),
    ] = None,
    set: Sets = None,
) -> None:
    """Check that a method keeps what all methods promise: resuming, relabelling, travel, bytes, engines and more."""
    from coterie.cli.check import check_command

    check_command(method, only or [], set or [])


@app.command(group=LOOK)
def show(
    run: Annotated[Path, Parameter(help="The directory of a run, ended or not, or of a comparison.")],
    /,
    *,
    round: Annotated[int | None, option("The round to say of who learned from whom.", "the last", OUTPUT)] = None,
    all: Annotated[
        bool,
        Parameter(help="Say of every client who it learns from, not just of the first.", negative=(), group=OUTPUT),
    ] = False,
    json: AsJson = False,
) -> None:
    """Print the summary of a run, its clients, and who learned from whom; or a comparison's table."""
    from coterie.cli.show import show_command

    show_command(run, round, all, json)


@app.command(group=LOOK)
def runs(
    folder: Annotated[Path, Parameter(help="The folder to look in, and below.")] = Path("runs"),
    /,
    *,
    json: AsJson = False,
) -> None:
    """List the runs below a folder: method, data, rounds, status, score, date."""
    from coterie.cli.runs import runs_command

    runs_command(folder, json)


@app.command(group=LOOK)
def table(
    *runs: Annotated[Path, Parameter(help="Directories of runs, or folders with some.")],
    format: Annotated[str, Parameter(help="text, md, latex or csv.", group=OUTPUT)] = "text",
    columns: Columns = None,
) -> None:
    """Print a table of any runs that are kept, by run, compare or reproduce; a row for each configuration."""
    from coterie.cli.table import table_command

    table_command(runs, format, columns or [])


@app.command(group=LOOK)
def picture(
    run: Annotated[Path, Parameter(help="The directory of a run.")],
    /,
    *,
    round: Annotated[
        int | None,
        option("The round to draw.", "the last in which clients chose whom to learn from", OUTPUT),
    ] = None,
    out: Annotated[
        Path | None,
        Parameter(help="The .png, .pdf or .svg file to write.", show_default="RUN/picture-round-N.png", group=OUTPUT),
    ] = None,
) -> None:
    """Draw who learned from whom in a round of a run, as a heat map (needs the extra 'plots')."""
    from coterie.cli.picture import picture_command

    picture_command(run, round, out)


@app.command(group=LOOK)
def report(
    *runs: Annotated[Path, Parameter(help="Directories of runs, finished or not; or of a comparison.")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="The .html file to write.", group=OUTPUT)] = Path(
        "report.html"
    ),
    figures: Annotated[
        Path | None,
        Parameter(
            help="A folder for every figure as .svg, .pdf and .png (needs the extra 'plots').",
            show_default="none",
            group=OUTPUT,
        ),
    ] = None,
) -> None:
    """Write one run or several as an HTML page that opens offline: curves, clients, who learns from whom, costs."""
    from coterie.cli.report import report_command

    report_command(runs, out, figures)


@app.command(group=LOOK)
def predict(
    model: Annotated[
        Path, Parameter(help="A client's or site's model ('coterie export', 'coterie federation model' write it).")
    ],
    data: Annotated[Path, Parameter(help="New data: .npz, .csv, .parquet, or a folder of images.")],
    /,
    *,
    label: Annotated[str, Parameter(help="The column of a table that holds labels, if any.", group=OUTPUT)] = "label",
    out: Annotated[
        Path | None,
        Parameter(help="The .csv file to write.", show_default="a table is printed", group=OUTPUT),
    ] = None,
) -> None:
    """Print what a site's model predicts for new data, and how often that is right if labels are known."""
    from coterie.cli.predict import predict_command

    predict_command(model, data, label, out)


for _command in (export, pack, methods, protocols, datasets, models, partitions):
    app.command(_command, group=LOOK)


@app.command(group=ABOUT)
def version() -> None:
    """Print the version."""
    print(VERSION)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (this process's, by default) and return its exit code."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone; nothing more can be written there, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CoterieError, CycloptsError, OSError) as error:
        print(f"coterie: error: {one_line(error)}", file=sys.stderr)
        return 2
    except FailureError as error:
        print(f"coterie: {error}", file=sys.stderr)
        return 1
    except InterruptionError as stop:
        print(f"coterie: {stop}", file=sys.stderr)
        return stop.code
    except KeyboardInterrupt:
        print("coterie: interrupted", file=sys.stderr)
        return 130
    return 0
