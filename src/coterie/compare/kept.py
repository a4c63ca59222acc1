"""Runs in directories, however they came there: found, read, and put together into tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.compare.joint_runs import whole_hash
from coterie.compare.one_run import EARLIER, Summary
from coterie.compare.remarks import shared_settings
from coterie.compare.table import TUNING
from coterie.core.numbers import judged_scale
from coterie.errors import CoterieError, require, unknown
from coterie.options import option_fields
from coterie.registry import short_name
from coterie.runs.reader import record_of
from coterie.runs.store import CONFIG, runs_in
from coterie.setup.config import PLUGINS, Config
from coterie.setup.identity import HOW, Identity, differences, spoken, without_seed
from coterie.setup.run_options import RunOptions


@dataclass(frozen=True)
class TabledRun:
    """A finished run in a directory."""

    path: Path
    config: Config
    summary: Summary
    identity: Identity

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.config["seed"])

    @property
    def without_seed(self) -> Config:
        """All that decides its result but for the seed."""
        return {key: value for key, value in self.config.items() if key not in HOW | {"seed", PLUGINS}}


@dataclass
class KeptTable:
    """Runs that can be compared: all have the same data and, with a seed, the same partition.

    `runs` are by row and seed. Of `data` there are the digests, unless the runs do not say.
    """

    shared: Config
    data: Identity = field(default_factory=dict)
    partitions: dict[int, str] = field(default_factory=dict)
    runs: dict[str, dict[int, TabledRun]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # rows that nobody wanted to see

    def only(self, wanted: Sequence[str]) -> KeptTable:
        """The same with some of its rows, in the order in which they or their methods are named."""
        chosen: dict[str, dict[int, TabledRun]] = {}
        for name in wanted:
            rows = [row for row in self.runs if name in (row, row.partition(":")[0])]
            if not rows:
                raise unknown("method of this table", name, self.runs)
            chosen |= {row: self.runs[row] for row in rows}
        return replace(self, runs=chosen, left_out=tuple(row for row in self.runs if row not in chosen))

    @property
    def title(self) -> str:
        """Data and partition, in words."""
        usual = {name: item.default for name, item in option_fields(RunOptions).items()}
        unusual = {
            key: value
            for key, value in self.shared.items()
            if key not in ("data", "partition") and not (key in usual and value == usual[key])
        }
        words = ", ".join(f"{key}={value}" for key, value in unusual.items())
        return f"{short_name(str(self.shared['data']))}, {self.shared['partition']}" + (f" ({words})" if words else "")

    @property
    def rows(self) -> dict[str, dict[int, Summary]]:
        """The summaries by row and seed."""
        return {row: {seed: run.summary for seed, run in sorted(seeds.items())} for row, seeds in self.runs.items()}

    @property
    def configs(self) -> dict[str, Config]:
        """A configuration of each row."""
        return {row: next(iter(seeds.values())).config for row, seeds in self.runs.items()}


def run_directories(paths: Sequence[Path]) -> list[Path]:
    """The directories of runs among some paths and below them, and the runs in a .zip, each once."""
    require(bool(paths), "run: name at least one directory of a run, or a folder with some")
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            below = [path / name for name in runs_in(path)]
        else:
            inside = (path / CONFIG).is_file() or path.parent.is_file()  # the latter: one run of a .zip
            below = [path] if inside else _below(path)
        require(bool(below) or path.exists(), f"run = {path}: there is no such file or folder")
        require(bool(below), f"run = {path}: holds no run ({CONFIG} is missing)")
        found += below
    return list({path.resolve(): path for path in found}.values())


def _below(path: Path) -> list[Path]:
    """The runs in a folder; those by which a comparison's settings were tuned, or that were set aside, are no part."""
    found = sorted(file.parent for file in path.rglob(CONFIG))
    return [run for run in found if not {TUNING, EARLIER} & set(run.relative_to(path).parts)]


def read_run(path: Path) -> TabledRun:
    """A finished run; an error says in a few words what is wrong with another."""
    try:
        run = record_of(path)
        config = run.config()
        if not run.finished:
            state = "was stopped" if run.stopped else "is not finished"
            raise CoterieError(f"{path} {state} ({len(run.lines())} of {config['rounds']} rounds)")
        run.require_as_begun(run.about())
        summary = run.summary() or {}
        # What every table needs; a file that was cut off or edited may lack it.
        shared_settings(config), int(config["seed"]), config["method"], dict(config["set"]), whole_hash(summary)
        require(judged_scale(summary).name in summary, f"{path} is damaged (its summary has no score)")
        identity = run.identity()
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        if isinstance(error, CoterieError):
            raise
        raise CoterieError(f"{path} is damaged ({type(error).__name__}: {error})") from None
    return TabledRun(path, config, summary, identity)


def kept_tables(paths: Sequence[Path]) -> tuple[list[KeptTable], list[str]]:
    """The tables that some runs make, and what was left out, a line each."""
    runs: list[TabledRun] = []
    left_out: list[str] = []
    for path in run_directories(paths):
        try:
            runs.append(read_run(path))
        except CoterieError as error:
            left_out.append(str(error))
    tables: list[tuple[KeptTable, list[TabledRun]]] = []
    for run in runs:
        _table_for(run, tables)[1].append(run)
    for table, members in tables:
        left_out += _fill(table, members)
    return [table for table, _ in tables], left_out


def _table_for(run: TabledRun, tables: list[tuple[KeptTable, list[TabledRun]]]) -> tuple[KeptTable, list[TabledRun]]:
    """The table of the run's data and partition; a new one if there is none, or if the run's are others."""
    shared, digest, data = shared_settings(run.config), whole_hash(run.summary), run.identity.get("data", {})
    for table, members in tables:
        if (table.shared, table.data) == (shared, data) and table.partitions.setdefault(run.seed, digest) == digest:
            return table, members
    tables.append((KeptTable(shared, data, {run.seed: digest}), []))
    return tables[-1]


def _fill(table: KeptTable, runs: Sequence[TabledRun]) -> Iterator[str]:
    """Put runs into rows: one for each configuration without seed, if nothing else differs. Gives what is left out."""
    groups: dict[str, list[TabledRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.without_seed, sort_keys=True), []).append(run)
    names = row_names([group[0].without_seed for group in groups.values()])
    for name, group in zip(names, groups.values(), strict=True):
        for row_name, row_runs in _same_but_for_the_seed(name, group).items():
            row = table.runs.setdefault(row_name, {})
            for run in row_runs:
                if run.seed in row:
                    yield f"{run.path} repeats {row[run.seed].path}"
                else:
                    row[run.seed] = run


def _same_but_for_the_seed(name: str, runs: Sequence[TabledRun]) -> dict[str, list[TabledRun]]:
    """The rows that runs with the same settings make: those that differ in anything else are none's other seeds.

    Each row but the first is named by what differs. Of runs that do not say what they are, each is a row of its own.
    """
    groups: list[list[TabledRun]] = []
    for run in runs:
        same = (
            members
            for members in groups
            if not differences(without_seed(members[0].identity), without_seed(run.identity))
        )
        group = next(same, None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    rows: dict[str, list[TabledRun]] = {}
    for members in groups:
        differing = differences(without_seed(groups[0][0].identity), without_seed(members[0].identity))
        wording = f"{name} (differs in {spoken(differing)})" if members is not groups[0] else name
        same_words = sum(row == wording or row.startswith(f"{wording}, ") for row in rows)
        rows[f"{wording}, {same_words + 1}" if same_words else wording] = members
    return rows


def row_names(configs: Sequence[Config]) -> list[str]:
    """What to call rows: their methods and, where one stands in several rows, what its rows differ in.

    >>> row_names([{"method": "fedprox", "lr": rate, "set": {"mu": 1.0}} for rate in (0.1, 0.2)])
    ['fedprox:lr=0.1', 'fedprox:lr=0.2']
    """
    flat = [{**config, **config["set"], "set": None} for config in configs]
    names = []
    for config in flat:
        rivals = [other for other in flat if other["method"] == config["method"]]
        differing = [key for key in config if any(other.get(key) != config[key] for other in rivals)]
        words = ",".join(f"{key}={_plain(config[key])}" for key in differing)
        names.append(short_name(config["method"]) + (f":{words}" if words else ""))
    return names


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def keys_of(tables: Sequence[KeptTable]) -> Mapping[str, KeptTable]:
    """The tables by title; those with the same title are counted."""
    found: dict[str, KeptTable] = {}
    for table in tables:
        same = sum(other.title == table.title for other in found.values())
        found[table.title if not same else f"{table.title}, {_other(table, found)} ({same + 1})"] = table
    return found


def _other(table: KeptTable, before: Mapping[str, KeptTable]) -> str:
    return "another partition" if table.data == before[table.title].data else "other data"
