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

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[1]
LOCK = REPOSITORY / "requirements" / "dev.txt"


def main(arguments: Sequence[str] = ()) -> int:
    """Look at the environment and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "sbom.json")
    given = parser.parse_args(arguments)
    made = bill()
    given.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{given.out.name}: {len(made['components'])} packages")
    return 0


def bill(root: str = "coterie", extra: str = "dev") -> dict[str, Any]:
    """The bill of materials of an installed package with an extra, and of all that it needs here."""
    needs = closure(f"{root}[{extra}]")
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


def closure(*wanted: str) -> dict[str, set[str]]:
    """What each package needs, from some requirements on; what no marker asks for on this machine is left out.

    >>> "markupsafe" in closure("jinja2>=3")["jinja2"]
    True
    """
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(one) for one in wanted]
    while waiting:
        one = waiting.pop()
        name, extras = usual(one.name), frozenset(one.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        needed = list(_needed(name, extras))
        found.setdefault(name, set()).update(usual(other.name) for other in needed if usual(other.name) != name)
        waiting += needed
    return found


def _needed(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """The requirements of an installed package with some extras."""
    for text in metadata.requires(name) or ():
        other = Requirement(text)
        if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
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
