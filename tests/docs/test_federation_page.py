"""The pages on real federations: their commands are understood, and what needs no network is run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from coterie.cli import app, main
from coterie.deployment.inspection import look_here

ROOT = Path(__file__).parents[2]
PAGES = ("docs/federation.md", "docs/cli.md", "docs/predict.md")
FENCE = re.compile(r"^```(?:console|console no-run)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The words after `coterie` of the federation's and predict's commands."""
    shown = "".join(FENCE.findall((ROOT / page).read_text(encoding="utf-8"))).splitlines()
    lines = [line for line in shown if line.startswith("$ coterie ")]
    found = [shlex.split(line.removeprefix("$ coterie ")) for line in lines]
    return [words for words in found if words[0] in ("federation", "predict")]


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_understood(page: str) -> None:
    found = commands(page)
    assert found
    for words in found:
        _, _, ignored = app.parse_args(words, exit_on_error=False, print_error=False)
        assert not ignored


def test_the_page_shows_every_command_of_a_federation() -> None:
    shown = {words[1] for words in commands("docs/federation.md") if words[0] == "federation"}
    assert shown == {"init", "keys", "join", "server", "client", "extend", "rollback", "model"}


def test_the_data_of_the_page_fits_its_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")
    monkeypatch.chdir(tmp_path)
    # A process of its own would take seconds to load PyTorch, which is here already.
    monkeypatch.setattr("coterie.deployment.inspection.look", look_here)
    monkeypatch.setattr("coterie.deployment.flower.relay.packed_app", lambda folder: b"packed")
    text = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(example, "federation.md", "exec", dont_inherit=True), {"__name__": "example"})
    shown = [words for words in commands("docs/federation.md") if "--accept" not in words]
    change = next(place for place, words in enumerate(shown) if words[1] == "extend")
    for words in shown[:change]:
        if words[1] == "join":
            send(tmp_path)
        if words[1] in ("init", "keys", "join"):
            assert main(words) == 0, capsys.readouterr().err
    accept = "coterie federation keys DIR --accept site-a='"
    (line,) = [line for line in capsys.readouterr().out.splitlines() if accept in line]
    assert main(shlex.split(line.replace("DIR", "digits"))[1:]) == 0
    assert "the key of site-a is accepted" in capsys.readouterr().out
    for site in ("site-a", "site-b", "site-c"):
        assert main(["federation", "join", "federation.toml", "--name", site, "--root-certificate", "ca.pem"]) == 0
        here = ["federation", "client", "--name", site, "--data", f"{site}.npz", "--commands"]
        assert main(here) == 0
        assert "samples fit" in capsys.readouterr().err
    (dry_run,) = [words for words in shown if "--dry-run" in words]
    assert main(dry_run) == 0
    assert "nothing was sent" in capsys.readouterr().out
    extend, join = shown[change : change + 2]
    assert main(extend) == 0
    send(tmp_path)
    assert main(join) == 0
    assert "What changes: lr: 0.05 becomes 0.02; rounds: 12 becomes 20; sites:" in capsys.readouterr().out


def send(folder: Path) -> None:
    """What sites get from whoever runs the server."""
    for sent in ("federation.toml", "keys/ca.pem"):
        shutil.copy(folder / "digits" / sent, folder)
