"""The files in `deploy/`: the command line understands their commands, and their rules fit its exit codes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import app
from coterie.cli.errors import MISTAKE, TerminationError, exit_code
from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.status import Gauge, served_status, status_address
from support import eventually
from towns import Town, few_digits

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = {name: DEPLOY / "systemd" / f"coterie-{name}@.service" for name in ("server", "site")}
DROP_IN = DEPLOY / "systemd" / "site-key-credential.conf"
PROGRAM = "/opt/coterie/bin/coterie"
SPECIFIERS = {"%i": "digits", "%S": "/var/lib", "%d": "/run/credentials"}
LIMIT = 900.0  # seconds that any one wait may last
STOPPING = 5 * 15  # seconds in which a command ends its processes, by force if need be


def settings(unit: Path) -> list[tuple[str, str]]:
    """The settings of a unit, in order; a key may stand there more than once."""
    lines = [line for line in unit.read_text().splitlines() if line and not line.startswith(("#", "["))]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def setting(unit: Path, name: str) -> str:
    return [value for key, value in settings(unit) if key == name][-1]


def environment(unit: Path, example: str) -> dict[str, str]:
    """What a unit's own lines and the example of its environment file set."""
    own = [value for key, value in settings(unit) if key == "Environment"]
    given = (DEPLOY / "systemd" / example).read_text().splitlines()
    return dict(line.split("=", 1) for line in [*own, *given] if line and not line.startswith("#"))


def words_of(line: str, values: dict[str, str]) -> list[str]:
    """A command of a unit as systemd would start it, without the program."""
    for specifier, value in SPECIFIERS.items():
        line = line.replace(specifier, value)
    program, *words = [re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], word) for word in shlex.split(line)]
    assert program == PROGRAM
    assert "%" not in "".join(words)
    return words


def understood(words: list[str]) -> dict[str, Any]:
    """The options of a command line as the command would get them."""
    _, bound, ignored = app.parse_args(words, exit_on_error=False, print_error=False)
    assert not ignored
    return dict(bound.arguments)


def test_units_start_commands_that_the_command_line_understands() -> None:
    server, site = UNITS["server"], UNITS["site"]
    given = understood(words_of(setting(server, "ExecStart"), environment(server, "server.env.example")))
    listening = {"host": "0.0.0.0", "port": 8000, "status": "127.0.0.1:9464"}
    assert given == {"folder": Path("/var/lib/coterie-server/digits"), **listening}
    values = environment(site, "site.env.example")
    given = understood(words_of(setting(site, "ExecStart"), values))
    assert given["state"] == Path("/var/lib/coterie-site/digits")
    assert (given["name"], given["server"]) == ("site-a", "server.example.org:8000")
    assert status_address(given["status"]) == ("127.0.0.1", 9465), "a server's unit on the same machine has another"
    with_key = understood(words_of(setting(DROP_IN, "ExecStart"), values))
    assert with_key == given | {"key": Path("/run/credentials/key")}


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_restart_rules_fit_the_exit_codes(unit: Path) -> None:
    assert setting(unit, "Restart") == "on-failure"
    assert setting(unit, "RestartPreventExitStatus") == str(MISTAKE)
    stopped = {str(exit_code(KeyboardInterrupt())), str(exit_code(TerminationError()))}
    assert set(setting(unit, "SuccessExitStatus").split()) == stopped
    assert setting(unit, "KillMode") == "mixed", "the command ends its processes itself, in order"
    assert int(setting(unit, "TimeoutStopSec")) > STOPPING


@pytest.mark.thorough
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_finds_no_fault_and_little_exposure(name: str, tmp_path: Path) -> None:
    unit = tmp_path / f"coterie-{name}@digits.service"
    unit.write_text(UNITS[name].read_text().replace(PROGRAM, sys.executable))  # it must exist

    def analysed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["systemd-analyze", *words, str(unit)], capture_output=True, text=True)

    verified = analysed("verify")
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = analysed("security", "--offline=true", "--threshold=20")  # of 100
    assert judged.returncode == 0, judged.stdout


def test_users_of_the_units_are_made_and_own_their_state() -> None:
    made = (DEPLOY / "systemd" / "coterie.sysusers.conf").read_text()
    for name, unit in UNITS.items():
        assert setting(unit, "User") == f"coterie-{name}"
        assert re.search(rf"^u coterie-{name} ", made, re.MULTILINE)
        assert setting(unit, "StateDirectory") == f"coterie-{name}/%i"
        assert (setting(unit, "StateDirectoryMode"), setting(unit, "UMask")) == ("0700", "0077")


class Well:
    """Something whose status is served, and that may be unwell."""

    title, script, wrong = "a trial", "server.js", ""

    def content(self) -> dict[str, Any]:
        return {}

    def problem(self) -> str:
        return self.wrong

    def gauges(self) -> list[Gauge]:
        return []


def composed() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="no reader of YAML is installed")
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def test_composed_services_run_understood_commands_without_privileges() -> None:
    services = composed()["services"]
    assert list(services) == ["server", "site-a", "site-b", "site-c"]
    for name, service in services.items():
        given = understood(service["command"])
        assert (service["user"], service["read_only"], service["cap_drop"]) == ("10001:10001", True, ["ALL"])
        inside = {volume.split(":")[1] for volume in service["volumes"]}
        if name == "server":
            assert str(given["folder"]) in inside
            continue
        assert (given["name"], given["server"]) == (name, f"server:{understood(services['server']['command'])['port']}")
        assert {str(given["state"]), str(given["data"])} <= inside
        assert f"{given['data']}:ro" in " ".join(service["volumes"])


def test_a_composed_service_is_well_as_long_as_its_status_page_says_so() -> None:
    """The very check of the file, but for the port, against a page that is served here."""
    with served_status(Well(), ("127.0.0.1", 0)) as page:
        assert page is not None
        for service in composed()["services"].values():
            host, port = status_address(understood(service["command"])["status"]) or ("", 0)
            kind, _, *words = service["healthcheck"]["test"]
            assert (kind, f"http://{host}:{port}/" in words[-1]) == ("CMD", True)
            check = [sys.executable, *words[:-1], words[-1].replace(f":{port}/", f":{page.server_port}/")]
        for problem, code in (("", 0), ("the gateway ended", 1)):
            Well.wrong = problem
            assert subprocess.run(check, capture_output=True).returncode == code


@pytest.mark.real
@pytest.mark.slow
def test_what_units_and_composed_services_start_is_a_federation(tmp_path: Path) -> None:
    """Their very words, but for paths, ports and the server's name: a server that is stopped as systemd does it, and
    goes on; sites of a unit and of two services.
    """
    pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
    services, sites = composed()["services"], ("site-a", "site-b", "site-c")
    town = Town(tmp_path, few_digits(*sites))
    training = {"method": "fedper", "model": "mlp", "rounds": 3, "epochs": 1}
    waiting = {"least_sites": 3, "gather": LIMIT, "deadline": LIMIT}
    town.agree(Agreement(name="digits", sites=sites, shape=(1, 8, 8), classes=10, **training, **waiting), ["127.0.0.1"])
    here = f"127.0.0.1:{town.port}"

    def run(name: str, words: list[str], places: dict[str, str]) -> None:
        for old, new in places.items():
            words = [new + word[len(old) :] if word.startswith(old) else word for word in words]
        town.start(name, shlex.join(words))

    page = {"127.0.0.1:9464": "127.0.0.1:0", "127.0.0.1:9465": "127.0.0.1:0", "8000": str(town.port)}
    fed = str(tmp_path / "fed")
    values = environment(UNITS["site"], "site.env.example") | {"SERVER": here, "DATA": str(tmp_path / "site-a.npz")}
    states = {site: str(tmp_path / f"state-{site}") for site in sites}
    for site in sites:
        shutil.copytree(tmp_path / "fed" / "sites" / site, Path(states[site], site))
        shutil.copy(tmp_path / "fed" / "keys" / "ca.pem", Path(states[site], site))
    try:
        run("server", services["server"]["command"], {"/federation": fed, "0.0.0.0": "127.0.0.1", **page})
        unit = words_of(setting(UNITS["site"], "ExecStart"), values)
        run("site-a", unit, {"/var/lib/coterie-site/digits": states["site-a"], **page})
        for site in sites[1:]:
            inside = {"/state": states[site], f"/data/{site}.npz": str(tmp_path / f"{site}.npz"), "server:8000": here}
            run(site, services[site]["command"], inside | page)
        assert eventually(lambda: bool(town.rounds()) or town.ended("server") is not None, LIMIT), town.said("server")
        assert town.ended("server") is None, town.said("server")
        assert town.end("server") == exit_code(TerminationError())
        unit = words_of(setting(UNITS["server"], "ExecStart"), environment(UNITS["server"], "server.env.example"))
        run("server", unit, {"/var/lib/coterie-server/digits": fed, "0.0.0.0": "127.0.0.1", **page})
        assert eventually(lambda: town.ended("server") is not None, LIMIT), town.said("server")
        assert town.ended("server") == 0, town.said("server")
        assert [note_of(line).answered for line in town.rounds()] == [list(sites)] * 3
        assert {site: town.end(site) for site in sites} == dict.fromkeys(sites, exit_code(TerminationError()))
    finally:
        town.close()


# What is not about the rules that a unit's processes live under.
AROUND = {"Type", "User", "Group", "Environment", "EnvironmentFile", "ExecStart", "WorkingDirectory"}
AROUND |= {"Restart", "RestartSec", "RestartPreventExitStatus", "SuccessExitStatus", "StateDirectory"}
AROUND |= {"StateDirectoryMode", "Description", "Wants", "After", "WantedBy", "StartLimitIntervalSec"}
AROUND |= {"StartLimitBurst", "ProtectHome"}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_under_a_units_rules_everything_that_is_needed_can_be_loaded(unit: Path) -> None:
    command = ["systemctl", "is-system-running"]
    there = shutil.which("systemctl") and subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if there not in ("running", "degraded") or os.geteuid() != 0:
        pytest.skip("no systemd runs here, or it is somebody else's")
    rules = [f"--property={name}={value}" for name, value in settings(unit) if name not in AROUND]
    needed = "import torch, flwr.serverapp, coterie.methods; torch.rand(64, 64) @ torch.rand(64, 64)"
    words = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", *rules, sys.executable, "-c", needed]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_composed_sites_reach_the_server_and_nobody_else() -> None:
    found = composed()
    services = found["services"]
    assert all(network["internal"] for network in found["networks"].values())
    for one in (name for name in services if name != "server"):
        (network,) = services[one]["networks"]
        assert [name for name, service in services.items() if network in service["networks"]] == ["server", one]


def test_the_image_is_built_from_files_that_exist_with_the_pinned_pytorch() -> None:
    root, text = DEPLOY.parent, (DEPLOY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    kept = {line.removeprefix("!") for line in (root / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert names == kept
    assert all((root / name).exists() for name in names)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= names, "the build needs them"
    pinned = (root / "constraints.txt").read_text()
    (torch,) = re.findall(r"^torch==\S+$", pinned, re.MULTILINE)
    assert "--constraint constraints.txt" in text
    assert torch in text


def test_no_file_names_a_registry() -> None:
    images = [service["image"] for service in composed()["services"].values()]
    base = re.findall(r"^ARG BASE=(\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert base
    for image in (*images, *base):
        assert "/" not in image
