"""`python -m tools.lock`: write `requirements/dev.txt`, every package of this environment with the hashes of its files.

All but PyTorch, whose build differs from index to index (`constraints.txt` has its version). What is installed here
and needed by Coterie is what was tested, and what is locked; the hashes are those that the package index states which
pip is set up for. None is named.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from tools.sbom import LOCK, REPOSITORY, closure, usual

UNLOCKED = ("coterie", "torch")
HEADER = """\
# What `make locked` installs: written by tools/lock.py, not by hand. PyTorch is not among it: see constraints.txt.
# Files for all platforms are allowed; the versions are those that were tested, on Linux with Python 3.11.
"""
OWN_EXTRAS = re.compile(r"coterie\[([\w,]+)\]")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", re.MULTILINE)
LINK = re.compile(r"/([^/\s#]+)#sha256=([0-9a-f]{64})")
SUFFIXES = (".whl", ".tar.gz", ".zip", ".tar.bz2")


def wanted(extra: str = "dev") -> list[str]:
    """The requirements of the package with an extra, those that extras name of each other included.

    >>> "flwr==1.41.0" in wanted(), any(one.startswith("torch") for one in wanted())
    (True, True)
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    return [*project["project"]["dependencies"], *_flat(extras, extra), *project["build-system"]["requires"]]


def _flat(extras: Mapping[str, Sequence[str]], name: str) -> Iterator[str]:
    for one in extras[name]:
        found = OWN_EXTRAS.fullmatch(one)
        if found is None:
            yield one
        else:
            for other in found[1].split(","):
                yield from _flat(extras, other)


def locked(text: str) -> dict[str, str]:
    """Name and version of everything in a lock.

    >>> locked("numpy==2.1.0 --hash=sha256:00")
    {'numpy': '2.1.0'}
    """
    return {usual(name): version for name, version in PINNED.findall(text)}


def main(arguments: Sequence[str] = ()) -> int:
    """Ask the index and write the lock."""
    names = sorted(closure(*wanted()).keys() - set(UNLOCKED))
    versions = {name: metadata.version(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        pins.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()), encoding="utf-8")
        # All that pip looks at is said there, with hashes; nothing is installed.
        words = ["install", "--dry-run", "--ignore-installed", "--no-deps", "-vv", "--requirement", str(pins)]
        asked = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=True)
    LOCK.parent.mkdir(exist_ok=True)
    LOCK.write_text(written(versions, asked.stdout.splitlines()), encoding="utf-8")
    return 0


def written(versions: Mapping[str, str], said: Iterable[str]) -> str:
    """The lock of some versions, given what pip says of the files that an index has; an error if it has none of one.

    >>> said = ["Found link scheme://index/ab/Odd_Name-1.0-py3-none-any.whl#sha256=" + 64 * "f"]
    >>> print(written({"odd-name": "1.0"}, said).splitlines()[-2])
    odd-name==1.0 \\
    """
    found: dict[str, set[str]] = {name: set() for name in versions}
    for line in said:
        for file, digest in LINK.findall(line):
            name, version = parted(file)
            if versions.get(name) == version:
                found[name].add(digest)
    lacking = sorted(name for name, hashes in found.items() if not hashes)
    if lacking:
        raise SystemExit(f"the index states no hashes for {', '.join(lacking)}")
    blocks = [
        " \\\n".join([f"{name}=={versions[name]}", *(f"    --hash=sha256:{digest}" for digest in sorted(found[name]))])
        for name in sorted(found)
    ]
    return HEADER + "\n".join(blocks) + "\n"


def parted(file: str) -> tuple[str, str]:
    """The name and the version in the name of a package's file.

    >>> parted("scikit_learn-1.5.2-cp311-cp311-win_amd64.whl"), parted("odd-name-2.0rc1.tar.gz")
    (('scikit-learn', '1.5.2'), ('odd-name', '2.0rc1'))
    """
    if file.endswith(".whl"):
        name, version, *_ = file.split("-")
        return usual(name), version
    stem = next((file.removesuffix(suffix) for suffix in SUFFIXES if file.endswith(suffix)), file)
    name, _, version = stem.rpartition("-")
    return usual(name), version


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
