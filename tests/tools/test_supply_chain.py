"""The lock, the bill of materials, the search for secrets; and that nothing unsafe is read or extracted."""

from __future__ import annotations

import ast
import doctest
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tools import audit, leaks, lock, sbom

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("tool", [audit, leaks, lock, sbom], ids=lambda tool: tool.__name__)
def test_examples(tool: ModuleType) -> None:
    found = doctest.testmod(tool)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_everything_wanted_is_locked_but_pytorch() -> None:
    locked = lock.locked(LOCK)
    wanted = {sbom.usual(re.split(r"[<>=!~\[ ;]", one)[0]) for one in lock.wanted()}
    assert wanted - locked.keys() == {"torch"}


def test_everything_locked_has_hashes_and_names_no_index() -> None:
    hashes = sbom.locked_hashes(LOCK)
    assert hashes.keys() == lock.locked(LOCK).keys()
    assert all(re.fullmatch(r"[0-9a-f]{64}", one) for own in hashes.values() for one in own)
    assert all(hashes.values())
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert "--find-links" not in LOCK


def test_the_lock_holds_to_the_constraints() -> None:
    pinned = lock.locked((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    locked = lock.locked(LOCK)
    for name, version in pinned.items():
        assert locked.get(name, version) == version


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    assert sbom.main(["--out", str(tmp_path / "sbom.json")]) == 0
    bill = json.loads((tmp_path / "sbom.json").read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    names = [one["name"] for one in bill["components"]]
    assert {"torch", "numpy", "safetensors", "flwr"} <= set(names)
    assert len(names) == len(set(names))
    known = {"coterie", *names}
    assert all({one["ref"], *one["dependsOn"]} <= known for one in bill["dependencies"])
    (numpy,) = (one for one in bill["components"] if one["name"] == "numpy")
    assert numpy["purl"] == f"pkg:pypi/numpy@{numpy['version']}"
    assert numpy["hashes"]


SECRETS = {
    "private key": "-----BEGIN RSA PRIVATE" + " KEY-----\nMIIEow",
    "cloud access key": "AKIA" + "Q7" * 8,
    "forge token": "ghp_" + "a1" * 18,
    "chat token": "xoxb-" + "12345-abcdef",
    "service key": "hf_" + "Zz" * 17,
    "web token": ".".join(("eyJ" + "a" * 12, "eyJ" + "b" * 12, "c" * 12)),
    "address with a password": "https://me:" + "hunter2@host",
    "password in an assignment": "password = " + '"correct-horse-battery"',
}


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_are_found(kind: str) -> None:
    assert (2, kind) in list(leaks.found_in(f"first line\n{SECRETS[kind]}\n"))
    if "\n" not in SECRETS[kind]:
        assert not list(leaks.found_in(f"{SECRETS[kind]}  # {leaks.KNOWN}"))


def test_every_kind_of_secret_is_tried() -> None:
    assert SECRETS.keys() == leaks.KINDS.keys()


def test_no_secret_stands_in_the_repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git here")
    assert list(leaks.present()) == []


def test_an_audit_says_what_is_weak(capsys: pytest.CaptureFixture[str]) -> None:
    weakness = {"id": "PYSEC-1", "fix_versions": ["2"]}
    assert audit.told({"dependencies": [{"name": "a", "version": "1", "vulns": [weakness]}]}) == 1
    assert capsys.readouterr().out == "a 1: PYSEC-1, mended in 2\n1 packages, 1 with known weaknesses\n"


def test_an_audit_that_could_not_ask_says_that_it_was_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.told({"dependencies": [{"name": "a", "skip_reason": "not there"}]}) == 0
    assert capsys.readouterr().out == "skipped: the data base said nothing of any package (not there)\n"


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """The dotted name of everything that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


# The workers of an engine are this user's own processes, which multiprocessing and Ray start.
PICKLING = {"engines/worker.py", "engines/processes.py", "engines/ray/pool.py", "engines/ray/engine.py"}


def test_nothing_is_unpickled_and_no_archive_is_extracted() -> None:
    source = ROOT / "src" / "coterie"
    for file in sorted(source.rglob("*.py")):
        name = file.relative_to(source).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = {
            one.name.partition(".")[0] if isinstance(node, ast.Import) else str(node.module).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for one in node.names
        }
        assert not imported & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"} or (
            name in PICKLING
        ), name
        for called, call in calls(tree):
            last = called.rpartition(".")[2]
            words = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert last not in ("extract", "extractall", "unpack_archive"), f"{name}:{call.lineno}"
            assert called != "torch.load", f"{name}:{call.lineno}"
            if called == "np.load":
                assert words.get("allow_pickle") == "False", f"{name}:{call.lineno}"
