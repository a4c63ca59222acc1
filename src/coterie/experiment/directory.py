"""The run directory: everything a run leaves on disk. Plain formats only, each file written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from coterie.core.exchange import Applied
from coterie.core.federation import Federation
from coterie.errors import CoterieError, require
from coterie.experiment.config import FORMAT, PLUGINS, REFERENCES, Config, read_toml, to_toml
from coterie.experiment.history import Line
from coterie.files import require_format, write_whole
from coterie.partition import Partition
from coterie.registry import PluginFile, file_of, is_reference, short_name, split_reference, stand_in

CONFIG = "config.toml"
PARTITION = "partition.safetensors"
ROUNDS = "rounds.jsonl"
MIXES = "mixes"
ROWS = "rows.safetensors"
CHECKPOINT = "checkpoint.safetensors"
SUMMARY = "summary.json"
STOPPED = "stopped.json"
LOG = "log.txt"
COPIES = "plugins"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors and texts as one safetensors file."""
    apart: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        # The format refuses tensors that share memory, such as the cohort as rows and as columns of a mix.
        apart[name] = tensor.clone(memory_format=torch.contiguous_format) if place in memory else tensor.contiguous()
        memory.add(place)
    write_whole(path, save(apart, dict(metadata)))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_tensors` wrote."""
    require(path.is_file(), f"'{path}': there is no such file")
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


class RunDirectory:
    """A directory that holds one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Config, partition: Partition) -> RunDirectory:
        """Begin a run in a directory that holds none."""
        refuse_existing(path)
        (path / MIXES).mkdir(parents=True, exist_ok=True)
        for original in config.get(PLUGINS, {}):
            file = file_of(original)
            (path / COPIES).mkdir(exist_ok=True)
            write_whole(path / copy_name(original, file.sha256), file.source)
        partition.save(path / PARTITION)
        (path / ROUNDS).write_text("", encoding="utf-8")
        write_whole(path / CONFIG, to_toml({"format": FORMAT, **config}).encode())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open a directory that holds a run."""
        require((path / CONFIG).is_file(), f"run = {path}: holds no run ({CONFIG} is missing)")
        found = read_toml(path / CONFIG).get("format")
        require_format(f"run = {path}", found, FORMAT, "run it again")
        return cls(path)

    def config(self) -> Config:
        """The run's configuration."""
        config = read_toml(self.path / CONFIG)
        config.pop("format", None)
        return config

    def own_config(self) -> Config:
        """The run's configuration with the run's own copies in place of files of one's own.

        A file that has changed since is an error: it would look as if the run had used it.
        """
        config = self.config()
        for original, digest in config.get(PLUGINS, {}).items():
            kept = self.path / copy_name(original, digest)
            require(kept.is_file(), f"run = {self.path}: its copy of {original} is missing ({kept})")
            file = PluginFile(original, kept.read_bytes())
            require(file.sha256 == digest, f"run = {self.path}: its copy of {original} was changed ({kept})")
            now = PluginFile.read(original) if Path(original).is_file() else file
            require(
                now.sha256 == digest,
                f"run = {self.path}: {original} has changed since (SHA-256 {digest[:12]}… then, {now.sha256[:12]}… "
                f"now); bring it back or move it away, the run's copy is {kept}",
            )
            stand_in(kept, original)
            for key in REFERENCES:
                if is_reference(config[key]) and split_reference(config[key])[0] == original:
                    config[key] = f"{kept}:{short_name(config[key])}"
        config.pop(PLUGINS, None)
        return config

    def partition(self) -> Partition:
        """The run's partition."""
        return Partition.load(self.path / PARTITION)

    def add_line(self, line: Line) -> None:
        """Append a round to the metrics."""
        with (self.path / ROUNDS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self, up_to: int | None = None) -> list[Line]:
        """The recorded rounds; with `up_to`, only those, and the file is cut back to them."""
        found: list[Line] = []
        for text in (self.path / ROUNDS).read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(text))
            except json.JSONDecodeError:
                break  # the run was killed while it wrote this line
        if up_to is not None:
            found = [line for line in found if line["round"] <= up_to]
            write_whole(self.path / ROUNDS, "".join(json.dumps(line) + "\n" for line in found).encode())
        return found

    def add_mixes(self, round: int, mixes: list[Applied]) -> None:
        """Record who learned from whom in a round."""
        tensors: dict[str, Tensor] = {}
        for number, mix in enumerate(mixes):
            tensors |= {f"{number}.{part}": getattr(mix, part) for part in ("weights", "rows", "columns")}
        about = [{"group": mix.group, "target": mix.target, "gated": mix.gated} for mix in mixes]
        save_tensors(self.path / MIXES / f"{round:05d}.safetensors", tensors, {"mixes": json.dumps(about)})

    def mixes(self, round: int) -> list[Applied]:
        """The recorded mixes of a round."""
        tensors, metadata = load_tensors(self.path / MIXES / f"{round:05d}.safetensors")
        return [
            Applied(
                weights=tensors[f"{number}.weights"],
                rows=tensors[f"{number}.rows"],
                columns=tensors[f"{number}.columns"],
                **about,
            )
            for number, about in enumerate(json.loads(metadata["mixes"]))
        ]

    def recorded_rounds(self) -> list[int]:
        """The rounds whose mixes were recorded, in order."""
        return sorted(int(file.stem) for file in (self.path / MIXES).glob("*.safetensors"))

    def checkpoint(self, federation: Federation) -> None:
        """Save the state after a round; the old checkpoint is replaced at once."""
        save_tensors(self.path / CHECKPOINT, dict(federation.state()), {"round": str(federation.round)})

    def checkpointed_round(self) -> int:
        """The round of the last checkpoint; 0 if there is none."""
        if not (self.path / CHECKPOINT).is_file():
            return 0
        with safe_open(self.path / CHECKPOINT, framework="pt") as file:
            return int(file.metadata()["round"])

    def restore(self, federation: Federation) -> None:
        """Put a federation back to the last checkpoint, if there is one."""
        if not (self.path / CHECKPOINT).is_file():
            return
        state, metadata = load_tensors(self.path / CHECKPOINT)
        federation.restore(state)
        federation.round = int(metadata["round"])

    def finish(self, federation: Federation, summary: Mapping[str, Any]) -> None:
        """Save the final rows and the summary."""
        save_tensors(self.path / ROWS, dict(federation.state()), {"round": str(federation.round)})
        write_whole(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    def stop(self, summary: Mapping[str, Any]) -> None:
        """Record that the run was stopped before its end, with its summary until then."""
        write_whole(self.path / STOPPED, (json.dumps(summary, indent=2) + "\n").encode())

    def carry_on(self) -> None:
        """The run goes on: it counts as stopped no longer."""
        (self.path / STOPPED).unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / SUMMARY).is_file()

    @property
    def stopped(self) -> bool:
        """Whether a listener stopped the run, and it was not carried on."""
        return (self.path / STOPPED).is_file()

    def summary_text(self) -> str:
        """The summary of a run that is finished or stopped, as it was written."""
        return (self.path / (SUMMARY if self.finished else STOPPED)).read_text(encoding="utf-8")


def copy_name(original: str, digest: str) -> str:
    """Where a run keeps its copy of a file of one's own."""
    return f"{COPIES}/{Path(original).stem}-{digest[:12]}.py"


def refuse_existing(path: Path) -> None:
    """An error if a run (or anything else) would be overwritten."""
    if path.is_file():
        raise CoterieError(f"out = {path}: is a file; name a directory")
    if (path / CONFIG).exists():
        raise CoterieError(f"out = {path}: already holds a run; name another directory, or 'coterie resume {path}'")
    if path.is_dir() and any(path.iterdir()):
        raise CoterieError(f"out = {path}: is not empty; name a new directory")
