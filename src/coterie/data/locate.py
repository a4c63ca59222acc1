"""Where data files are looked for and where decoded images are kept.

Files of a data set lie in `<root>/<name>/`; `root` is the argument, else the environment variable
`COTERIE_DATA`, else `coterie/data` in the user's cache directory (`XDG_CACHE_HOME`, or `~/.cache`).
"""

from __future__ import annotations

import os
from pathlib import Path

from coterie.errors import CoterieError
from coterie.files import expanded

DATA = "COTERIE_DATA"
"""The variable of the environment that names the folder of data sets."""


def user_cache() -> Path | None:
    """The user's cache directory, or None where there is no home directory to hold one."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    if chosen and Path(chosen).is_absolute():
        return Path(chosen)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def data_folder(name: str, root: Path | None = None) -> Path:
    """The folder that holds (or is to hold) the files of data set `name`.

    >>> data_folder("mnist", Path("somewhere")).as_posix()
    'somewhere/mnist'
    """
    if root is not None:
        return Path(root) / name
    if chosen := os.environ.get(DATA, ""):
        return expanded(chosen) / name
    cache = user_cache()
    if cache is None:
        raise CoterieError(f"data '{name}': there is no home directory to keep files in; set COTERIE_DATA to a folder")
    return cache / "coterie" / "data" / name


def decoded_folder() -> Path | None:
    """Where decoded images are kept: `COTERIE_CACHE`, else `coterie/decoded` in the user's cache."""
    if chosen := os.environ.get("COTERIE_CACHE", ""):
        return expanded(chosen)
    cache = user_cache()
    return None if cache is None else cache / "coterie" / "decoded"
