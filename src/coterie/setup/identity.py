"""What makes a run the same as another: all that decides its numbers, in a few digests.

Two runs are the same if their identities are equal. Whoever reuses a run, carries it on or averages it with others asks
here, and names what `differences` gives.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from coterie.core.task import Task
from coterie.errors import require
from coterie.files import expanded
from coterie.models import MODELS, ModelSpec
from coterie.models.registry import OwnModel
from coterie.partition import FromFile, Partition
from coterie.partition.partition import is_partition_file
from coterie.registry import FILES, at_hand, sources_sha256
from coterie.setup.config import PLUGINS, Config, complete
from coterie.setup.own_code import COTERIE, adds_to_a_list, digest_of, is_installed, is_own, marks_of
from coterie.setup.parts import things_in
from coterie.setup.settings import Settings
from coterie.version import VERSION

Identity = dict[str, Any]
"""Plain values by part: see `identity_of`."""

HOW = {
    "engine",
    "device",
    "workers",
    "ray_address",
    "ray_gpus",
    "threads",
    "memory",
    "record_every",
    "checkpoint_every",
}
"""How a run is carried out and what it leaves on disk: a run that differs in these alone is the same run."""

COMPUTING = (
    "rng.py",
    "core",
    "client",
    "maths",
    "methods",
    "engines",
    "rounds",
    "privacy",
    "robust",
    "server_steps",
    "topology",
    "scenarios",
    "data",
    "partition",
    "models",
    "setup/parts.py",
    "setup/prepared.py",
    "runs/newcomers.py",
)
"""The part of Coterie that decides what a run computes; the rest shows, keeps and compares."""

WELL_KNOWN = {COTERIE, "torch", "", *sys.stdlib_module_names}
"""What is no plug-in: Coterie's code has a digest of its own, PyTorch's version stands with each session."""

SPOKEN = {
    "settings": "its settings",
    PLUGINS: "its plug-in files",
    "classes": "its Python classes",
    "files": "its files",
    "data": "its data",
    "partition": "its partition",
    "model": "its model",
    "coterie": "Coterie's own code",
}
"""The parts of an identity, in words."""
UNKNOWN = "what was not recorded of it (data, code, first weights)"
FIRST_WEIGHTS = "first weights"
"""Those that the seed gives; others that a model was given with."""
ALL: Collection[str] = ("",)
"""All entries of a part."""


def identity_of(
    settings: Settings, data: Mapping[str, str], partition: Partition, module: nn.Module, task: Task
) -> Identity:
    """The identity of a run with these settings, the digests of its `data`, its partition and its untrained model.

    Its parts: `settings` but for `HOW`; the digests of `plugins`, by file or installed package; of `classes`, those
    made in Python, by name; of further `files` that are read during the run; of the `data`, the `partition`, the
    `model` (its structure, its first weights); and of the code of `coterie` that computes.
    """
    things = list(_things_of(settings, module, task))
    found: Identity = {
        "settings": settings_of(complete(settings)),
        PLUGINS: dict(_plugins(things)),
        "classes": _classes(things),
        "files": {path: hashlib.sha256(at_hand(path).read_bytes()).hexdigest() for path in _files_of(settings)},
        "data": dict(data),
        "partition": partition.hash,
        "model": _marks(settings, module),
        "coterie": code_digest(),
    }
    plain: Identity = json.loads(json.dumps(found, default=digest_of))  # as it will be read back
    return plain


def settings_of(config: Config) -> Config:
    """The part of a configuration that decides what is computed: a partition's file counts by what stands in it.

    >>> settings_of({"method": "fedavg", "partition": "mine.npz", "engine": "serial"})
    {'method': 'fedavg', 'partition': 'a file'}
    """
    kept = {key: value for key, value in config.items() if key not in HOW | {PLUGINS}}
    return {**kept, "partition": "a file"} if is_partition_file(str(kept.get("partition", ""))) else kept


def differences(first: Identity, second: Identity) -> list[str]:
    """What differs between two runs, in words; nothing if they are the same run. One without identity is like none.

    >>> differences({"data": {"labels": "a"}, "coterie": "b"}, {"data": {"labels": "c"}, "coterie": "b"})
    ['its data (labels)']
    """
    if not first or not second:
        return [UNKNOWN]
    return [
        words + _which(first.get(part), second.get(part))
        for part, words in SPOKEN.items()
        if first.get(part) != second.get(part)
    ]


def without_seed(identity: Identity) -> Identity:
    """The part of an identity that is the same for all seeds of an experiment.

    >>> without_seed({"settings": {"lr": 0.1, "seed": 3}, "partition": "a", "model": {"structure": "b"}})
    {'settings': {'lr': 0.1}, 'model': {'structure': 'b'}}
    """
    settings = identity.get("settings", {})
    drawn = {"settings": {"seed"}, "partition": None if "partition_seed" in settings else ALL}
    drawn["model"] = None if "model_seed" in settings else {FIRST_WEIGHTS}
    return _without(identity, drawn)


def on_any_machine(identity: Identity) -> Identity:
    """The part of an identity that machines must agree on: other processors may round first weights otherwise.

    >>> on_any_machine({"model": {"structure": "a", "first weights": "b"}, "coterie": "c"})
    {'model': {'structure': 'a'}, 'coterie': 'c'}
    """
    return _without(identity, {"model": {FIRST_WEIGHTS}})


def _without(identity: Identity, parts: Mapping[str, Collection[str] | None]) -> Identity:
    """An identity without some parts, or some entries of them."""
    kept = {part: value for part, value in identity.items() if parts.get(part) is not ALL}
    return kept | {
        part: {key: inner for key, inner in kept[part].items() if key not in left_out}
        for part, left_out in parts.items()
        if left_out and part in kept
    }


def spoken(differing: Sequence[str]) -> str:
    """Differences in one text.

    >>> spoken(["its data (labels)", "its partition"])
    'its data (labels) and its partition'
    """
    return " and ".join(differing)


def require_identity(found: object, where: str) -> Identity:
    """An identity as it was kept; an error if it is none."""
    whole = isinstance(found, dict) and all(
        isinstance(found.get(part), str if part in ("partition", "coterie") else dict) for part in SPOKEN
    )
    require(whole or found == {}, f"{where} is damaged (it has no whole identity)")
    assert isinstance(found, dict)
    return found


@cache
def code_digest() -> str:
    """The digest of the code of Coterie that computes, as it was when this process first asked."""
    root = Path(__file__).parents[1]
    files = [path for part in COMPUTING for path in _python_files(root / part)]
    if not files:  # an installation without sources
        return VERSION
    digest = hashlib.sha256()
    for path in files:
        source = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def _python_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path] * path.is_file()


def _which(first: Any, second: Any) -> str:
    """Which entries of a part differ, in brackets; of a model, its weights only if its structure is the same."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return ""
    names = [Path(key).name for key in sorted(first.keys() | second.keys()) if first.get(key) != second.get(key)]
    names = ["structure"] if "structure" in names else names
    return f" ({', '.join(names)})" if names else ""


def _things_of(settings: Settings, module: nn.Module, task: Task) -> Iterator[Any]:
    """What a run uses that may be somebody's own: classes and functions, or objects with what they hold."""
    yield type(settings.method)
    rule = settings.partition
    if not isinstance(rule, Partition | FromFile):
        yield type(rule)
    if isinstance(settings.model, str | ModelSpec):
        build = (MODELS[settings.model] if isinstance(settings.model, str) else settings.model).build
        yield build.make if isinstance(build, OwnModel) else build
    yield from dict.fromkeys(type(part) for part in module.modules())
    yield from _held((task, *things_in(settings)))


def _held(thing: Any) -> Iterator[Any]:
    """A thing, or what it holds if that is all there is to it: somebody's loss in a task of Coterie, for example."""
    if isinstance(thing, tuple):
        for part in thing:
            yield from _held(part)
    elif type(thing).__module__.partition(".")[0] == COTERIE and is_dataclass(thing):
        yield from _held(tuple(getattr(thing, item.name) for item in fields(thing)))
    elif callable(thing) or not isinstance(thing, str | int | float | None):
        yield thing


def _marks(settings: Settings, module: nn.Module) -> dict[str, str]:
    structure, weights = marks_of(module)
    return {
        "structure": structure,
        "given weights" if isinstance(settings.model, nn.Module) else FIRST_WEIGHTS: weights,
    }


def _class_of(thing: Any) -> Any:
    return thing if hasattr(thing, "__name__") else type(thing)


def _classes(things: Sequence[Any]) -> dict[str, str]:
    """The digests of what is somebody's own, by name; those that share a name are counted."""
    found: dict[str, str] = {}
    for thing in things:
        if is_own(_class_of(thing)):
            name, digest = str(_class_of(thing).__name__), digest_of(thing)
            same = sum(key.partition(" ")[0] == name for key in found)
            if digest not in found.values():
                found[f"{name} {same + 1}" if same else name] = digest
    return found


def _plugins(things: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The files and installed packages that things come from, each with its digest."""
    for module in dict.fromkeys(str(getattr(_class_of(thing), "__module__", "")) for thing in things):
        package = module.partition(".")[0]
        if module in FILES:
            yield FILES[module].path, FILES[module].sha256
        elif package not in WELL_KNOWN and (adds_to_a_list(package) or is_installed(module)):
            yield package, _package_digest(package)


@cache
def _package_digest(package: str) -> str:
    """As it was when this process first asked: what was loaded stays as it is."""
    return sources_sha256(package)


def _files_of(settings: Settings) -> Iterator[str]:
    for thing in things_in(settings):
        yield from (str(expanded(path)) for path in getattr(thing, "files", ()))
