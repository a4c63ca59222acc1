"""`coterie runs`, `show`, `table`, `pack`: the runs below a folder, one of them, tables of any, some in a file."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from coterie.cli.compare import print_comparison
from coterie.cli.options import OUTPUT, AsJson, Columns, flag, listed, option
from coterie.cli.sweep import show_sweep
from coterie.errors import CoterieError, require, said, unknown

if TYPE_CHECKING:
    from coterie.compare.grid import Grid
    from coterie.compare.kept import KeptTable
    from coterie.core.exchange import Applied
    from coterie.runs.run import Run

SOURCES_SHOWN = 5
CLIENTS_SHOWN = 20
MOST_LISTED = 200
FORMATS = ("text", "md", "latex", "csv")


def runs(
    folder: Annotated[Path, Parameter(help="The folder to look in, and below.")] = Path("runs"),
    /,
    *,
    json: AsJson = False,
) -> None:
    """List the runs below a folder: method, data, rounds, status, score, date."""
    from coterie.core.numbers import number_text
    from coterie.report.terminal import plain_table, print_result

    require(folder.exists(), f"folder = {folder}: there is no such folder")
    listed = list(runs_below(folder))
    if json:
        print(json_format.dumps(listed, indent=2))
        return
    require(bool(listed), f"folder = {folder}: holds no runs")
    titles = ("run", "method", "data", "rounds", "status", "judged by", "received, last", "begun (UTC)")
    table = plain_table(*titles, right=(3, 6))
    for run in listed:
        if run["problem"]:
            table.add_row(run["run"], "", "", "", run["problem"], "", "", "")
            continue
        rounds, begun = f"{run['done']}/{run['planned']}", run["begun"].replace("T", " ").removesuffix("Z")
        score = number_text(run["received"])
        table.add_row(run["run"], run["method"], run["data"], rounds, run["status"], run["judged_by"], score, begun)
    print_result(table)


def runs_below(folder: Path) -> Iterator[dict[str, Any]]:
    """The runs below a folder as plain values, in the order of their paths; of others than this version reads, why."""
    from coterie.runs.reader import record_of
    from coterie.runs.run import Run

    for path in _paths(folder):
        name = str(path.relative_to(folder))
        try:
            yield {"run": name, "problem": None, **_described(Run(record_of(path)))}
        except CoterieError as error:
            yield {"run": name, "problem": str(error).removeprefix(f"run = {path}: ")}


def _paths(folder: Path) -> list[Path]:
    from coterie.runs.store import CONFIG, ROUNDS, runs_in

    if folder.is_file():
        return [folder / name for name in runs_in(folder)]
    # A configuration without rounds is somebody's that is not a run's.
    return sorted(file.parent for file in folder.rglob(CONFIG) if (file.parent / ROUNDS).is_file())


def _described(run: Run) -> dict[str, Any]:
    from coterie.registry import short_name

    received = run.newest("received")
    sessions = run.about.sessions
    return {
        "method": short_name(run.config["method"]),
        "data": run.about.data.name,
        "done": run.done,
        "planned": run.config["rounds"],
        "status": run.status,
        "judged_by": run.judged_by,
        "received": None if received is None else received.mean,
        "begun": sessions[0].begun if sessions else "",
    }


def show(
    run: Annotated[Path, Parameter(help="The directory of a run, ended or not, or of a comparison.")],
    /,
    *,
    round: Annotated[int | None, option("The round to say of who learned from whom.", "the last", OUTPUT)] = None,
    all: Annotated[bool, flag("Say of every client who it learns from, not just of the first.", OUTPUT)] = False,
    json: AsJson = False,
) -> None:
    """Print the summary of a run, its clients, and who learned from whom; or a comparison's table."""
    from coterie.compare.sweep import SWEEP
    from coterie.compare.table import COMPARISON, Comparison
    from coterie.report.terminal import clients_table, metric_table, print_result, summary_lines
    from coterie.runs.run import open_run

    if (run / COMPARISON).is_file():
        require(round is None, f"round = {round}: '{run}' is a comparison; name one of its runs")
        print_comparison(Comparison.load(run), None, json)
        return
    if (run / SWEEP).is_file():
        require(round is None, f"round = {round}: '{run}' is a search; name one of its runs")
        show_sweep(run, json)
        return
    opened = open_run(run)
    summary = opened.summary
    unfinished: list[str] = []
    if opened.status == "unfinished":
        where = f"round {opened.done} of {opened.config['rounds']}"
        unfinished = [f"unfinished, {where}; {said('coterie', 'resume', run)} carries it on if nobody is at it", ""]
        summary = {**summary, "unfinished": where}
    if json:
        print(json_format.dumps(summary, indent=2))
        return
    config = opened.config
    options = ", ".join(f"{name}={value}" for name, value in config["set"].items())
    method = config["method"] + (f" ({options})" if options else "")
    names = [client["client"] for client in summary["clients"]]
    title = f"{method} on {config['data']}, {len(names)} clients, model {config['model']}, seed {config['seed']}"
    shown = len(names) if all else MOST_LISTED
    more = [f"… and {len(names) - shown:,} more clients (--all shows them)"] if shown < len(names) else []
    learning = list(_learning(opened, names, round, all))  # what cannot be read is said before anything is printed
    print_result(title, "", *unfinished, metric_table(summary), "", *summary_lines(summary), "")
    print_result(clients_table(summary, shown), *more, "", *learning)


def _learning(run: Run, names: Sequence[str], round: int | None, everyone: bool) -> Iterator[str]:
    if round is None and not run.rounds:
        never = run.config["record_every"] == 0
        reason = "it was not recorded (record_every = 0)" if never else "nobody learned from others"
        yield f"Who learns from whom: {reason}"
        return
    chosen = run.rounds[-1] if round is None else round
    yield f"Who learns from whom (round {chosen}):"
    for mix in run.mixes(chosen):
        yield from who_learns_from_whom(mix, names, len(names) if everyone else CLIENTS_SHOWN)


def who_learns_from_whom(mix: Applied, names: Sequence[str], limit: int) -> Iterator[str]:
    """A mix in words: for each client that learned, from whom and how much.

    >>> import torch
    >>> from coterie.core.exchange import Applied
    >>> weights, learners, sources = torch.tensor([[0.75, 0.25]]), torch.tensor([1]), torch.tensor([0, 1])
    >>> mix = Applied(weights, "extractor", "model", gated=False, rows=learners, columns=sources)
    >>> print("\\n".join(who_learns_from_whom(mix, ["ward A", "ward B"], limit=9)))
    extractor, into model:
      ward B from ward A (75.0%), ward B (25.0%)
    """
    gated = ", some elements only" if mix.gated else ""
    yield f"{mix.group}, into {mix.target}{gated}:"
    learners = [names[client] for client in mix.rows.tolist()] or ["everybody alike"]
    for learner, weights in zip(learners[:limit], mix.weights.tolist(), strict=False):
        shares = sorted(zip(weights, mix.columns.tolist(), strict=True), key=lambda share: (-share[0], share[1]))
        shares = [share for share in shares if share[0] > 0]
        shown = [f"{names[source]} ({weight:.1%})" for weight, source in shares[:SOURCES_SHOWN]]
        rest = shares[SOURCES_SHOWN:]
        if rest:
            others = "1 other" if len(rest) == 1 else f"{len(rest)} others"
            shown.append(f"{others} ({sum(weight for weight, _ in rest):.1%})")
        yield f"  {learner} from {', '.join(shown)}"
    if len(learners) > limit:
        yield f"  … and {len(learners) - limit} more clients (--all shows them)"


def table(
    *runs: Annotated[Path, Parameter(help="Directories of runs, folders with some, or a .zip of runs.")],
    format: Annotated[str, Parameter(help="text, md, latex or csv.", group=OUTPUT)] = "text",
    columns: Columns = None,
    methods: Annotated[
        list[str] | None,
        listed("The table's rows, with commas, in this order: methods, or rows as they are called.", "all", OUTPUT),
    ] = None,
) -> None:
    """Print a table of any runs that are kept, by run, compare or reproduce; a row for each configuration."""
    from coterie.compare.grid import Grid
    from coterie.compare.kept import kept_tables, keys_of
    from coterie.report.tables import as_csv
    from coterie.report.terminal import print_result

    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    tables, left_out = kept_tables(runs)
    for line in left_out:
        print(f"coterie: left out: {line}", file=sys.stderr)
    if not tables:
        raise CoterieError("run: none of these runs is whole, so there is no table")
    named = {title: kept.only(methods) if methods else kept for title, kept in keys_of(tables).items()}
    grids = {title: Grid(kept.rows, tuple(columns or [])) for title, kept in named.items()}
    for grid in grids.values():
        _ = grid.columns  # what is misspelt shows before anything is printed
    if len(named) > 1:
        print(f"coterie: {len(named)} tables, since data or partition differ", file=sys.stderr)
    if format == "csv":
        print(as_csv(grids))
        return
    for place, (title, grid) in enumerate(grids.items()):
        if place:
            print_result("")
        _print_table(title, grid, named[title], format)


def _print_table(title: str, grid: Grid, table: KeptTable, format: str) -> None:
    from coterie.compare.remarks import settings_note
    from coterie.report.tables import as_latex, as_markdown, grid_lines, print_grid
    from coterie.report.terminal import print_result

    others = f"Not shown: {', '.join(table.left_out)}." if table.left_out else ""
    different = " ".join(filter(None, (settings_note(table.configs), others)))
    if format == "text":
        print_result(title, "")
        print_grid(grid, different)
        return
    notes = [*grid_lines(grid, "Bold:"), *([different] if different else [])]
    # Other programs read these: their lines are not for a terminal to break.
    if format == "md":
        print(f"**{title}**", "", as_markdown(grid), "", *notes, sep="\n")
    else:
        print(f"% {title}", as_latex(grid), *(f"% {note}" for note in notes), sep="\n")


def pack(
    *runs: Annotated[Path, Parameter(help="The directories of the runs.")],
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="The .zip file to write; it must be new.", group=OUTPUT)],
    models: Annotated[bool, flag("Pack the clients' models too.", OUTPUT)] = False,
) -> None:
    """Put runs into one file, to be looked at elsewhere: numbers, partition and who learned from whom."""
    from coterie.core.numbers import spoken_bytes
    from coterie.report.terminal import print_result
    from coterie.runs.store import pack

    names = pack(runs, out, models)
    what = "with their models" if models else "without models"
    print_result(f"{', '.join(names)}: {what}, {spoken_bytes(out.stat().st_size)}, in {out}")
