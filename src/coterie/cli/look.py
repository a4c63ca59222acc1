"""Commands that look something up: their arguments, and nothing else. What they need is imported when they run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.app import ABOUT, LOOK, app
from coterie.cli.arguments import OUTPUT, AsJson, Columns, ConfigFile, Seed, Sets
from coterie.cli.settings import GivenSettings, option
from coterie.version import VERSION


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
def engines(
    method: Annotated[str | None, Parameter(help="The method of a run; none: list the engines.")] = None,
    /,
    *,
    set: Sets = None,
    config: ConfigFile = None,
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),  # noqa: B008 (frozen)
    seed: Seed = None,
) -> None:
    """List the engines, or show which one a run with these options would get, and what was measured."""
    from coterie.cli.engines import engines_command

    engines_command(method, config, settings.given() | ({} if seed is None else {"seed": seed}), set or [], json)


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
    *runs: Annotated[Path, Parameter(help="Directories of runs, folders with some, or a .zip of runs.")],
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
    *runs: Annotated[
        Path, Parameter(help="Directories of runs, finished or not, of a comparison or a sweep; or a .zip of runs.")
    ],
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
def export(
    run: Annotated[Path, Parameter(help="The directory of a run.")],
    /,
    *,
    client: Annotated[int, Parameter(help="The client whose model is wanted: 0 is the first.", group=OUTPUT)],
    format: Annotated[
        str, Parameter(help="safetensors, pt2 (torch.export) or onnx; 'coterie predict' takes all.", group=OUTPUT)
    ] = "safetensors",
    out: Annotated[
        Path | None,
        Parameter(help="The file to write; it must be new.", show_default="RUN-client-N.FORMAT", group=OUTPUT),
    ] = None,
) -> None:
    """Write the model that a client has got from a run as one file."""
    from coterie.cli.export import export_command

    export_command(run, client, format, out)


@app.command(group=LOOK)
def pack(
    *runs: Annotated[Path, Parameter(help="The directories of the runs.")],
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="The .zip file to write; it must be new.", group=OUTPUT)],
    models: Annotated[bool, Parameter(help="Pack the clients' models too.", negative=(), group=OUTPUT)] = False,
) -> None:
    """Put runs into one file, to be looked at elsewhere: numbers, partition and who learned from whom."""
    from coterie.cli.pack import pack_command

    pack_command(runs, out, models)


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
    all: Annotated[
        bool,
        Parameter(
            help="Of data that the model was trained on, predict all samples, not just those held out.",
            negative=(),
            group=OUTPUT,
        ),
    ] = False,
) -> None:
    """Print what a site's model predicts for new data, and how often that is right if labels are known."""
    from coterie.cli.predict import predict_command

    predict_command(model, data, label, out, all)


def _list(kind: str) -> None:
    from coterie.cli.listing import listing, problems
    from coterie.report.terminal import print_result

    print_result(listing(kind))
    for problem in problems(kind):
        print(f"coterie: warning: {problem}", file=sys.stderr)


@app.command(group=LOOK)
def methods(
    name: Annotated[str | None, Parameter(help="A method to tell all about.", show_default=False)] = None, /
) -> None:
    """List the methods: what is personal, what travels, what it costs, the paper; or all about one method."""
    if name is None:
        _list("methods")
        return
    from coterie.cli.listing import method_details

    print(method_details(name))


@app.command(group=LOOK)
def protocols(
    name: Annotated[str | None, Parameter(help="A protocol to tell all about.", show_default=False)] = None, /
) -> None:
    """List the papers' protocols, for --protocol; or one's settings, with what its paper does not state."""
    if name is None:
        _list("protocols")
        return
    from coterie.cli.listing import protocol_details
    from coterie.report.terminal import print_result

    print_result(*protocol_details(name))


@app.command(group=LOOK)
def datasets() -> None:
    """List the data sets known by name."""
    _list("datasets")


@app.command(group=LOOK)
def models() -> None:
    """List the models."""
    _list("models")


@app.command(group=LOOK)
def partitions() -> None:
    """List the partition rules, with their options and defaults."""
    _list("partitions")


@app.command(group=ABOUT)
def version() -> None:
    """Print the version."""
    print(VERSION)
