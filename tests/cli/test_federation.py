"""`coterie federation …`: its options, its files, the commands it prints, and its mistakes."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast, get_args, get_type_hints

import numpy as np
import pytest
from cli_tools import Answer, call, finish, start

from coterie.cli import app
from coterie.cli.errors import FailureError, StandstillError
from coterie.cli.federation.follower import Follower
from coterie.cli.federation.init import Terms
from coterie.cli.federation.server import _kept_up, print_results
from coterie.deployment.agreement import Agreement
from coterie.deployment.agreement_terms import WRITTEN
from coterie.deployment.envelopes import read_private, read_public
from coterie.deployment.flower.commands import UnansweredError
from coterie.deployment.flower.folder import name_task_key
from coterie.deployment.flower.keys import make_task_key
from coterie.deployment.flower.server_processes import ServerProcesses
from coterie.deployment.inspection import FederationFacts, look_here
from coterie.deployment.state_file import read_state
from coterie.errors import PassingError

INIT = "federation init fed --sites site-a,site-b --shape 1,8,8 --classes 3"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # A process of its own would take seconds to load PyTorch, which is here already.
    monkeypatch.setattr("coterie.deployment.inspection.look", look_here)
    # So would Flower, to pack an app.
    monkeypatch.setattr("coterie.deployment.flower.relay.packed_app", lambda folder: b"packed")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "good.npz", x=rng.random((9, 8, 8), np.float32), y=np.arange(9) % 3)
    np.savez(tmp_path / "wide.npz", x=rng.random((9, 8, 9), np.float32), y=np.arange(9) % 3)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], line: str) -> Answer:
    return call(capsys, *shlex.split(line))


def made(capsys: pytest.CaptureFixture[str], keys: bool = True) -> None:
    assert said(capsys, INIT).code == 0
    if not keys:
        return
    assert said(capsys, "federation keys fed").code == 0
    for site in ("site-a", "site-b"):
        joined = said(capsys, f"federation join fed --name {site}")
        assert joined.code == 0, joined.err
        (line,) = [line for line in joined.out.splitlines() if "--accept" in line]
        answer = call(capsys, *shlex.split(line.replace("DIR", "fed"))[1:])
        assert answer.code == 0, answer.err


def test_every_term_of_an_agreement_is_an_option_with_its_default() -> None:
    items = {item.name: item.default for item in dataclasses.fields(Agreement) if item.name not in ("method", *WRITTEN)}
    hints = get_type_hints(Terms, include_extras=True)
    assert set(hints) == set(items)
    free_text = {"name", "sites", "shape", "classes", "class_names", "stats", "least_sites"}
    free_text |= {"defence", "quarantine", "privacy", "epsilon", "norm", "sampler", "stages", "scale", "steps"}
    free_text |= {"server", "server_lr", "server_beta1", "topology", "augment"}
    shown = {name: get_args(hint)[1].show_default for name, hint in hints.items() if name not in free_text}
    assert shown == {name: str(items[name]) for name in shown}


@pytest.mark.parametrize("command", ["init", "keys", "join", "server", "client", "extend"])
def test_every_option_is_explained(command: str) -> None:
    for argument in app["federation"][command].assemble_argument_collection():
        if argument.show:
            assert argument.parameter.help, argument.name


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["--help"], ["server", "--help"], ["client", "--nmae", "x"]])
def test_help_and_typing_errors_load_nothing_heavy(arguments: list[str]) -> None:
    after = "print([name for name in ('torch', 'numpy', 'flwr', 'cryptography') if name in sys.modules])"
    assert finish(start("federation", *arguments, after=after)).out.splitlines()[-1] == "[]"


@pytest.mark.thorough
def test_a_launcher_that_runs_for_days_loads_no_pytorch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, keys=False)
    after = "print([name for name in ('torch', 'numpy', 'flwr') if name in sys.modules])"
    line = "federation client fed --name site-a --data good.npz --insecure --commands"
    assert finish(start(*shlex.split(line), after=after)).out.splitlines()[-1] == "[]"


def test_init_writes_what_was_given(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = said(
        capsys,
        "federation init fed --name trial --site a --sites b,c --shape 1,8,8 --class-names x,y,z --method fedprox "
        "--set mu=0.5 --model cnn --rounds 7 --lr 0.1 --least-sites 2 --deadline 30",
    )
    assert answer.code == 0, answer.err
    found = Agreement.read(folder / "fed" / "federation.toml")
    assert (found.name, found.sites, found.shape, found.classes) == ("trial", ("a", "b", "c"), (1, 8, 8), 3)
    assert (found.class_names, found.model, found.rounds, found.lr) == (("x", "y", "z"), "cnn", 7, 0.1)
    assert (found.least_sites, found.deadline, found.plain()["set"]) == (2, 30.0, {"mu": 0.5})
    assert "coterie federation keys fed" in answer.out
    assert "coterie federation join federation.toml --name c --root-certificate ca.pem" in answer.out


def test_init_like_sample_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "table.csv").write_text("a,b,kind\n1,2,cat\n3,4,dog\n")
    assert said(capsys, "federation init one --sites a,b --like good.npz").code == 0
    assert said(capsys, "federation init two --sites a,b --like table.csv --label kind").code == 0
    one, two = (Agreement.read(folder / name / "federation.toml") for name in ("one", "two"))
    assert (one.name, one.shape, one.classes) == ("one", (1, 8, 8), 3)
    assert (two.shape, two.class_names) == ((2,), ("cat", "dog"))


def test_keys_say_what_comes_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, keys=False)
    answer = said(capsys, "federation keys fed --host server.example.org,192.0.2.7 --host other.example.org")
    assert answer.code == 0
    assert "No key yet of site-a, site-b. Each gets fed/federation.toml and fed/keys/ca.pem" in answer.out
    assert "holds for localhost, 127.0.0.1, ::1, server.example.org, 192.0.2.7, other.example.org" in answer.out
    assert "nothing to do" in said(capsys, "federation keys fed").out
    signs = read_private(folder / "fed" / "keys" / "tasks.key").public_key()
    assert signs == read_public("", Agreement.read(folder / "fed" / "federation.toml").server_key)


def test_another_signing_key_is_a_new_version_that_all_accept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the page about security says, for one that was stolen."""
    made(capsys)
    file = folder / "fed" / "federation.toml"
    before = Agreement.read(file)
    key = make_task_key(folder / "fed" / "keys" / "new.key")
    answer = call(capsys, "federation", "extend", "fed", "--term", f"server_key={key}")
    assert answer.code == 0, answer.err
    after = Agreement.read(file)
    assert (after.version, after.server_key, after.former) == (2, key, (before.fingerprint,))
    assert read_private(folder / "fed" / "keys" / "new.key").public_key() == read_public("", after.server_key)
    refused = said(capsys, "federation join fed --name site-a")
    assert (refused.code, "server_key: " in refused.err) == (2, True)
    assert said(capsys, "federation join fed --name site-a --changed").code == 0


def test_nobody_joins_where_no_key_of_the_server_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, keys=False)
    answer = said(capsys, "federation join fed --name site-a")
    assert answer.code == 2
    assert "server_key: the agreement of fed names no key of its server; ask whoever runs the server" in answer.err


def test_a_site_joins_and_its_key_is_accepted_replaced_and_removed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(capsys)
    own = folder / "fed" / "sites" / "site-a"
    assert (own / "key").stat().st_mode & 0o777 == 0o600
    assert own.stat().st_mode & 0o777 == 0o700
    assert (own / "ca.pem").read_bytes() == (folder / "fed" / "keys" / "ca.pem").read_bytes()
    assert not list((folder / "fed" / "keys" / "sites").glob("site-a")), "the server has no private key"
    again = said(capsys, "federation join fed --name site-a")
    assert (own / "key.pub").read_text().strip() in again.out, "joining again shows the same key"
    assert hashlib.sha256(b"packed").hexdigest() in again.out
    assert said(capsys, "federation join fed --name site-a --new-key").code == 0
    answer = said(capsys, f"federation keys fed --accept site-a={own / 'key.pub'}")
    assert "the key of site-a is replaced" in answer.out
    assert "A server that runs takes this over when its round is over" in answer.out
    assert "the key of site-b is removed" in said(capsys, "federation keys fed --remove site-b").out
    warned = said(capsys, "federation server fed --commands")
    assert "no key of site-b is accepted, which cannot join" in warned.err


def test_all_that_is_agreed_on_is_shown_and_nothing_of_it_is_an_order(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A billion epochs once passed unseen, and a class could be named so that the terminal obeyed it."""
    made(capsys)
    file = folder / "fed" / "federation.toml"
    text = file.read_text().replace("epochs = 5", "epochs = 999999999")
    file.write_text(text.replace("class_names = []", 'class_names = ["a\\u001b[2J", "b", "c"]'))
    answer = said(capsys, "federation join fed --name site-a --changed")
    assert answer.code == 0, answer.err
    shown = " ".join(answer.out.split())
    assert "*epochs = 999999999" in shown
    assert " batch = 32," in shown
    assert "\x1b" not in answer.out + answer.err
    unset = {"privacy", "epsilon", "norm", "stats", "classifier", "server_lr", "server_beta1"}
    for item in dataclasses.fields(Agreement):
        if item.name not in {"set", *unset, *WRITTEN}:
            assert f"{item.name} = " in shown


def test_an_agreement_of_three_thousand_levels_is_refused_in_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(capsys)
    (folder / "fed" / "federation.toml").write_text("a = " + "[" * 3000 + "]" * 3000)
    answer = said(capsys, "federation join fed --name site-a")
    assert answer.code == 2
    assert "not a TOML file" in answer.err
    assert "Traceback" not in answer.err


def test_a_changed_agreement_is_accepted_anew(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    file = folder / "fed" / "federation.toml"
    file.write_text(file.read_text().replace("rounds = 20", "rounds = 21"))
    answer = said(capsys, "federation join fed --name site-a")
    assert answer.code == 2
    assert "before (rounds: 20 becomes 21); read it, and accept it with --changed" in answer.err
    kept = folder / "fed" / "sites" / "site-a" / "federation.toml"
    assert "rounds = 20" in kept.read_text()
    assert said(capsys, "federation join fed --name site-a --changed").code == 0
    assert "rounds = 21" in kept.read_text()


def test_the_servers_plain_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    answer = said(capsys, "federation server fed --port 8123 --commands")
    assert (answer.code, answer.err) == (0, "")
    lines = [shlex.split(line, comments=True) for line in answer.out.splitlines()]
    forkserver, link, executor, *registered, gateway, run = lines[2:]
    own = folder / "fed" / "server"
    assert forkserver[1:] == [
        "-m",
        "coterie.deployment.flower.forkserver",
        str(own / ".forkserver.socket"),
        "flwr-serverapp",
    ]
    assert os.access(own / ".commands" / "flwr-serverapp", os.X_OK)
    assert link[:4] == ["flower-superlink", "--host", "127.0.0.1", "--port"]
    inner = link[4]
    assert inner != "8123"
    assert "--enable-supernode-auth" in link
    assert "--insecure" not in link
    assert executor[0] == "flower-superexec"
    assert [words[-1] for words in registered] == ["site-a", "site-b"]
    assert gateway[1:9] == (
        f"-m coterie.deployment.flower.gateway --host 127.0.0.1 --port 8123 --superlink 127.0.0.1:{inner}".split()
    )
    wake_up = folder / "fed" / "server" / ".wake-up.socket"
    assert gateway[-6:-2] == ["--wake-up", str(wake_up), "--keys", str(folder / "fed" / "keys")]
    assert 128 << 20 < int(gateway[gateway.index("--most-bytes") + 1]) < 1 << 30
    assert run[:3] == ["flwr", "run", str(folder / "fed" / "server" / "app")]
    assert (
        run[-1] == f'directory="{folder}/fed/server" agreement="{folder}/fed/federation.toml" '
        f'keys="{folder}/fed/keys" keyed=true wake_up="{wake_up}"'
    )
    assert f"127.0.0.1:{inner}" in (folder / "fed" / "server" / "flower" / "config.toml").read_text()
    assert (folder / "fed" / "server" / "app" / "pyproject.toml").is_file()


def test_the_sites_plain_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys)
    line = "federation client fed --name site-a --data good.npz --server example.org:8000 --port 9123 --commands"
    answer = said(capsys, line)
    assert answer.code == 0
    assert "9 samples fit" in answer.err
    assert f"only the app {hashlib.sha256(b'packed').hexdigest()} runs here" in answer.err
    relay, resident, forkserver, node, executor = (
        shlex.split(line, comments=True) for line in answer.out.splitlines()[2:]
    )
    own = folder / "fed" / "sites" / "site-a"
    assert relay[1:3] == ["-m", "coterie.deployment.flower.relay"]
    assert relay[relay.index("--server") + 1] == "example.org:8000"
    assert relay[-2:] == ["--root-certificate", str(own / "ca.pem")]
    assert node[:3] == ["flower-supernode", "--superlink", f"127.0.0.1:{relay[relay.index('--port') + 1]}"]
    assert node[node.index("--port") + 1] == "9123"
    assert node[node.index("--isolation") + 1] == "process"
    assert node[node.index("--node-config") + 1] == (
        f'name="site-a" resident="{own}/.resident.socket" audit="{own}/audit.jsonl"'
    )
    assert resident[1:] == ["-m", "coterie.deployment.resident", str(own / ".resident.json")]
    assert json.loads((own / ".resident.json").read_text()) == {
        "name": "site-a",
        "data": f"{folder}/good.npz",
        "state": f"{folder}/fed/sites",
        "agreement": f"{own}/federation.toml",
        "socket": f"{own}/.resident.socket",
        "device": "cpu",
        "key": f"{own}/key",
    }
    forkserver_at = ["-m", "coterie.deployment.flower.forkserver", str(own / ".forkserver.socket"), "flwr-clientapp"]
    assert forkserver[1:] == forkserver_at
    assert os.access(own / ".commands" / "flwr-clientapp", os.X_OK)
    assert node[-1] == str(own / "key")
    secret = ["--superexec-auth-secret-file", str(own / ".superexec.secret")]
    assert executor[-2:] == secret
    assert (own / ".superexec.secret").is_file()


def test_a_site_without_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, keys=False)
    signs = make_task_key(folder / "tasks.key")
    name_task_key(folder / "fed" / "federation.toml", signs)
    for file in ("my.key", "ca.pem"):
        (folder / file).write_text("")
        (folder / file).chmod(0o644)
    (folder / "here").mkdir(mode=0o755)
    line = "federation client --name site-a --data good.npz --key my.key --root-certificate ca.pem"
    line += " --agreement fed/federation.toml --commands"
    answer = said(capsys, line)
    assert answer.code == 0, answer.err
    assert "others on this machine can read the private key; 'chmod 600 my.key' prevents that" in answer.err
    assert said(capsys, f"{line} --state here").code == 0
    for state in ("federation-state", "here"):
        told = json.loads((folder / state / "site-a" / ".resident.json").read_text())
        assert told["state"] == f"{folder}/{state}"
    assert (folder / "here").stat().st_mode & 0o777 == 0o700


def test_the_insecure_mode_is_loud(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, keys=False)
    server = said(capsys, "federation server fed --insecure --port 0 --commands")
    client = said(capsys, "federation client fed --insecure --name site-a --data good.npz --commands")
    for answer in (server, client):
        assert answer.code == 0
        assert "WARNING: INSECURE MODE" in answer.err
        assert "No encryption, no keys" in answer.err
    assert "--insecure" in server.out
    assert "--root-certificate " not in client.out, "the relay knows no server"


def test_a_certificate_that_holds_for_this_machine_alone_is_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(capsys)
    answer = said(capsys, "federation server fed --host 0.0.0.0 --commands")
    words = " ".join(answer.err.replace("│", " ").split())
    assert "WARNING" not in words
    assert "'coterie federation keys fed --host NAME' adds the name" in words


MISTAKES = {
    "federation sever fed": "unknown command 'sever'; did you mean 'server'?",
    "federation init": "federation init needs DIR",
    "federation init new --shape 4 --classes 2": "sites: name them, such as --sites site-a,site-b",
    "federation init new --sites a,b": "shape: give it, such as --shape 3,32,32",
    "federation init new --sites a,b --shape 1,x": "shape = 'x': must be a whole number",
    "federation init new --sites a,b --shape 4": "classes = 0: at least 2 are needed",
    "federation init new --sites a,a --shape 4 --classes 2": "sites = a, a: must all be different",
    "federation init new --sites a,b --shape 4 --classes 2 --method fedpre": "did you mean 'fedrep'?",
    "federation init new --sites a,b --shape 4 --classes 2 --model cnn": "model 'cnn' takes inputs of shape",
    "federation init new --sites a --label x": "label = x: goes with --like",
    "federation init new --sites a --like nowhere.npz": "data 'nowhere.npz': there is no such file or folder",
    "federation init fed --sites a,b --shape 4 --classes 2": "folder = fed: already holds federation.toml",
    "federation keys nowhere": "folder = nowhere: holds no federation.toml; 'coterie federation init' makes",
    "federation keys fed --renew site-a": "unknown key to renew 'site-a'",
    "federation keys fed --accept site-x=y": "unknown site of fed 'site-x'; did you mean 'site-b'?",
    "federation keys fed --accept site-a": "accept = site-a: must be SITE=KEY",
    "federation join nowhere.toml --name site-a": "agreement = nowhere.toml: there is no such file",
    "federation join fed --name site-x": "unknown site of fed 'site-x'; did you mean 'site-b'?",
    "federation join fed --name site-a --root-certificate no.pem": "root_certificate = no.pem: there is no such file",
    "federation server nowhere": "folder = nowhere: holds no federation.toml",
    "federation server fed": "is missing; 'coterie federation keys fed' makes it",
    "federation server fed --insecure --port 99999": "port = 99999: must lie in 0..65535",
    "federation client --data good.npz": "federation client needs --name",
    "federation client --name site-a": "federation client needs --data",
    "federation client --name site-a --data nowhere": "data = nowhere: there is no such file or folder",
    "federation client --name site-a --data good.npz": "accept one with 'coterie federation join FILE --name site-a'",
    "federation client --name a --data good.npz --agreement no.toml": "agreement = no.toml: there is no such file",
    "federation client fed --name site-a --data good.npz": "key: there is no file fed/sites/site-a/key",
    "federation client fed --name a --data good.npz --key good.npz": "root_certificate: there is no file",
    "federation client --name site-a --data good.npz --server localhost": "server = localhost: must be HOST:PORT",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistake(folder: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    made(capsys, keys=False)
    before = sorted(folder.rglob("*"))
    answer = said(capsys, line)
    assert answer.code == 2
    assert answer.out == ""
    assert MISTAKES[line] in answer.err
    assert answer.err.splitlines()[-1].startswith("coterie: error: ")
    assert sorted(folder.rglob("*")) == before


def test_data_that_does_not_fit_is_found_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(capsys, keys=False)
    answer = said(capsys, "federation client fed --insecure --name site-a --data wide.npz")
    assert answer.code == 2
    assert "one input has shape (1, 8, 9), not (1, 8, 8)" in answer.err
    answer = said(capsys, "federation client fed --insecure --name site-x --data good.npz")
    assert "unknown site of fed 'site-x'; did you mean 'site-b'?" in answer.err


@pytest.mark.parametrize("package", ["flwr", "cryptography"])
def test_without_flower_the_extra_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    made(capsys, keys=False)
    monkeypatch.setitem(sys.modules, package, None)
    answer = said(capsys, "federation server fed")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "pip install 'coterie[flower]'" in answer.err


class StandInLink:
    """A link whose run has one status for ever."""

    def __init__(self, status: str = "running") -> None:
        self.status, self.home = status, Path("home")

    def ended(self) -> str | None:
        return None

    def hangs(self) -> str | None:
        return None

    def run_status(self, run: str) -> tuple[str, str]:
        return self.status, "no heartbeat"


def follower(folder: Path) -> Follower:
    return Follower(folder, FederationFacts("trial", ["a", "b"], 2, "fedavg"))


def test_following_a_run_to_its_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    following = follower(folder)
    following.begin()
    score = '{"mean": 0.75, "accuracy": [0.5, 1.0]}'
    (folder / "rounds.jsonl").write_text(f'{{"round": 1, "trained": {score}}}\n{{"round": 2, "received": {score}}}\n')
    (folder / "log.txt").write_text("12:00 INFO site a is here\n12:01 WARNING round 1 goes on without b\n")
    (folder / "status.json").write_text(
        '{"state": "finished", "round": 2, "rounds": 2, "present": ["a", "b"], "message": ""}'
    )
    following.follow(StandInLink("finished:completed"), "1")
    err = capsys.readouterr().err
    assert "round 2/2: finished, 2 of 2 sites are here, received mean 0.7500" in err
    assert "WARNING round 1 goes on without b" in err
    assert "site a is here" not in err
    assert following.way_on() == "the federation has finished"


def test_a_failed_run_is_a_failure(folder: Path) -> None:
    following = follower(folder)
    (folder / "status.json").write_text('{"state": "failed"}')
    (folder / "rounds.jsonl").write_text('{"round": 1}\n{"rou')
    following.begin()
    assert read_state(folder)["message"] == "the server is being started", "no former one's word, and never none"
    assert (read_state(folder)["state"], read_state(folder)["round"]) == ("waiting", 1)
    (folder / "status.json").write_text(
        '{"state": "failed", "round": 0, "rounds": 2, "present": [], "message": "too few sites"}'
    )
    with pytest.raises(FailureError, match="the federation failed: too few sites"):
        following.follow(StandInLink(), "1")


def test_a_flower_that_is_too_busy_to_answer_ends_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Busy(StandInLink):
        def run_status(self, run: str) -> tuple[str, str]:
            raise PassingError("'flwr ls' had no answer")

    following = follower(folder)
    following._require_alive(Busy(), "1")
    assert "nothing is known of the run just now ('flwr ls' had no answer)" in capsys.readouterr().err
    (folder / "status.json").write_text('{"state": "finished", "round": 2, "rounds": 2, "present": [], "message": ""}')
    following.follow(Busy(), "1")


def test_a_run_that_dies_silently_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.cli.federation.follower.SILENCE", 0.1)
    (folder / "status.json").write_text(
        '{"state": "running", "round": 1, "rounds": 2, "present": ["a"], "message": "round 1 is under way"}'
    )
    with pytest.raises(
        FailureError, match=r"the run ended \(finished:failed: no heartbeat\) before the federation did"
    ):
        follower(folder).follow(StandInLink("finished:failed"), "1")
    left = json.loads((folder / "status.json").read_text())
    assert (left["state"], left["round"]) == ("failed", 1)
    assert "the same command resumes" in left["message"]


class Supervised(StandInLink):
    """A link that may be up, whose server ends as it is told, one time after the other."""

    def __init__(self, *ends: Exception | bool, opened: bool = True) -> None:
        super().__init__()
        self.ends, self.opened = list(ends), opened

    def claimed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def serve(self) -> bool:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def kept_up(folder: Path, link: Supervised) -> bool:
    return _kept_up(cast(ServerProcesses, link), follower(folder), link.serve)


def test_what_ends_before_the_federation_does_is_started_again_and_later_each_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("coterie.cli.federation.server.time.sleep", pauses.append)
    beats = StandstillError("the run ended (finished:failed: No heartbeat received) before the federation did")
    full = OSError(errno.ENOSPC, "No space left on device")
    assert kept_up(folder, Supervised(beats, PassingError("'flwr ls' failed"), full, True))
    assert pauses == [5.0, 10.0, 20.0]
    assert "No heartbeat received) before the federation did; it is started again in 5 s" in capsys.readouterr().err
    assert json.loads((folder / "status.json").read_text())["state"] == "waiting"
    # Flower's command had no answer at the very start.
    assert kept_up(folder, Supervised(UnansweredError("'flwr ls' ended without an answer"), True, opened=False))
    for error in (PassingError("the gateway did not start"), OSError(errno.EACCES, "Permission denied")):
        with pytest.raises(type(error)):
            kept_up(folder, Supervised(error, True, opened=False))
    hours = iter(range(0, 10**6, 1800))
    monkeypatch.setattr("coterie.cli.federation.server.time.monotonic", lambda: float(next(hours)))
    with pytest.raises(FailureError, match="that has gone on for an hour; the same command resumes"):
        kept_up(folder, Supervised(beats, beats, beats, beats, True))


def test_a_damaged_file_of_rounds_ends_nobody_who_follows(folder: Path) -> None:
    following = follower(folder)
    for content in ("[" * 100_000, "{}\n", "3\n", '{"round": 3}\n{"rou'):
        (folder / "rounds.jsonl").write_text(content)
        following._look_at_rounds()
    assert following.round == 3


def test_a_site_without_a_score_does_not_spoil_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no test samples, or says so in its farewell."""
    facts = FederationFacts("fed", ["site-a", "site-b", "site-c"], 3, "fedavg")
    (tmp_path / "summary.json").write_text(json.dumps({"finished": {"site-a": 0.5, "site-b": None}}))
    print_results(Follower(tmp_path, facts), facts)
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["site-a", "0.5000"] in said
    assert ["site-b", "–"] in said
    assert ["site-c", "–"] in said
