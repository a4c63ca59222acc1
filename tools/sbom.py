"""`python tools/sbom.py`: write `sbom.json`, what a development environment is made of, as CycloneDX 1.5.

Every installed package that Coterie needs, with its version, licence and what needs it; hashes are those of the lock.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
LOCK = REPOSITORY / "requirements" / "dev.txt"
NAME = re.compile(r"[A-Za-z0-9._-]+")
EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


def main(arguments: Sequence[str] = ()) -> int:
    """Look at the environment and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "sbom.json")
    given = parser.parse_args(arguments)
    made = bill()
    given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{given.out.name}: {len(made['components'])} packages")
    return 0


def bill(root: str = "coterie") -> dict[str, Any]:
    """The bill of materials of an installed package and all that it needs here."""
    needs = closure(root)
    hashes = locked_hashes(LOCK.read_text(encoding="utf-8")) if LOCK.is_file() else {}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {"type": "library", "bom-ref": root, "name": root, "version": metadata.version(root)},
        },
        "components": [component(name, hashes.get(name, [])) for name in sorted(needs) if name != root],
        "dependencies": [{"ref": name, "dependsOn": sorted(needed)} for name, needed in sorted(needs.items())],
    }


def component(name: str, hashes: Sequence[str]) -> dict[str, Any]:
    """One package."""
    about, version = metadata.metadata(name), metadata.version(name)
    licence = about.get("License-Expression") or next(
        (one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or () if one.startswith("License ::")), ""
    )
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    if licence:
        found["licenses"] = [{"license": {"name": licence}}]
    if hashes:
        found["hashes"] = [{"alg": "SHA-256", "content": one} for one in hashes]
    return found


def closure(root: str) -> dict[str, set[str]]:
    """What each package needs, from one on; what is not installed here (other platforms' packages) is left out."""
    found: dict[str, set[str]] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = {one for one in needed(name, with_extras=name == root) if one != name}
        waiting += found[name]
    return found


def needed(name: str, with_extras: bool) -> Iterator[str]:
    """The installed packages that one asks for; those of its extras too, if wished."""
    for text in metadata.requires(name) or ():
        requirement, _, marker = text.partition(";")
        if EXTRA.search(marker) and not with_extras:
            continue
        other = usual(NAME.match(requirement.strip())[0])  # type: ignore[index]
        try:
            metadata.version(other)
        except metadata.PackageNotFoundError:
            continue
        yield other


def usual(name: str) -> str:
    """A name as indexes spell it.

    >>> usual("Typing_Extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_hashes(text: str) -> dict[str, list[str]]:
    """The SHA-256 of every file that a lock allows, by package.

    >>> locked_hashes("a==1 --hash=sha256:0f")
    {'a': ['0f']}
    """
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if begin := re.match(r"([A-Za-z0-9._-]+)==", line):
            name = usual(begin[1])
        found.setdefault(name, []).extend(re.findall(r"--hash=sha256:([0-9a-f]+)", line))
    found.pop("", None)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
