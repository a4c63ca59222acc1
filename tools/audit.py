"""`python tools/audit.py`: ask whether any locked package has a known weakness, with pip-audit.

The data base of weaknesses is on the network. Where that cannot be asked, or pip-audit is not installed, nothing is
checked, and the last line says so: an audit that was skipped is none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
LOCK = REPOSITORY / "requirements" / "dev.txt"
PATIENCE = 600.0


def main(arguments: Sequence[str] = ()) -> int:
    """Ask, and say what is known; 1 if a package has a weakness."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "audit.json"
        words = ["-m", "pip_audit", "--requirement", str(LOCK), "--disable-pip", "--require-hashes"]
        words += ["--format", "json", "--output", str(out), "--progress-spinner", "off", *arguments]
        try:
            ended = subprocess.run(
                [sys.executable, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"skipped: no answer in {PATIENCE:g} seconds")
            return 0
        if not out.is_file() or not out.read_text(encoding="utf-8").strip():
            said = ended.stderr.strip().splitlines() or ["no reason given"]
            print(f"skipped: pip-audit could not ask ({said[-1][:200]})")
            return 0
        return told(json.loads(out.read_text(encoding="utf-8")))


def told(answer: dict[str, Any]) -> int:
    """Say what pip-audit found.

    >>> told({"dependencies": [{"name": "a", "version": "1", "vulns": []}]})
    1 packages, 0 with known weaknesses
    0
    """
    packages = answer["dependencies"]
    weak = [one for one in packages if one.get("vulns")]
    for one in weak:
        for weakness in one["vulns"]:
            mended = ", ".join(weakness.get("fix_versions", ())) or "no version yet"
            print(f"{one['name']} {one['version']}: {weakness['id']}, mended in {mended}")
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    if len(unknown) == len(packages):
        why = next((str(one["skip_reason"]) for one in packages), "the lock is empty")
        print(f"skipped: the data base said nothing of any package ({why[:200]})")
        return 0
    if unknown:
        print(f"not looked at: {', '.join(unknown)}")
    print(f"{len(packages) - len(unknown)} packages, {len(weak)} with known weaknesses")
    return 1 if weak else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
