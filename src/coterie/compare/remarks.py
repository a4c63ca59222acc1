"""What a reader of a table must know to read it right, a line each, and what runs must share to stand in one table.

Told are other settings, unequal work, unfinished training, equal rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.compare.one_run import Summary
from coterie.core.numbers import Scale
from coterie.options import option_fields
from coterie.runs.history import EFFORT, TUNING
from coterie.setup.config import PLUGINS, Config
from coterie.setup.identity import HOW
from coterie.setup.run_options import RunOptions

# What a run's configuration holds besides settings, and settings that do not change results.
NOT_COMPARED = {"method", "set", "seed", PLUGINS} | HOW
OF_THE_DATA = ("data", "label", "client_column", "task", "scale", "share")
OF_THE_PARTITION = ("partition", "test", "held_out", "partition_seed")
SHARED = {*OF_THE_DATA, *OF_THE_PARTITION}
"""What decides, with the options of the partition rule, who holds which samples: runs that are compared share it."""


def shared_settings(config: Config) -> Config:
    """The part of a configuration that runs share if they can be compared: data, partition, the rule's options.

    >>> shared_settings({"data": "digits", "partition": "iid", "clients": 3, "lr": 0.1, "set": {}})
    {'data': 'digits', 'partition': 'iid', 'clients': 3}
    """
    others = set(option_fields(RunOptions)) - SHARED | {"set", PLUGINS}
    return {key: value for key, value in config.items() if key not in others}


def differing(configs: Mapping[str, Config]) -> dict[str, dict[str, Any]]:
    """The settings that are not the same for all methods: `[setting][method]`; none where one was left out.

    Methods' own options and settings that cannot change results (engine, threads, recording) are no settings here.
    """
    settings = sorted({key for config in configs.values() for key in config} - NOT_COMPARED)
    by_method = {key: {method: config.get(key) for method, config in configs.items()} for key in settings}
    first = next(iter(configs))
    return {
        key: values for key, values in by_method.items() if any(value != values[first] for value in values.values())
    }


def settings_note(configs: Mapping[str, Config]) -> str:
    """Which methods ran with other settings than the others, in words; empty if none did.

    >>> settings_note({"fedavg": {"momentum": 0.9}, "scaffold": {"momentum": 0.0}})
    'Not all methods ran with the same settings: momentum = 0.9 (fedavg), 0.0 (scaffold).'
    """
    spoken = [f"{key} = {_by_value(values)}" for key, values in differing(configs).items()]
    return f"Not all methods ran with the same settings: {'; '.join(spoken)}." if spoken else ""


def clients_remark(config: Config) -> str:
    """That the data themselves say who the clients are, and what is to be done where they are not to; else nothing.

    >>> clients_remark({"data": "natural/exam", "partition": "by_client"})
    'The clients are those that natural/exam names; --partition RULE deals its samples out otherwise.'
    >>> clients_remark({"data": "digits", "partition": "dirichlet"})
    ''
    """
    if config.get("partition") != "by_client":
        return ""
    data = str(config["data"])
    name = Path(data).name if Path(data).is_absolute() else data
    return f"The clients are those that {name} names; --partition RULE deals its samples out otherwise."


def _by_value(values: Mapping[str, Any]) -> str:
    """Which methods have which value; the most, if they are two or more and no others are as many, are the others."""
    takers: dict[str, list[str]] = {}
    for method, value in values.items():
        takers.setdefault("unset" if value is None else str(value), []).append(method)
    first, *rest = sorted(takers.values(), key=len, reverse=True)
    most = first if len(first) > max(map(len, rest)) else None
    few_first = sorted(takers.items(), key=lambda item: item[1] is most)
    return ", ".join(f"{value} ({'the others' if who is most else ', '.join(who)})" for value, who in few_first)


Runs = Mapping[str, Mapping[int, Summary]]
"""Rows by name, each with the summaries of its seeds."""
RISE = 0.005
"""How far the last round must lie above the mean of the last five: half a point, or so much of any other metric."""


def effort_remark(runs: Runs) -> str:
    """Which methods compute more gradients than others, by what these train; empty if none does.

    >>> def told(tuning=None, **steps):
    ...     return {0: {"effort": {"steps": steps, **({"tuning": tuning} if tuning else {})}}}
    >>> effort_remark({"fedavg": told(model=25.0), "local": told(model=25.0), "ditto": told(model=25.0, personal=25.0)})
    'Gradients of a client and round differ: 25 model, 25 personal (ditto); 25 model (the others).'
    >>> effort_remark({"fedavg": told(model=5.0), "fedavg-ft": told(model=5.0, tuning=5.0)})
    'Gradients of a client and round differ: 5 model (fedavg); 5 model, 5 to tune before a test (fedavg-ft).'
    >>> effort_remark({"fedavg": told(model=5.0), "fedper": told(model=5.0), "an old run": {0: {}}})
    ''
    """
    efforts = {row: _mean_effort(seeds.values()) for row, seeds in runs.items()}
    recorded = {row: effort for row, effort in efforts.items() if effort}
    totals = {
        _rounded((sum(steps.values()) - steps.get(TUNING, 0.0), steps.get(TUNING, 0.0))) for steps in recorded.values()
    }
    return f"Gradients of a client and round differ: {_by_effort(recorded)}." if len(totals) > 1 else ""


def effort_text(effort: Mapping[str, Any]) -> str:
    """An effort in words, by what is trained; what tuning before a test takes comes last.

    >>> effort_text({"steps": {"classifier": 2.0, "extractor": 2.5, "blend": 0.0}, "tuning": 5.0})
    '2 classifier, 2.5 extractor, 5 to tune before a test'
    """
    parts = [f"{_plain(count)} {moves}" for moves, count in effort["steps"].items() if count]
    tuning = [f"{_plain(effort[TUNING])} to tune before a test"] if effort.get(TUNING) else []
    return ", ".join([*parts, *tuning]) or "none"


def _mean_effort(summaries: Iterable[Summary]) -> dict[str, float]:
    """Gradients by what they train, the mean over runs, and under `tuning` those of a test; nothing if not told."""
    efforts = [
        {**effort[EFFORT]["steps"], TUNING: effort[EFFORT].get(TUNING, 0.0)} for effort in summaries if EFFORT in effort
    ]
    kinds = dict.fromkeys(kind for effort in efforts for kind in effort)
    return {kind: sum(effort.get(kind, 0.0) for effort in efforts) / len(efforts) for kind in kinds}


def _by_effort(efforts: Mapping[str, Mapping[str, float]]) -> str:
    takers: dict[str, list[str]] = {}
    for row, steps in efforts.items():
        words = effort_text({"steps": {kind: n for kind, n in steps.items() if kind != TUNING}, TUNING: steps[TUNING]})
        takers.setdefault(words, []).append(row)
    ordered = sorted(takers.items(), key=lambda item: len(item[1]))
    crowd = ordered[-1][1] if len(ordered[-1][1]) > len(ordered[-2][1]) and len(ordered[-1][1]) > 1 else None
    return "; ".join(f"{words} ({'the others' if rows is crowd else ', '.join(rows)})" for words, rows in ordered)


def _plain(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")


def _rounded(numbers: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(number, 1) for number in numbers)


def rising_remark(runs: Runs, scale: Scale) -> str:
    """Which methods were still getting better when they ended; empty if none was.

    A method is, if its last round lies above the mean of its last five in every seed, by half a point on average.

    >>> def told(last, five):
    ...     return {0: {"accuracy": {"received": {"mean": {"last": last, "last5": five}}}}}
    >>> rising_remark({"slow": told(0.7, 0.65), "done": told(0.7, 0.699)}, Scale("accuracy", share=True))
    'Still rising at the end (last round against the last five): slow (received +5.0).'
    """
    rising = [f"{row} ({', '.join(moments)})" for row in sorted(runs) if (moments := _rises(runs[row], scale))]
    return f"Still rising at the end (last round against the last five): {', '.join(rising)}." if rising else ""


def _rises(seeds: Mapping[int, Summary], scale: Scale) -> list[str]:
    """At which moments a method rises, and by how much."""
    moments: list[str] = []
    for moment in ("received", "trained"):
        means = [summary.get(scale.name, {}).get(moment, {}).get("mean", {}) for summary in seeds.values()]
        pairs = [(mean.get("last"), mean.get("last5")) for mean in means]
        if not pairs or any(last is None or five is None for last, five in pairs):
            continue
        ahead = 1 if scale.higher_is_better else -1
        unit = 1.0 if scale.share else max(abs(last) for last, _ in pairs) or 1.0
        rises = [ahead * (last - five) / unit for last, five in pairs]
        mean = sum(rises) / len(rises)
        if min(rises) > 0 and mean >= RISE:
            moments.append(f"{moment} +{100 * mean:.1f}{'' if scale.share else ' %'}")
    return moments


def edge_remark(names: Sequence[str], best: str) -> str:
    """Whether the best of some settings is at the end of what was tried of a number; empty if it is not.

    >>> edge_remark(["fedprox:lr=0.1,mu=1", "fedprox:lr=0.2,mu=1", "fedprox:lr=0.4,mu=1"], "fedprox:lr=0.4,mu=1")
    'lr = 0.4 is the largest that was tried: one beyond may be better.'
    """
    ends: list[str] = []
    tried = [settings_in(name) for name in names]
    for option, text in settings_in(best).items():
        values = {_number(one[option]) for one in tried if option in one}
        if None in values or len(values) < 2:
            continue
        numbers = sorted(value for value in values if value is not None)
        place = numbers.index(float(text))
        if (place == 0 and numbers[0] != 0) or place == len(numbers) - 1:  # below 0 few options go
            ends.append(f"{option} = {text} is the {'largest' if place else 'smallest'} that was tried")
    return f"{'; '.join(ends)}: one beyond may be better." if ends else ""


def settings_in(entry: str) -> dict[str, str]:
    """The settings that an entry names behind its method.

    >>> settings_in("pfedcs:beta=3,lr=0.1")
    {'beta': '3', 'lr': '0.1'}
    """
    return dict(re.findall(r"[:,](\w+)=([^,]*)", entry))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
