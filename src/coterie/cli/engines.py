"""`coterie engines`: which engines there are, or which one a command line would get, and why."""

from __future__ import annotations

import json as json_format
from typing import Annotated

from cyclopts import Parameter

from coterie.cli.options import AsJson, ConfigFile, GivenSettings, Seed, Sets


def engines(
    method: Annotated[str | None, Parameter(help="The method of a run; none: list the engines.")] = None,
    /,
    *,
    set: Sets = None,
    config: ConfigFile = None,
    json: AsJson = False,
    settings: GivenSettings = GivenSettings(),
    seed: Seed = None,
) -> None:
    """List the engines, or show which one a run with these options would get, and what was measured."""
    from rich.text import Text

    from coterie.cli.experiments import one_experiment
    from coterie.cli.listing import first_line
    from coterie.engines import ENGINES
    from coterie.report.terminal import plain_table, print_result
    from coterie.setup.engine_choice import Measurements, choose, workload_of

    given = settings.given(seed=seed)
    if method is None and config is None and not given:
        table = plain_table("engine", "what it is")
        for name, engine in ENGINES.items():
            table.add_row(*map(Text, (name, first_line(engine))))
        print_result(table, "", "coterie engines METHOD … shows which one a run with these options would get.")
        return
    prepared = one_experiment(method or "fedavg", config, given, set or []).prepare()
    choice = choose(prepared)
    times = [measurement.when for measurement in Measurements(choice.workload or workload_of(prepared)).recent()]
    if json:
        about = {
            "engine": choice.way.engine,
            "threads": choice.way.threads,
            "memory": choice.way.memory,
            "why": choice.why,
            "measured_at": times,
            "seconds_a_round": {str(way): seconds for way, seconds in choice.seconds},
        }
        print(json_format.dumps(about, indent=2))
        return
    would_get = f"A run would get: {choice.way}"
    if not choice.seconds:
        print_result(would_get, f"Why: {choice.why}")
        return
    table = plain_table("engine", "threads", "memory", "s a round", "of the best", right=(1, 3, 4))
    best = choice.seconds[0][1]
    for way, seconds in choice.seconds:
        words = (way.engine, str(way.threads), way.memory.replace("_", "-"))
        table.add_row(*map(Text, (*words, f"{seconds:.3g}", f"{seconds / best:.2f}")))
    measured = f"{len(times)} time{'s' if len(times) != 1 else ''} in the last day"
    print_result(table, "", would_get, f"Measured {measured}; a run with this workload counts the last three.")
