"""`coterie show`: a run, its clients, and who learned from whom."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.cli.commands import print_comparison
from coterie.cli.sweep import show_sweep
from coterie.compare.sweep import SWEEP
from coterie.compare.table import COMPARISON, Comparison
from coterie.core.exchange import Applied
from coterie.errors import require, said
from coterie.report.terminal import clients_table, metric_table, print_result, summary_lines
from coterie.runs.opened import OpenedRun, open_run

SOURCES_SHOWN = 5
CLIENTS_SHOWN = 20
MOST_LISTED = 200


def show_command(path: Path, round: int | None, everyone: bool, json: bool) -> None:
    """Print a run, whether or not it has ended, a comparison or a search."""
    if (path / COMPARISON).is_file():
        require(round is None, f"round = {round}: '{path}' is a comparison; name one of its runs")
        print_comparison(Comparison.load(path), None, json)
        return
    if (path / SWEEP).is_file():
        require(round is None, f"round = {round}: '{path}' is a search; name one of its runs")
        show_sweep(path, json)
        return
    run = open_run(path)
    summary = run.summary
    way_on = []
    if summary is None:
        where = f"round {run.done} of {run.config['rounds']}"
        way_on = [f"unfinished, {where}; {said('coterie', 'resume', path)} carries it on if nobody is at it", ""]
        summary = {**run.summary_so_far(), "unfinished": where}
    if json:
        print(json_format.dumps(summary, indent=2))
        return
    config = run.config
    options = ", ".join(f"{name}={value}" for name, value in config["set"].items())
    method = config["method"] + (f" ({options})" if options else "")
    names = [client["client"] for client in summary["clients"]]
    title = f"{method} on {config['data']}, {len(names)} clients, model {config['model']}, seed {config['seed']}"
    shown = len(names) if everyone else MOST_LISTED
    more = [f"… and {len(names) - shown:,} more clients (--all shows them)"] if shown < len(names) else []
    learning = list(_learning(run, names, round, everyone))  # what cannot be read is said before anything is printed
    print_result(title, "", *way_on, metric_table(summary), "", *summary_lines(summary), "")
    print_result(clients_table(summary, shown), *more, "", *learning)


def _learning(run: OpenedRun, names: Sequence[str], round: int | None, everyone: bool) -> Iterator[str]:
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
