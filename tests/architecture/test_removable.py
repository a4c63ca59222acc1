"""A feature is removed with its folder and its line: everything else runs as before."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.setup.features import FEATURES, SIMULATED

SOURCE = Path(__file__).parents[2] / "src" / "coterie"
PLAIN_RUN = """
from pathlib import Path

import coterie as ct
from coterie.cli import main
from coterie.testing.together import Together, agreed

result = ct.Experiment("fedper", "digits", join=0.5, rounds=2, epochs=1, threads=1).run(out="run")
assert result.accuracy().received.mean["last"] > 0
assert ct.open_run("run").summary["rounds"] == 2
assert main(["show", "run"]) == 0
assert main(["run", "--help"]) == 0
federation = Together(agreed("fedper", rounds=1, epochs=1), Path("federation"))
assert all(note["received"] for note in federation.run().values())
"""


def test_every_feature_stands_in_a_folder_of_its_name() -> None:
    for folder, text in {**FEATURES, **SIMULATED}.items():
        assert text.startswith(f"coterie.{folder}.")
        assert (SOURCE / folder).is_dir()


@pytest.mark.thorough
@pytest.mark.parametrize("folder", [*FEATURES, *SIMULATED])
def test_a_plain_round_runs_without_a_feature(folder: str, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "coterie", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "coterie" / folder)
    registry = tmp_path / "coterie" / "setup" / "features.py"
    line = rf'^    "{folder}": "coterie\.{folder}\..*",\n'
    text, count = re.subn(line, "", registry.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1
    registry.write_text(text, encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PLAIN_RUN}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
