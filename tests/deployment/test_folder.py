"""The folder of a federation: its files, what they say, and that Flower takes it."""

from __future__ import annotations

import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from coterie.deployment.agreement import Agreement
from coterie.deployment.check import look, look_here
from coterie.deployment.flower.folder import require_folder, write_folder
from coterie.deployment.flower.processes import environment, flower_command
from coterie.errors import CoterieError

pytestmark = pytest.mark.thorough


@pytest.fixture
def agreement() -> Agreement:
    return Agreement(name="North.Sea_2", sites=("site-a", "site-b"), shape=(1, 8, 8), classes=10, method="fedcac")


def test_what_is_written(tmp_path: Path, agreement: Agreement) -> None:
    folder = tmp_path / "new" / "federation"
    written = write_folder(folder, agreement)
    assert sorted(path.relative_to(folder).as_posix() for path in written) == [
        ".gitignore",
        "README.md",
        "coterie_app/__init__.py",
        "coterie_app/client.py",
        "coterie_app/server.py",
        "federation.toml",
        "pyproject.toml",
    ]
    assert Agreement.read(require_folder(folder)) == agreement
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"] == {"directory": ""}
    assert "site-a, site-b" in (folder / "README.md").read_text()


def test_the_apps_are_flowers(tmp_path: Path, agreement: Agreement, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, agreement)
    found = {}
    for side in ("server", "client"):
        path = tmp_path / "coterie_app" / f"{side}.py"
        scope = {"__file__": str(path), "__name__": side}
        exec(compile(path.read_text(), str(path), "exec"), scope)
        found[side] = type(scope["app"]).__name__
    assert found == {"server": "ServerApp", "client": "ClientApp"}


def test_nothing_is_overwritten(tmp_path: Path, agreement: Agreement) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(CoterieError, match=r"already holds README.md; name another"):
        write_folder(tmp_path, agreement)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_flower_packs_the_app_and_no_secret(tmp_path: Path, agreement: Agreement) -> None:
    folder = tmp_path / "north-sea"
    write_folder(folder, agreement)
    for private in ("keys/secret.json", "server/registered.json", "server/flower/config.toml", "sites/site-a/x.json"):
        (folder / private).parent.mkdir(parents=True, exist_ok=True)
        (folder / private).write_text("")
    command = [flower_command("flwr"), "build", "--app", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (packed,) = tmp_path.rglob("*.fab")
    with zipfile.ZipFile(packed) as archive:
        names = set(archive.namelist())
    assert names == {
        ".info/CONTENT",
        "README.md",
        "coterie_app/__init__.py",
        "coterie_app/client.py",
        "coterie_app/server.py",
        "federation.toml",
        "pyproject.toml",
    }


def test_launchers_learn_what_they_need(tmp_path: Path, agreement: Agreement) -> None:
    write_folder(tmp_path, agreement)
    path = require_folder(tmp_path)
    facts = look(path)
    assert (facts.name, facts.sites, facts.rounds, facts.method) == ("North.Sea_2", ["site-a", "site-b"], 20, "fedcac")
    assert look_here(path) == facts


def test_launchers_hear_of_mistakes(tmp_path: Path, agreement: Agreement) -> None:
    write_folder(tmp_path, agreement)
    path = require_folder(tmp_path)
    path.write_text(path.read_text().replace("rounds = 20", "rounds = 0"))
    with pytest.raises(CoterieError, match="rounds = 0: must be at least 1"):
        look(path)


def test_a_folder_without_an_agreement(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"holds no federation.toml; 'coterie federation init'"):
        require_folder(tmp_path)
