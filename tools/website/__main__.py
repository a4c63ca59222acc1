"""Build the site, and look at it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tools.website.assemble import REPOSITORY, assemble
from tools.website.check import problems


def build(folder: Path) -> list[str]:
    """Build the site into `folder/site`; what is wrong with it, empty if nothing is."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    assemble(folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(folder / "zensical.toml")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        return [done.stdout + done.stderr]
    return list(problems(folder / "site"))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.website", description="Build the documentation site.")
    parser.add_argument("folder", nargs="?", type=Path, default=REPOSITORY / "build" / "website")
    folder: Path = parser.parse_args().folder
    print("building the documentation: some ten seconds ...", flush=True)
    wrong = build(folder)
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"open {folder / 'site' / 'index.html'}")
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
