"""What `coterie engines` does: which engines there are, or which one a command line would get, and why."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from coterie.cli.listing import first_line
from coterie.cli.merge import one_experiment
from coterie.engines import ENGINES
from coterie.report.terminal import plain_table, print_result
from coterie.setup.config import Config
from coterie.setup.engine_choice import Choice, Measurements, choose, workload_of


def engines_command(method: str | None, file: Path | None, given: Config, sets: Sequence[str], json: bool) -> None:
    """Print the engines, or what would be chosen for an experiment."""
    if method is None and file is None and not given:
        table = plain_table("engine", "what it is")
        for name, engine in ENGINES.items():
            table.add_row(*map(Text, (name, first_line(engine))))
        print_result(table, "", "coterie engines METHOD … shows which one a run with these options would get.")
        return
    prepared = one_experiment(method or "fedavg", file, given, sets).prepare()
    choice = choose(prepared)
    times = [one.when for one in Measurements(choice.workload or workload_of(prepared)).recent()]
    if json:
        print(json_format.dumps(_plain(choice, times), indent=2))
        return
    told = [f"A run would get: {choice.way}", f"Why: {choice.why}" if not choice.seconds else ""]
    if not choice.seconds:
        print_result(*filter(None, told))
        return
    table = plain_table("engine", "threads", "memory", "s a round", "of the best", right=(1, 3, 4))
    best = choice.seconds[0][1]
    for way, seconds in choice.seconds:
        words = (way.engine, str(way.threads), way.memory.replace("_", "-"))
        table.add_row(*map(Text, (*words, f"{seconds:.3g}", f"{seconds / best:.2f}")))
    measured = f"{len(times)} time{'s' if len(times) != 1 else ''} in the last day"
    print_result(table, "", told[0], f"Measured {measured}; a run with this workload counts the last three.")


def _plain(choice: Choice, times: Sequence[float]) -> dict[str, object]:
    return {
        "engine": choice.way.engine,
        "threads": choice.way.threads,
        "memory": choice.way.memory,
        "why": choice.why,
        "measured_at": list(times),
        "seconds_a_round": {str(way): seconds for way, seconds in choice.seconds},
    }
