"""The folder of a federation, and the Flower app of a few lines that follows from its agreement."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from coterie.deployment.agreement_terms import CHANGEABLE
from coterie.errors import require
from coterie.files import write_whole

if TYPE_CHECKING:
    from coterie.deployment.agreement import Agreement

AGREEMENT = "federation.toml"
KEYS = "keys"
SERVER = "server"
SITES = "sites"
PACKAGE = "coterie_app"

APP = '''"""The {side}'s side of the federation, for Flower."""

from pathlib import Path

from coterie.deployment.flower.{side} import {side}_app

app = {side}_app(Path(__file__).parent.parent / "{agreement}")
'''

# Keys and state are nobody else's business.
IGNORED = f"""\
/{KEYS}/
/{SERVER}/
/{SITES}/
"""

README = """\
# {name}

A federation of {count}: {names}. What they agree on is in `{agreement}`: the same file for all. Once
they have begun, `coterie federation extend` changes it.

1. The server's certificate, once, where the server runs (`--host` for every name or address by which sites reach it):

       coterie federation keys . --host server.example.org

   Every site gets `{agreement}` and `{keys}/ca.pem`. Keep `{keys}/ca.key` in a safe place.

2. Each site reads `{agreement}`, accepts it, and makes its own key; the private half never leaves it:

       coterie federation join {agreement} --name {first} --root-certificate ca.pem

   It sends the line that this prints back: its public key, for

       coterie federation keys . --accept {first}='ecdsa-sha2-nistp384 AAAA...'

3. The server:

       coterie federation server . --host 0.0.0.0

   It waits for the sites, runs all rounds and ends. Stopped in between, the same command resumes.

4. Each site, with its own data (a folder of images, `.npz`, `.parquet` or `.csv`), which nobody else sees:

       coterie federation client --server server.example.org:8000 --name {first} --data PATH

`{keys}/`, `{server}/` (the server's state) and `{sites}/` (sites' state, when they run on this machine) are never sent
to anybody and must not be committed.
"""


def write_folder(folder: Path, agreement: Agreement) -> list[Path]:
    """Write the folder of a new federation; the files written. Nothing that exists is touched."""
    contents = _contents(agreement)
    taken = [name for name in contents if (folder / name).exists()]
    require(
        not taken, f"folder = {folder}: already holds {', '.join(taken)}; name another, or change {AGREEMENT} in it"
    )
    return _write(folder, contents)


def write_app(folder: Path, agreement: Agreement) -> list[Path]:
    """Write the Flower app of a federation: whoever has the same agreement writes the same bytes.

    Terms that may change in the course of a federation have their defaults in it: for these server and sites have their
    own copies of the agreement.
    """
    defaults: dict[str, Any] = {item.name: item.default for item in fields(agreement) if item.name in CHANGEABLE}
    agreed = replace(agreement, **defaults)
    contents = {
        AGREEMENT: agreed.toml(),
        "pyproject.toml": _project(agreement),
        f"{PACKAGE}/__init__.py": f'"""The federation {agreement.name} as a Flower app."""\n',
        f"{PACKAGE}/server.py": APP.format(side="server", agreement=AGREEMENT),
        f"{PACKAGE}/client.py": APP.format(side="client", agreement=AGREEMENT),
    }
    if folder.exists():
        shutil.rmtree(folder)  # what else is in it would be packed too
    return _write(folder, contents)


def _write(folder: Path, contents: Mapping[str, str]) -> list[Path]:
    written = []
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def name_task_key(path: Path, public: str) -> None:
    """Write into an agreement's file by which key its server signs; everything else stays as it stands there."""
    text = path.read_text(encoding="utf-8")
    line, empty = f'server_key = "{public}"\n', 'server_key = ""\n'
    write_whole(path, (text.replace(empty, line, 1) if empty in text else line + text).encode())


def require_folder(folder: Path) -> Path:
    """The agreement's file in a federation's folder."""
    path = folder / AGREEMENT
    way_out = "'coterie federation init' makes such a folder"
    require(path.is_file(), f"folder = {folder}: holds no {AGREEMENT}; {way_out}")
    return path


def _contents(agreement: Agreement) -> dict[str, str]:
    facts = {
        "name": agreement.name,
        "count": f"{len(agreement.sites)} site{'s' * (len(agreement.sites) > 1)}",
        "names": ", ".join(agreement.sites),
        "first": agreement.sites[0],
        "agreement": AGREEMENT,
        "keys": KEYS,
        "server": SERVER,
        "sites": SITES,
    }
    return {
        AGREEMENT: agreement.toml(),
        ".gitignore": IGNORED,
        "README.md": README.format(**facts),
    }


def _project(agreement: Agreement) -> str:
    # Flower allows fewer letters in an app's name than we do in a federation's.
    plain = re.sub(r"[^a-z0-9]+", "-", agreement.name.lower()).strip("-")
    return tomli_w.dumps(
        {
            "project": {
                "name": plain,
                "version": "1.0.0",
                "description": f"The federation {agreement.name}",
                "license": "Apache-2.0",
                "dependencies": ["coterie[flower]"],
            },
            "tool": {
                "flwr": {
                    "app": {
                        "publisher": "coterie",
                        "components": {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"},
                        "config": {"directory": "", "agreement": "", "keys": "", "keyed": False, "wake_up": ""},
                    }
                }
            },
        }
    )
