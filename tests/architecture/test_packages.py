"""What is handed out: a wheel and a source distribution that are complete, and work where nothing else of ours is."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import tools.oldest
import torch
from tools.oldest import oldest

from coterie.version import VERSION

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "coterie"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The packages of extras, which somebody who installs the library alone does not have.
OF_EXTRAS = (
    *("matplotlib", "quickjs", "vl_convert", "tensorboard", "wandb", "opacus", "onnx", "onnxscript", "optuna", "ray"),
    *("flwr", "cryptography", "h11", "zensical", "latex2mathml", "pytest", "nbclient"),
)

INSTALLED_AS = {"quickjs": "quickjs-ng", "vl_convert": "vl-convert-python"}


def package_files() -> set[str]:
    """Every file of the package as it must stand in the wheel."""
    found = (path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


def ran(command: list[str | Path], where: Path, **settings: str) -> str:
    """What a command prints; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_dependency_has_a_lower_bound() -> None:
    assert len(oldest(PROJECT["dependencies"])) == len(PROJECT["dependencies"])
    outcome = doctest.testmod(tools.oldest)
    assert outcome.attempted
    assert not outcome.failed


def test_what_is_no_lower_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="numpy<3"):
        oldest(["numpy<3", "torch>=2.13"])


def test_extras_of_the_tests_above_are_all_extras() -> None:
    named = {re.split(r"[<>=\[]", item)[0] for many in PROJECT["optional-dependencies"].values() for item in many}
    assert {INSTALLED_AS.get(name, name) for name in OF_EXTRAS} <= named


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both distributions; the wheel is made of the source distribution, so that must be complete."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=leave)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    dist = folder / "dist"
    dist.mkdir()
    # What `python -m build --no-isolation` does: ask the backend for the source, and make the wheel of that.
    ran([sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(dist)!r})"], source)
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", dist]
    ran([sys.executable, "-m", "pip", "wheel", "--quiet", *offline, dist / f"coterie-{VERSION}.tar.gz"], folder)
    return dist


@pytest.mark.slow
def test_both_distributions_have_every_file_of_the_package(built: Path) -> None:
    with zipfile.ZipFile(built / f"coterie-{VERSION}-py3-none-any.whl") as wheel:
        held = {name for name in wheel.namelist() if name.startswith("coterie/")}
    assert held == package_files()
    with tarfile.open(built / f"coterie-{VERSION}.tar.gz") as archive:
        names = {name.partition("/src/")[2] for name in archive.getnames()}
    assert package_files() <= names


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_without_extras(built: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    ran([sys.executable, "-m", "venv", environment], tmp_path)
    python, inside = environment / "bin" / "python", next((environment / "lib").glob("python*")) / "site-packages"
    wheel = built / f"coterie-{VERSION}-py3-none-any.whl"
    ran([python, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", wheel], tmp_path)
    # Dependencies are taken from here instead of fetching them again; those of extras alone cannot be imported.
    (inside / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n", encoding="utf-8")
    refused = f"import sys\nfor name in {OF_EXTRAS!r}:\n    sys.modules[name] = None\n"
    (inside / "without_extras.py").write_text(refused, encoding="utf-8")
    (inside / "without_extras.pth").write_text("import without_extras\n", encoding="utf-8")
    tried = "import importlib.util, sys; print([name for name in sys.argv[1:] if sys.modules.get(name, 1) is not None])"
    assert ran([python, "-c", tried, *OF_EXTRAS], tmp_path).strip() == "[]"
    where = ran([python, "-c", "import coterie; print(coterie.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(inside)

    coterie = environment / "bin" / "coterie"
    small = ["--clients", "4", "--rounds", "1", "--threads", "1"]
    assert VERSION in ran([coterie, "version"], tmp_path)
    ran([coterie, "run", "fedavg", *small, "--out", "run"], tmp_path)
    assert (tmp_path / "run" / "summary.json").is_file()
    ran([coterie, "report", "run"], tmp_path)  # its page needs the package's own files
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "my.py").write_text(source, encoding="utf-8")
    ran([coterie, "run", "./my.py:FedLong", "--set", "epochs=2", *small, "--out", "own"], tmp_path)
    assert (tmp_path / "own" / "summary.json").is_file()
