"""The data sets that Coterie knows by name, and how each is found, fetched or made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from coterie.core.pixels import Pixels
from coterie.data.archives import Remote, data_folder, download
from coterie.data.dataset import Dataset
from coterie.errors import CoterieError, described, require
from coterie.registry import Registry

if TYPE_CHECKING:
    from coterie.data.images import ImageFiles

    Find = Callable[[Path, bool], ImageFiles | None]
    """Looks into a folder (the flag: show progress when reading); None where no layout is complete."""


@dataclass(frozen=True)
class KnownDataset:
    """A data set by name: what it is, which files it is read from, and where those are published.

    `find` looks for one of the set's layouts in a folder; `remotes` are fetched where it finds nothing
    (no checksum known: no `remotes`); `files` says what to place there by hand. A set that is made, not found, has
    `make` instead; how many classes it has may be left open then (0), and it may be for regression. `has_clients` says
    whether it names the client of each sample (None: to be seen in the set itself).
    """

    name: str
    description: str
    classes: int = 0
    class_names: tuple[str, ...] = ()
    files: str = ""
    remotes: tuple[Remote, ...] = ()
    find: Find | None = None
    make: Callable[[], Dataset] | None = None
    has_clients: bool | None = False

    def load(self, root: Path | None = None, progress: bool = True) -> Dataset:
        """The whole data set, normalised; official training samples first."""
        if self.make is not None:
            try:
                made = self.make()
            except CoterieError:
                raise
            except (Exception, SystemExit) as error:  # whatever somebody's function may raise
                raise CoterieError(f"data '{self.name}': cannot be made ({described(error)})") from error
            require(isinstance(made, Dataset), f"data '{self.name}': made {type(made).__name__}, no coterie.Dataset")
            return made
        assert self.find is not None
        decoded = self._image_files(self.find, data_folder(self.name, root), progress).decoded(self.name)
        names = decoded.class_names or self.class_names
        return Dataset(
            self.name,
            Pixels.mapped(decoded.images),
            torch.from_numpy(decoded.labels),
            self.classes,
            decoded.train_size,
            None if decoded.owners is None else torch.from_numpy(decoded.owners),
            decoded.owner_names,
            names if len(names) == self.classes else (),
        )

    @property
    def names_clients(self) -> bool:
        """Whether it says which client each sample is of; a set that cannot tell otherwise is made for it."""
        return self.load(progress=False).names_clients if self.has_clients is None else self.has_clients

    def missing(self, root: Path | None = None) -> str | None:
        """How to get the data set, if it is not on this machine; nothing is fetched or decoded."""
        if self.make is not None or self.find is None:
            return None
        folder = data_folder(self.name, root)
        if folder.is_dir() and self.find(folder, False) is not None:
            return None
        fetch = f"; 'coterie run --data {self.name} --rounds 1' fetches them" if self.remotes else ""
        return f"place {self.files} in {folder}{fetch}"

    def _image_files(self, find: Find, folder: Path, progress: bool) -> ImageFiles:
        """The files as they lie in a folder, or as they are fetched into it."""
        if files := find(folder, progress):
            return files
        place = f"place {self.files} in {folder}"
        if not self.remotes:
            raise CoterieError(f"data '{self.name}': no files found; {place}")
        for remote in self.remotes:
            if not (folder / remote.file).is_file():
                try:
                    download(remote, folder, progress)
                except CoterieError as error:
                    raise CoterieError(f"data '{self.name}': {error}; {place}") from error
        if files := find(folder, progress):
            return files
        raise CoterieError(f"data '{self.name}': the files in {folder} are incomplete; {place}")


def _known_dataset(name: str, thing: object) -> KnownDataset:
    if isinstance(thing, KnownDataset):
        return replace(thing, name=name)
    if not callable(thing):
        raise CoterieError(f"data '{name}': must be a function that returns a coterie.Dataset, or a KnownDataset")
    return KnownDataset(name, (thing.__doc__ or "").strip().partition("\n")[0], make=thing, has_clients=None)


NATURAL = {
    "health": ("azpro", "randhie", "covid", "guimmun", "contraception", "indo", "thornton"),
    "schools": ("exam", "hsb82", "chem97", "egsingle", "star", "insteval"),
    "people": ("catsup", "yogurt", "cracker", "verbagg", "tv16", "loans"),
    "nature": ("vowel", "portal"),
}
"""The sets with natural clients, by the module of `data/natural/` that declares them."""

DATASETS: Registry[KnownDataset] = Registry(
    "data set",
    "coterie.datasets",
    {
        "digits": "coterie.data.embedded:DIGITS",
        "diabetes": "coterie.data.embedded:DIABETES",
        "mnist": "coterie.data.published:MNIST",
        "fashion_mnist": "coterie.data.published:FASHION_MNIST",
        "cifar10": "coterie.data.published:CIFAR10",
        "cifar100": "coterie.data.published:CIFAR100",
        "emnist": "coterie.data.published:EMNIST",
        "cinic10": "coterie.data.published:CINIC10",
        "tiny_imagenet": "coterie.data.published:TINY_IMAGENET",
        "domainnet": "coterie.data.published:DOMAINNET",
        **{
            f"natural/{name}": f"coterie.data.natural.{room}:{name.upper()}"
            for room, names in NATURAL.items()
            for name in names
        },
    },
    _known_dataset,
)
"""Every data set by name: a `KnownDataset`, which a function that returns a `Dataset` is made into."""
