"""Methods, models and more of one's own on the command line: from files and from installed packages."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli_tools import SMALL, Answer, assert_same_run, call

from coterie.deployment.agreement import Agreement
from coterie.errors import CoterieError
from plugins import ENGINE, METHOD, MODEL, install, write_files

pytestmark = pytest.mark.thorough


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files of one's own."""
    here = tmp_path / "here"
    here.mkdir()
    write_files(here)
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that subprocesses find too."""
    found = tmp_path / "site"
    found.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(found), os.environ.get("PYTHONPATH", "")]))
    return found


def command(*arguments: str | Path) -> Answer:
    """A command line as a user types it."""
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *map(str, arguments)], capture_output=True, text=True, timeout=180
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def test_a_method_in_a_file_runs_like_any_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = command("run", "./my.py:Mine", *SMALL, "--set", "beta=0.25", "--json")
    assert answer.code == 0, answer.err
    run = folder / "runs" / "Mine-digits-1"
    assert answer.json["method"] == "Mine"
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["method"] == f"{folder}/my.py:Mine"
    assert config["set"] == {"beta": 0.25}
    assert list(config["plugins"]) == [f"{folder}/my.py"]
    (copy,) = (run / "plugins").iterdir()
    assert copy.read_text() == METHOD
    assert call(capsys, "run", "fedavg", *SMALL, "--out", "plain").code == 0
    assert_same_run(run, folder / "plain")
    assert call(capsys, "show", run).out.startswith(f"{folder}/my.py:Mine (beta=0.25) on digits")


@pytest.mark.slow
def test_everything_from_files_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = command(
        "run", "./my.py:Mine", "--model", "./net.py:Net", "--classifier", "head", "--partition", "./rule.py:Evenly",
        "--data", "./points.py:toy", "--engine", "./engine.py:Loud", "--workers", "3", *SMALL, "--out", "run",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert answer.out.startswith("loud engine with 3 workers\n")
    assert len(list((folder / "run" / "plugins").iterdir())) == 5
    again = call(capsys, "run", "--config", "run/config.toml", "--out", "again")
    assert again.code == 0, again.err
    assert_same_run(folder / "run", folder / "again")


def test_the_configuration_holds_anywhere_and_notices_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "run", "./my.py:Mine", *SMALL, "--out", "run").code == 0
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert call(capsys, "run", "--config", "../run/config.toml", "--out", "again").code == 0
    (folder / "my.py").write_text(METHOD + "# changed\n")
    answer = call(capsys, "run", "--config", "../run/config.toml", "--out", "third")
    assert answer.code == 2
    assert answer.err.startswith(
        f"coterie: error: method = '{folder}/my.py:Mine': the file has changed (its SHA-256 is"
    )
    assert "or remove it from [plugins] to use it as it is" in answer.err
    assert not Path("third").exists()


@pytest.mark.slow
def test_resuming_uses_the_copy_and_refuses_a_changed_original(folder: Path) -> None:
    arguments = (
        "./my.py:Mine", "--model", "./net.py:Net", "--classifier", "head", "--engine", "./engine.py:Loud", *SMALL[:2],
        "--rounds", "4", "--epochs", "1", "--threads", "1", "--checkpoint-every", "2",
    )  # fmt: skip
    assert command("run", *arguments, "--out", "whole").code == 0
    assert command("run", *arguments, "--out", "part").code == 0
    part, copies = folder / "part", folder / "part" / "plugins"
    (part / "summary.json").unlink()
    (part / "rows.safetensors").unlink()

    (folder / "net.py").write_text(MODEL + "# changed\n")
    answer = command("resume", "part")
    assert answer.code == 2
    assert f"run = part: {folder}/net.py has changed since (SHA-256 " in answer.err
    assert "the run's copy is part/plugins/net-" in answer.err
    assert answer.err.count("\n") == 1

    for name in ("net.py", "my.py", "engine.py"):
        (folder / name).unlink()
    (kept,) = copies.glob("my-*.py")
    kept.write_text(METHOD + "# changed\n")
    answer = command("resume", "part")
    assert (answer.code, "its copy of" in answer.err, "was changed" in answer.err) == (2, True, True)

    kept.write_text(METHOD)
    answer = command("resume", "part")
    assert answer.code == 0, answer.err
    assert_same_run(part, folder / "whole")
    written = (tomllib.loads((folder / run / "config.toml").read_text()) for run in ("part", "whole"))
    assert next(written) == next(written)


@pytest.mark.slow
def test_comparing_methods_in_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("fedavg", "./my.py:Mine", "--model", "net.py:Net", "--classifier", "head", "--set", "Mine.beta=0.1")
    apart = command("compare", *arguments, *SMALL, "--seeds", "0", "1", "--jobs", "2", "--out", "two", "--json")
    assert apart.code == 0, apart.err
    assert apart.json["methods"] == ["fedavg", "Mine"]
    alone = call(capsys, "compare", *arguments, *SMALL, "--seeds", "0", "1", "--jobs", "1", "--out", "one", "--json")
    assert alone.code == 0, alone.err
    for name in ("fedavg-s0", "fedavg-s1", "Mine-s0", "Mine-s1"):
        assert_same_run(folder / "one" / name, folder / "two" / name)
    assert tomllib.loads(Path("two/Mine-s1/config.toml").read_text())["set"] == {"beta": 0.1}
    answer = call(capsys, "compare", "./my.py:Mine", "my.py:Mine", *SMALL)
    assert (answer.code, answer.err) == (2, "coterie: error: method 'Mine' is given twice\n")


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("processes", marks=pytest.mark.processes),
        pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
)
def test_workers_know_what_stands_in_files(folder: Path, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    arguments = ("run", "./my.py:Mine", "--model", "./net.py:Net", "--classifier", "head", *SMALL)
    answer = command(*arguments, "--engine", engine, "--workers", "2", "--out", engine)
    assert answer.code == 0, answer.err
    assert call(capsys, *arguments, "--out", "serial").code == 0
    assert_same_run(folder / engine, folder / "serial")


PACKAGE = (
    "[coterie.methods]\nmine = my_package:Mine\n[coterie.models]\nnet = my_package:Net\n"
    "[coterie.engines]\nloud = my_engine:Loud\n"
)


@pytest.mark.slow
def test_an_installed_package_adds_by_name(folder: Path, site: Path) -> None:
    install(site, "my-package", PACKAGE, my_package=METHOD + MODEL, my_engine=ENGINE)
    listed = command("methods")
    assert listed.code == 0
    assert "mine " in listed.out
    assert "Plain averaging, with an option that is told but not used." in listed.out
    assert "mine: Plain averaging" in command("methods", "mine").out
    assert "Two linear layers." in command("models").out
    arguments = ("--model", "net", "--classifier", "head", *SMALL)
    loud = command("run", "mine", *arguments, "--engine", "loud", "--out", "loud")
    assert loud.code == 0, loud.err
    assert loud.out.startswith("loud engine with 0 workers\n")
    assert "plugins" not in tomllib.loads(Path("loud/config.toml").read_text())
    for engine in ("processes", "serial"):
        answer = command("run", "mine", *arguments, "--engine", engine, "--out", engine)
        assert answer.code == 0, answer.err
        assert_same_run(folder / engine, folder / "loud")
    apart = command("compare", "mine", "fedavg", *arguments, "--seeds", "0", "--jobs", "2", "--out", "apart")
    assert apart.code == 0, apart.err
    assert_same_run(folder / "apart" / "mine-s0", folder / "loud")


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_broken_package_is_named_and_breaks_nothing_else(site: Path) -> None:
    install(site, "broken", "[coterie.methods]\nbroken = broken_package:X\n", broken_package="import nonesuch\n")
    needy = METHOD.replace("beta: float = 0.5", "beta: float")  # it cannot be made without options
    install(site, "odd", "[coterie.methods]\nodd = odd_package:Mine\n", odd_package=needy)
    assert command("--help").code == 0
    listed = command("methods")
    assert listed.code == 0
    assert "fedavg " in listed.out
    assert "cannot be told (CoterieError: Mine needs beta" in listed.out
    assert listed.err == (
        "coterie: warning: method 'broken' of broken 1.0 cannot be loaded (ModuleNotFoundError: No module named "
        "'nonesuch'); mend or uninstall that package\n"
    )
    assert command("run", "fedavg", *SMALL, "--out", "fine").code == 0
    answer = command("run", "broken", *SMALL)
    assert answer.code == 2
    assert answer.err.startswith("coterie: error: method 'broken' of broken 1.0 cannot be loaded")
    assert answer.err.count("\n") == 1


@pytest.mark.slow
def test_a_name_that_is_taken(site: Path) -> None:
    install(site, "rival", "[coterie.methods]\nfedavg = rival_package:Mine\n", rival_package=METHOD)
    answer = command("run", "fedavg", *SMALL)
    assert answer.code == 2
    assert "method 'fedavg' means several things, of Coterie and of rival 1.0" in answer.err
    assert "method 'fedavg' means several things" in command("methods").err


AGREED = {"name": "trial", "sites": ["a", "b"], "shape": [1, 8, 8], "classes": 10}


def test_a_federation_takes_no_paths(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in ({"method": "./my.py:Mine"}, {"model": "./net.py:Net", "classifier": "head"}):
        with pytest.raises(CoterieError, match="a federation takes installed plug-ins only, never a path"):
            Agreement.parse(AGREED | given)
    words = "federation init fed --method ./my.py:Mine --sites a --shape 1,8,8 --classes 9"
    answer = call(capsys, *words.split())
    assert answer.code == 2
    assert "method = './my.py:Mine': a federation takes installed plug-ins only" in answer.err
    assert not (folder / "fed").exists()


FINGERPRINT = (
    "from coterie.deployment.agreement import Agreement\n"
    f"print(Agreement.parse({AGREED!r} | {{'method': METHOD}}).fingerprint)"
)


def fingerprint(method: str) -> str:
    code = FINGERPRINT.replace("METHOD", repr(method))
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_a_federation_agrees_on_what_is_installed(site: Path) -> None:
    entry = "[coterie.methods]\nmine = my_package:Mine\n"
    plain = fingerprint("fedavg")
    install(site, "my-package", entry, my_package=METHOD)
    first = fingerprint("mine")
    assert first == fingerprint("mine")
    assert fingerprint("fedavg") == plain, "who does not use a plug-in does not depend on it"
    (site / "my_package.py").write_text(METHOD + "# mended\n")
    assert fingerprint("mine") != first
    (site / "my_package.py").write_text(METHOD)
    info = site / "my_package-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.1\n")
    assert fingerprint("mine") != first


def test_a_listener_in_a_file_hears_of_the_run_and_may_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import coterie as ct\n\n\n"
        "class Enough(ct.Listener):\n"
        "    def round(self, report):\n"
        "        if report.round == 1:\n"
        "            report.stop('enough')\n"
    )
    answer = call(capsys, "run", "local", *SMALL, "--listener", "./mine.py:Enough", "--out", "run")
    assert answer.code == 0
    assert "stopped after round 1 of 2: enough" in answer.out
    wrong = call(capsys, "run", "local", *SMALL, "--listener", "nobody", "--out", "other")
    assert (wrong.code, "unknown listener 'nobody'" in wrong.err) == (2, True)
