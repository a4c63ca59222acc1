"""In which settings runs differ that stand in one table, and what they must share to stand there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.options import option_fields
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
    values = {key: {method: config.get(key) for method, config in configs.items()} for key in settings}
    first = next(iter(configs))
    return {key: found for key, found in values.items() if any(value != found[first] for value in found.values())}


def settings_note(configs: Mapping[str, Config]) -> str:
    """Which methods ran with other settings than the others, in words; empty if none did.

    >>> settings_note({"fedavg": {"momentum": 0.9}, "scaffold": {"momentum": 0.0}})
    'Not all methods ran with the same settings: momentum = 0.9 (fedavg), 0.0 (scaffold).'
    """
    spoken = [f"{key} = {_by_value(found)}" for key, found in differing(configs).items()]
    return f"Not all methods ran with the same settings: {'; '.join(spoken)}." if spoken else ""


def _by_value(found: Mapping[str, Any]) -> str:
    """Which methods have which value; the most, if they are two or more and no others are as many, are the others."""
    takers: dict[str, list[str]] = {}
    for method, value in found.items():
        takers.setdefault("unset" if value is None else str(value), []).append(method)
    first, *rest = sorted(takers.values(), key=len, reverse=True)
    most = first if len(first) > max(map(len, rest)) else None
    few_first = sorted(takers.items(), key=lambda item: item[1] is most)
    return ", ".join(f"{value} ({'the others' if who is most else ', '.join(who)})" for value, who in few_first)
