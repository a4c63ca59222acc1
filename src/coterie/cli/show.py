"""`coterie show`: a finished run, its clients, and who learned from whom."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.cli.commands import print_comparison
from coterie.compare.table import COMPARISON, Comparison
from coterie.core.exchange import Applied
from coterie.errors import CoterieError
from coterie.experiment.config import Config
from coterie.experiment.directory import RunDirectory
from coterie.report.terminal import clients_table, metric_table, print_result, summary_lines

SOURCES_SHOWN = 5
CLIENTS_SHOWN = 20


def show_command(path: Path, everyone: bool, json: bool) -> None:
    """Print a finished or stopped run, or a comparison."""
    if (path / COMPARISON).is_file():
        print_comparison(Comparison.load(path), None, json)
        return
    run = RunDirectory.open(path)
    config = run.config()
    if not run.finished and not run.stopped:
        done = len(run.lines())
        raise CoterieError(
            f"run = {path}: is not finished (round {done} of {config['rounds']}); 'coterie resume {path}' carries it on"
        )
    text = run.summary_text()
    if json:
        print(text, end="")
        return
    summary = json_format.loads(text)
    options = ", ".join(f"{name}={value}" for name, value in config["set"].items())
    method = config["method"] + (f" ({options})" if options else "")
    names = [client["client"] for client in summary["clients"]]
    title = f"{method} on {config['data']}, {len(names)} clients, model {config['model']}, seed {config['seed']}"
    print_result(title, "", metric_table(summary), "", *summary_lines(summary), "", clients_table(summary), "")
    print_result(*_learning(run, config, names, everyone))


def _learning(run: RunDirectory, config: Config, names: Sequence[str], everyone: bool) -> Iterator[str]:
    recorded = run.recorded_rounds()
    if not recorded:
        reason = (
            "it was not recorded (record_every = 0)" if config["record_every"] == 0 else "nobody learned from others"
        )
        yield f"Who learns from whom: {reason}"
        return
    yield f"Who learns from whom (round {recorded[-1]}):"
    for mix in run.mixes(recorded[-1]):
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
            shown.append(f"{len(rest)} others ({sum(weight for weight, _ in rest):.1%})")
        yield f"  {learner} from {', '.join(shown)}"
    if len(learners) > limit:
        yield f"  … and {len(learners) - limit} more clients (--all shows them)"
