"""`python tools/lock.py`: write `requirements/dev.txt`, every package of a development environment with its hashes.

All but PyTorch, whose build differs from index to index (`constraints.txt` has its version). Needs pip-tools; asks the
package index that pip is set up for, and names none. The versions are those of `constraints.txt` where that has one,
else those of the environment that this runs in: what was tested is what is locked.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LOCK = REPOSITORY / "requirements" / "dev.txt"
UNLOCKED = ("torch",)
HEADER = """\
# What `make locked` installs: written by tools/lock.py, not by hand. PyTorch is not among it: see constraints.txt.
# Files for every platform that the index knew are allowed; versions are those that were tested on Linux, Python 3.11.
"""
OWN_EXTRAS = re.compile(r"coterie\[([\w,]+)\]")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", re.MULTILINE)


def wanted(extra: str = "dev") -> list[str]:
    """The requirements of the package with an extra, those that extras name of each other included.

    >>> "flwr==1.41.0" in wanted(), any(one.startswith("torch") for one in wanted())
    (True, True)
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    return [*project["project"]["dependencies"], *_flat(extras, extra), *project["build-system"]["requires"]]


def _flat(extras: dict[str, list[str]], name: str) -> Iterator[str]:
    for one in extras[name]:
        found = OWN_EXTRAS.fullmatch(one)
        if found is None:
            yield one
        else:
            for other in found[1].split(","):
                yield from _flat(extras, other)


def locked(text: str) -> dict[str, str]:
    """Name and version of everything in a lock.

    >>> locked("numpy==2.1.0 \\\\\\n    --hash=sha256:00\\n")
    {'numpy': '2.1.0'}
    """
    return {name.lower().replace("_", "-"): version for name, version in PINNED.findall(text)}


def main(arguments: Sequence[str] = ()) -> int:
    """Ask the index and write the lock."""
    here = {one.metadata["Name"].lower(): one.version for one in metadata.distributions()}
    here = {name: version for name, version in here.items() if name != "coterie" and "+" not in version}
    with tempfile.TemporaryDirectory() as folder:
        given, tested, out = (Path(folder) / name for name in ("wanted.in", "tested.txt", "dev.txt"))
        given.write_text("\n".join(wanted()) + "\n", encoding="utf-8")
        tested.write_text("".join(f"{name}=={version}\n" for name, version in sorted(here.items())), encoding="utf-8")
        words = ["--generate-hashes", "--allow-unsafe", "--strip-extras", "--no-header", "--no-annotate", "--quiet"]
        words += ["--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host", "--no-emit-options"]
        words += [f"--unsafe-package={name}" for name in UNLOCKED]
        words += ["--constraint", str(REPOSITORY / "constraints.txt"), "--constraint", str(tested)]
        subprocess.run([sys.executable, "-m", "piptools", "compile", *words, "-o", str(out), str(given)], check=True)
        LOCK.write_text(HEADER + without(out.read_text(encoding="utf-8"), UNLOCKED), encoding="utf-8")
    return 0


def without(text: str, names: Sequence[str]) -> str:
    """A lock without some packages.

    >>> without("a==1 \\\\\\n    --hash=sha256:00\\nb==2 \\\\\\n    --hash=sha256:11\\n", ["a"])
    'b==2 \\\\\\n    --hash=sha256:11\\n'
    """
    kept, skipping = [], False
    for line in text.splitlines(keepends=True):
        if found := PINNED.match(line):
            skipping = found[1].lower() in names
        if not skipping and not line.startswith("#"):
            kept.append(line)
    return "".join(kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
