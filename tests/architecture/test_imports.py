"""What a start loads: heavy packages wait until something needs them. Times are not asserted, what costs them is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "PIL", "pyarrow", "ray", "flwr", "sympy"}


def loaded(code: str, folder: Path) -> set[str]:
    """The packages that a new Python has loaded after some code."""
    text = f"import sys, json\n{code}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=folder)
    return set(json.loads(told.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import coterie; dir(coterie)",
        "import coterie.cli; coterie.cli.main(['--help'])",
        "import coterie.cli; coterie.cli.main(['run', '--help'])",
        "import coterie.cli; coterie.cli.main(['version'])",
    ],
)
def test_a_start_loads_nothing_heavy(code: str, tmp_path: Path) -> None:
    assert not loaded(code, tmp_path) & HEAVY


@pytest.mark.thorough
def test_a_run_on_digits_loads_what_it_needs_and_no_more(tmp_path: Path) -> None:
    code = "import coterie.cli; assert coterie.cli.main(['run', 'fedavg', '--rounds', '1', '--epochs', '1']) == 0"
    found = loaded(code, tmp_path)
    assert "torch" in found
    assert not found & {"sklearn", "pandas", "matplotlib", "ray", "flwr"}
