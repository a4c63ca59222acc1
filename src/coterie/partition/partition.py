"""Which client holds which samples: the result of every partition rule, and the files that it is kept in.

To hand a partition over there is a plain file, NumPy's `.npz`, which any program reads and writes: arrays `train`,
`train_offsets`, `test`, `test_offsets`, and where wanted `validation`, `validation_offsets` and the clients' `names`
(text): client k holds `train[train_offsets[k]:train_offsets[k+1]]`. Indices count through the data set as it is loaded,
official training samples first. A data set may come in several files' orders: `labels_sha256` (text), where given, says
which one is meant.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as to_safetensors

from coterie.data.arrays import Array, read_npz
from coterie.data.dataset import Dataset
from coterie.display import Displayed
from coterie.errors import CoterieError, require
from coterie.files import safetensors_texts, write_whole
from coterie.rng import numpy_stream
from coterie.typed import shown, typed

Indices = npt.NDArray[np.int64]
SUFFIX = ".npz"
NEEDED = ("train", "train_offsets", "test", "test_offsets")


def is_partition_file(text: str | Path) -> bool:
    """Whether a text names such a file: by its suffix.

    >>> is_partition_file("mine.npz"), is_partition_file("dirichlet"), is_partition_file("run/partition.safetensors")
    (True, False, False)
    """
    return Path(text).suffix.lower() == SUFFIX


def joined(rows: Sequence[Indices]) -> tuple[Indices, Indices]:
    """The clients' arrays one after the other, and where each begins and the last ends.

    >>> joined([np.array([4, 5]), np.array([9])])
    (array([4, 5, 9]), array([0, 2, 3]))
    """
    return np.concatenate(rows), np.cumsum([0, *map(len, rows)], dtype=np.int64)


def parted(indices: Indices, offsets: Indices) -> list[Indices]:
    """The clients' arrays again."""
    return [indices[start:end] for start, end in pairwise(offsets)]


def write_partition(path: Path, parts: Mapping[str, Sequence[Indices]], names: Sequence[str]) -> None:
    """Write the file, whole or not at all."""
    arrays: dict[str, Array] = {"names": np.array(list(names), dtype=np.str_)}
    for part, rows in parts.items():
        arrays[part], arrays[f"{part}_offsets"] = joined(rows)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_whole(path, content.getvalue())


def labels_sha256(labels: Array) -> str:
    """What tells the order of a data set's samples: the SHA-256 of `labels [N]` as little-endian 64-bit numbers.

    >>> labels_sha256(np.array([0, 1]))[:12]
    '9d34149fbd1f'
    """
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def read_partition(path: Path) -> tuple[dict[str, list[Indices]], tuple[str, ...], str]:
    """Each part's index arrays, one a client, the clients' names if there are any, and the labels' hash likewise.

    Whatever is wrong is said.
    """
    what = f"partition file '{path}'"
    require(path.is_file(), f"{what} does not exist")
    arrays = read_npz(path)
    missing = [key for key in NEEDED if key not in arrays]
    require(not missing, f"{what}: has no array '{', '.join(missing)}' (needed: {', '.join(NEEDED)})")
    parts = {part: _part(arrays, part, what) for part in ("train", "test")}
    if "validation" in arrays or "validation_offsets" in arrays:
        parts["validation"] = _part(arrays, "validation", what)
    for part, rows in parts.items():
        count = len(parts["train"])
        require(len(rows) == count, f"{what}: '{part}' is of {len(rows)} clients, 'train' of {count}")
    digest = arrays.get("labels_sha256", np.array(""))
    require(digest.dtype.kind == "U" and digest.ndim == 0, f"{what}: 'labels_sha256' must be one text")
    return parts, _names(arrays, len(parts["train"]), what), str(digest)


def _part(arrays: Mapping[str, Array], part: str, what: str) -> list[Indices]:
    for key in (part, f"{part}_offsets"):
        require(key in arrays, f"{what}: has no array '{key}', which goes with the other one of '{part}'")
        array = arrays[key]
        require(
            array.ndim == 1 and array.dtype.kind in "iu",
            f"{what}: '{key}' is {array.dtype} of shape {array.shape}; it must be a list of whole numbers",
        )
    indices, offsets = (arrays[key].astype(np.int64) for key in (part, f"{part}_offsets"))
    require(
        len(offsets) >= 2 and offsets[0] == 0 and offsets[-1] == len(indices) and bool((np.diff(offsets) >= 0).all()),
        f"{what}: '{part}_offsets' must start at 0, never fall, and end at {len(indices)}, the length of '{part}'",
    )
    return parted(indices, offsets)


def _names(arrays: Mapping[str, Array], clients: int, what: str) -> tuple[str, ...]:
    if "names" not in arrays:
        return ()
    names = arrays["names"]
    require(
        names.dtype.kind == "U" and names.shape == (clients,),
        f"{what}: 'names' is {names.dtype} of shape {names.shape}; it must be {clients} texts, one a client",
    )
    return tuple(names.tolist())


Plain = int | float | str | bool
Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
FORMAT = "coterie partition 1"


@dataclass(frozen=True, eq=False, repr=False)
class Partition(Displayed):
    """The samples of every client, and all that is needed to draw them again.

    `train`, `validation` and `test` hold one int64 index array per client. `parameters` holds the rule's
    options, the seed and the split. `keys [K]` are the clients' identities for random streams: they travel
    with the clients when these are relabelled. `held_out` lists the clients that take no part in training
    and are kept for onboarding tests.

    >>> two = Partition(train=(np.array([0, 1, 2]), np.array([4])), test=(np.array([3]), np.array([5])))
    >>> two.clients, two.sizes.tolist(), two.names
    (2, [3, 1], ('0', '1'))
    >>> two.permuted([1, 0]).sizes.tolist(), two.permuted([1, 0]).names
    ([1, 3], ('1', '0'))
    """

    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    validation: tuple[Indices, ...] = ()
    rule: str = "given"
    parameters: Mapping[str, Plain] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    held_out: tuple[int, ...] = ()
    keys: Indices = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        count = len(_arrays_of("train", self.train))
        require(count > 0, "partition: there are no clients; at least 1 is needed")
        for part in PARTS:
            arrays = _arrays_of(part, getattr(self, part))
            if part == "validation" and not arrays:
                arrays = [np.empty(0, np.int64) for _ in range(count)]
            object.__setattr__(self, part, tuple(arrays))
            require(len(arrays) == count, f"partition: {part} has {len(arrays)} clients, train has {count}")
        keys = np.array(self.keys, dtype=np.int64)
        object.__setattr__(self, "keys", keys if len(keys) else np.arange(count, dtype=np.int64))
        object.__setattr__(self, "names", tuple(self.names) or tuple(str(k) for k in range(count)))
        object.__setattr__(self, "held_out", tuple(sorted(int(k) for k in self.held_out)))
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "notes", tuple(self.notes))
        self._require_consistent_labels()

    def _require_consistent_labels(self) -> None:
        count = self.clients
        require(len(self.names) == count, f"partition: {len(self.names)} names for {count} clients")
        require(
            len(self.keys) == count and len(np.unique(self.keys)) == count,
            f"partition: keys must be {count} different numbers, one per client",
        )
        require(
            len(set(self.held_out)) == len(self.held_out) and all(0 <= k < count for k in self.held_out),
            f"held_out = {self.held_out}: must be different clients within 0..{count - 1}",
        )
        for option, value in self.parameters.items():
            require(
                isinstance(value, Plain),
                f"partition: parameter {option} = {value!r}: must be a number, a string or a bool",
            )

    def __repr__(self) -> str:
        parts = {"training": self.train, "validation": self.validation, "test": self.test}
        sizes = [f"{count} {part}" for part, rows in parts.items() if (count := sum(map(len, rows)))]
        apart = f", {len(self.held_out)} held out" if self.held_out else ""
        return f"Partition({self.rule}, {self.clients} clients{apart}, {', '.join(sizes)} samples)"

    @property
    def clients(self) -> int:
        """The number of clients K, those held out included."""
        return len(self.train)

    @cached_property
    def sizes(self) -> Indices:
        """The number of training samples of every client: `[K]`."""
        return np.array([len(indices) for indices in self.train], dtype=np.int64)

    def class_counts(self, dataset: Dataset, part: Part = "train") -> Indices:
        """How many samples of each class every client holds in one part: `[K, C]`."""
        samples, holders = _with_holders(getattr(self, part))
        classes = dataset.classes
        places = holders * classes + dataset.labels.numpy()[samples] if classes else holders[:0]
        return np.bincount(places, minlength=self.clients * classes).reshape(self.clients, classes)

    @property
    def hash(self) -> str:
        """SHA-256 over rule, parameters, indices, keys and held-out clients; the same on every machine."""
        digest = hashlib.sha256(f"{FORMAT}\n{self.rule}\n{_json(self.parameters)}\n".encode())
        for name, array in sorted(self._arrays().items()):
            digest.update(f"{name} {len(array)}\n".encode())
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and (self.hash, self.names) == (other.hash, other.names)

    def __hash__(self) -> int:
        return int(self.hash[:15], 16)

    def whole(self) -> Partition:
        """The same before samples were set aside for validation: they count as training samples again."""
        if not any(map(len, self.validation)) and not self.parameters.get("validation"):
            return self
        joined = (np.sort(np.concatenate(parts)) for parts in zip(self.train, self.validation, strict=True))
        parameters = {**self.parameters, "validation": 0.0} if "validation" in self.parameters else self.parameters
        return replace(self, train=tuple(joined), validation=(), parameters=parameters)

    def permuted(self, order: Sequence[int]) -> Partition:
        """The same clients under new labels: client i of the result is client `order[i]` of this one."""
        require(
            sorted(order) == list(range(self.clients)),
            f"order = {list(order)}: must hold each client 0..{self.clients - 1} once",
        )
        return replace(
            self,
            train=tuple(self.train[k] for k in order),
            validation=tuple(self.validation[k] for k in order),
            test=tuple(self.test[k] for k in order),
            names=tuple(self.names[k] for k in order),
            held_out=tuple(new for new, old in enumerate(order) if old in self.held_out),
            keys=self.keys[list(order)],
        )

    def with_held_out(self, amount: int | float, seed: int) -> Partition:
        """Keep some clients apart for onboarding tests: an int is their number, a float their share.

        The draw is made among the clients' keys, so relabelled clients are held out alike.

        >>> ten = Partition(train=(np.array([0]),) * 10, test=(np.array([1]),) * 10)
        >>> len(ten.with_held_out(3, seed=0).held_out), len(ten.with_held_out(0.2, seed=0).held_out)
        (3, 2)
        """
        share = isinstance(amount, float)
        count = max(1, round(amount * self.clients)) if share and 0 < amount < 1 else amount
        require(
            isinstance(count, int) and not isinstance(count, bool) and 0 <= count < self.clients,
            f"held_out = {amount}: must be a number of clients from 0 to {self.clients - 1}, "
            "or a share above 0 and below 1 that leaves a client for training",
        )
        stream = numpy_stream(seed, "partition:held_out")
        chosen = stream.permutation(np.sort(self.keys))[: int(count)]
        return replace(
            self,
            held_out=tuple(np.flatnonzero(np.isin(self.keys, chosen)).tolist()),
            parameters={**self.parameters, "held_out": amount, "held_out_seed": seed},
        )

    def check(self, dataset: Dataset) -> None:
        """Raise a `CoterieError` that names the client whose samples are missing, out of range or leaked."""
        empty = np.flatnonzero(self.sizes == 0)[:1]
        for client in empty.tolist():
            raise CoterieError(
                f"client '{self.names[client]}' has no training samples; use fewer clients or a larger minimum size"
            )
        held = {part: _with_holders(getattr(self, part)) for part in PARTS}
        for part, (samples, holders) in held.items():
            outside = np.flatnonzero((samples < 0) | (samples >= len(dataset)))[:1]
            for place in outside.tolist():
                raise CoterieError(
                    f"client '{self.names[holders[place]]}': {part} names sample [{samples[place]}], but data "
                    f"'{dataset.name}' has samples 0..{len(dataset) - 1}"
                )
        # A sample at a client as one number: all clients are looked through at once.
        train, *others = (holders * len(dataset) + samples for samples, holders in held.values())
        for part, held_there in zip(PARTS[1:], others, strict=True):
            leaked = np.intersect1d(train, held_there) // len(dataset)
            for client in leaked[:1].tolist():
                count = int((leaked == client).sum())
                raise CoterieError(f"client '{self.names[client]}': {count} samples are in both train and {part}")

    def save(self, path: str | Path) -> None:
        """Write one .safetensors file: concatenated indices with offsets, and JSON metadata.

        With the suffix `.npz`, a plain file of indices and names instead, to hand over (`coterie.partition.partition`
        describes it): who is held out and how the partition was drawn do not stand in it.
        """
        if is_partition_file(path):
            write_partition(Path(path), {part: getattr(self, part) for part in PARTS}, self.names)
            return
        about = {"rule": self.rule, "parameters": self.parameters, "notes": self.notes, "names": self.names}
        metadata = {"format": FORMAT, "sha256": self.hash, "about": _json(about)}
        write_whole(Path(path), to_safetensors(self._arrays(), metadata))

    @staticmethod
    @typed
    def load(path: str | Path) -> Partition:
        """Read what `save` wrote; the stored hash must match. Of an `.npz`, the SHA-256 becomes a parameter."""
        if is_partition_file(path):
            parts, names, labels = read_partition(Path(path))
            digests = {"sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}
            digests |= {"labels_sha256": labels} if labels else {}
            held: dict[str, Any] = {part: tuple(rows) for part, rows in parts.items()}
            return Partition(**held, rule="file", parameters=digests, names=names)
        require(Path(path).is_file(), f"partition file '{path}' does not exist")
        return Partition.read(Path(path).read_bytes(), str(path))

    @staticmethod
    def read(content: bytes, path: str) -> Partition:
        """The partition in the bytes of a .safetensors file, which is called `path`; the stored hash must match."""
        try:
            arrays, metadata = from_safetensors(content), safetensors_texts(content)
            require(metadata.get("format") == FORMAT, f"'{path}' is not a file of the format '{FORMAT}'")
            about = json.loads(metadata["about"])
            loaded = Partition(
                **{part: tuple(parted(arrays[part], arrays[f"{part}_offsets"])) for part in PARTS},
                rule=about["rule"],
                parameters=about["parameters"],
                notes=tuple(about["notes"]),
                names=tuple(about["names"]),
                held_out=tuple(arrays["held_out"].tolist()),
                keys=arrays["keys"],
            )
        except (SafetensorError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise CoterieError(f"partition file '{path}' cannot be read: {error}") from error
        require(
            loaded.hash == metadata.get("sha256"),
            f"partition file '{path}' is damaged: its SHA-256 does not match its contents",
        )
        return loaded

    def _arrays(self) -> dict[str, Indices]:
        arrays = {"keys": self.keys, "held_out": np.array(self.held_out, dtype=np.int64)}
        for part in PARTS:
            rows: tuple[Indices, ...] = getattr(self, part)
            arrays[part], arrays[f"{part}_offsets"] = joined(rows)
        return arrays


def _arrays_of(part: Part, given: Any) -> list[Indices]:
    """Every client's samples of a part, however they were given."""
    try:
        arrays = [np.asarray(indices) for indices in given]
    except (TypeError, ValueError):
        arrays = [np.asarray("")]
    numbers = not isinstance(given, str | Mapping) and all(array.ndim == 1 and _whole(array) for array in arrays)
    if not numbers:
        raise CoterieError(
            f"partition: {part} = {shown(given)}: must hold the numbers of each client's samples, such as "
            "[[0, 1, 2], [5]]"
        )
    return [np.array(array, dtype=np.int64) for array in arrays]


def _with_holders(rows: tuple[Indices, ...]) -> tuple[Indices, Indices]:
    """All clients' samples one after the other, and who holds each: `[n]` each."""
    samples, offsets = joined(rows)
    return samples, np.repeat(np.arange(len(rows)), np.diff(offsets))


def _whole(array: Any) -> bool:
    return len(array) == 0 or array.dtype.kind in "iu"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
