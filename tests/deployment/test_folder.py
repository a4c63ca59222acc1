"""The folder of a federation and its app: what they say, that Flower takes it, and that builds do not differ."""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.deployment.agreement import Agreement
from coterie.deployment.flower.folder import require_folder, write_app, write_folder
from coterie.deployment.flower.relay import agree, agreed, app_hash, packed_app
from coterie.deployment.inspection import look, look_here
from coterie.deployment.versions import with_own_terms
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
        "federation.toml",
    ]
    assert Agreement.read(require_folder(folder)) == agreement
    assert "site-a, site-b" in (folder / "README.md").read_text()


def test_the_apps_are_flowers(tmp_path: Path, agreement: Agreement) -> None:
    write_app(tmp_path / "app", agreement)
    found = {}
    for side in ("server", "client"):
        path = tmp_path / "app" / "coterie_app" / f"{side}.py"
        scope = {"__file__": str(path), "__name__": side}
        exec(compile(path.read_text(), str(path), "exec"), scope)
        found[side] = type(scope["app"]).__name__
    assert found == {"server": "ServerApp", "client": "ClientApp"}


def test_nothing_is_overwritten(tmp_path: Path, agreement: Agreement) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(CoterieError, match=r"already holds README.md; name another"):
        write_folder(tmp_path, agreement)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_two_builds_give_one_hash(tmp_path: Path, agreement: Agreement) -> None:
    """At the server and at a site: in folders of their own, from files of their own, at other times."""
    write_folder(tmp_path / "server", agreement)
    path = tmp_path / "site" / "federation.toml"
    path.parent.mkdir()
    plain = agreement.plain() | {"deadline": 7.0, "least_sites": 1}  # the server's own business
    path.write_text("# read and accepted\n" + Agreement.parse(plain).toml())
    for number, file in enumerate((tmp_path / "server" / "federation.toml", path)):
        look_here(file, app=tmp_path / str(number) / "app")
    (tmp_path / "1" / "app" / "pyproject.toml").touch()
    os.utime(tmp_path / "1" / "app" / "federation.toml", (0, 0))
    (tmp_path / "1" / "app" / "federation.toml").chmod(0o600)
    one, other = (packed_app(tmp_path / str(number) / "app") for number in range(2))
    assert one == other
    with zipfile.ZipFile(io.BytesIO(one)) as archive:
        assert set(archive.namelist()) == {
            ".info/CONTENT",
            "coterie_app/__init__.py",
            "coterie_app/client.py",
            "coterie_app/server.py",
            "federation.toml",
            "pyproject.toml",
        }
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}, "zlib would have a say"


def test_another_agreement_is_another_app(tmp_path: Path, agreement: Agreement) -> None:
    for name, one in {"this": agreement, "that": replace(agreement, rounds=21)}.items():
        write_app(tmp_path / name, one)
    this, that = (packed_app(tmp_path / name) for name in ("this", "that"))
    assert app_hash(this) != app_hash(that)
    mark = agree(tmp_path / "agreed", this)
    assert agreed(tmp_path / "agreed", mark) == this
    assert agreed(tmp_path / "agreed", app_hash(that)) is None
    assert agreed(tmp_path / "agreed", "../agreed/" + mark) is None
    (tmp_path / "agreed" / f"{mark}.fab").write_bytes(that)
    assert agreed(tmp_path / "agreed", mark) is None, "a changed file is not what was agreed to"


def test_everybody_has_terms_of_their_own_that_may_change(tmp_path: Path, agreement: Agreement) -> None:
    write_app(tmp_path / "app", agreement)
    packed, own = Agreement.read(tmp_path / "app" / "federation.toml"), tmp_path / "federation.toml"
    own.write_text(replace(agreement, deadline=7.0).toml())
    assert with_own_terms(packed, str(own)).deadline == 7.0
    assert with_own_terms(packed, "").deadline == 600.0
    own.write_text(replace(agreement, rounds=7).toml())
    with pytest.raises(CoterieError, match="was changed after this app was packed"):
        with_own_terms(packed, str(own))


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
