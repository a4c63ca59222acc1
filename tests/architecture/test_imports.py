"""What a start loads: heavy packages wait until something needs them. Times are not asserted, what costs them is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "quickjs",
    "vl_convert",
    "PIL",
    "pyarrow",
    "ray",
    "flwr",
    "sympy",
}


def loaded(code: str, folder: Path) -> set[str]:
    """The packages that a new Python has loaded after some code, and the modules of ours."""
    text = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=folder)
    names = json.loads(told.stdout.splitlines()[-1])
    return {name if name.startswith("coterie.") else name.partition(".")[0] for name in names}


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
    assert not found & {"sklearn", "pandas", "matplotlib", "quickjs", "ray", "flwr"}
    # Of what lists name, a run loads what it uses.
    assert {name for name in found if name.startswith("coterie.methods.")} == {
        "coterie.methods.base",
        "coterie.methods.fedavg",
    }
    ours = {name for name in found if name.startswith("coterie.")}
    assert len(ours) <= 150
    commands = {name for name in ours if name.startswith("coterie.cli.")}
    assert commands == {f"coterie.cli.{name}" for name in ("app", "errors", "experiments", "options", "output", "run")}
    folders = {name.split(".")[1] for name in ours}
    assert not folders & {"deployment", "serve", "loggers", "reproduce", "testing"}
    assert not ours & {
        "coterie.compare.workers",
        "coterie.compare.table",
        "coterie.report.page",
        "coterie.setup.trials",
    }
    others = {"partition": ("iid", "dominant", "owners"), "models": ("cnn", "resnet"), "data": ("published", "own")}
    assert not found & {f"coterie.{folder}.{name}" for folder, names in others.items() for name in names}
