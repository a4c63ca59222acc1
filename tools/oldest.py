"""`python tools/oldest.py`: run the quick tests with the oldest versions that `pyproject.toml` allows of everything.

A lower bound is a promise. This makes an environment of its own in `build/oldest`, in which every dependency of the
package (extras and what the tests need are left as new as they come) is as old as its bound, and tests there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
QUICK = "not (thorough or processes or ray or real or slow)"
BOUND = re.compile(r"^([A-Za-z0-9._-]+)>=([0-9.]+)$")


def oldest(requirements: Iterable[str]) -> list[str]:
    """Requirements with lower bounds as pins of these.

    >>> oldest(["numpy>=2.0", "torch>=2.13"])
    ['numpy==2.0', 'torch==2.13']
    """
    found = {requirement: BOUND.match(requirement) for requirement in requirements}
    without = [requirement for requirement, match in found.items() if match is None]
    if without:
        raise ValueError(f"no plain lower bound (name>=version): {', '.join(without)}")
    return [f"{match[1]}=={match[2]}" for match in found.values() if match is not None]


def main() -> int:
    """The command."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = REPOSITORY / "build" / "oldest"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pins = folder / "oldest.txt"
    pins.write_text("\n".join(oldest(project["dependencies"])) + "\n", encoding="utf-8")
    print(f"installing into {folder}: some minutes ...", flush=True)
    install = ["-m", "pip", "install", "--quiet", "--constraint", str(pins), f"{REPOSITORY}[dev]"]
    subprocess.run([python, *install], check=True)
    tests = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", QUICK, "tests"]
    return subprocess.run([python, *tests], cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
