"""Before the first round sites' data are compared, and none is sent; a site can see beforehand all that it sends."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from tests.deployment.test_coordinator import Trial

from coterie.cli import main
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement
from coterie.deployment.claims import checked_facts, facts_of, other_columns, unlike
from coterie.deployment.disclosure import dry_run
from coterie.deployment.flower.folder import write_folder
from coterie.deployment.messages import RefusedError
from coterie.deployment.site_data import load_site_data
from coterie.errors import CoterieError
from coterie.runs.tensors import load_tensors
from coterie.testing.together import SITES, Together, agreed, site_data


def told(inputs: list[list[float]], labels: list[int], columns: tuple[str, ...] = ()) -> dict[str, Any]:
    return facts_of(Dataset("own", torch.tensor(inputs), torch.tensor(labels), 9, feature_names=columns))


def test_the_facts_are_orders_of_magnitude_a_range_and_a_hash() -> None:
    facts = told([[300.0, 0.0, 1.0], [400.0, 0.0, -1.0]], [2, 7], ("mm", "none", "x"))
    assert facts["magnitudes"] == [2.5, None, 0.0]  # the root of the mean square of 300 and 400 is 353.6: 10^2.55
    assert facts["classes"] == [2, 7]
    assert len(facts["columns"]) == 64
    assert facts["columns"] != told([[1.0, 0.0, 1.0]] * 2, [0, 1], ("none", "mm", "x"))["columns"]
    images = Dataset("own", torch.full((2, 1, 4, 4), 10.0), torch.tensor([0, 1]), 2)
    assert facts_of(images) == {"columns": "", "classes": [0, 1], "magnitudes": [1.0]}
    words = Dataset("own", torch.ones(2, 4, dtype=torch.int64), torch.tensor([0, 1]), 2)
    assert facts_of(words)["magnitudes"] == []
    assert checked_facts(json.loads(json.dumps(facts)), 9) == facts


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {"columns": "", "classes": [0, 1]},
        {"columns": "", "classes": [0, 9], "magnitudes": []},
        {"columns": "", "classes": [2, 1], "magnitudes": []},
        {"columns": "", "classes": [True, 1], "magnitudes": []},
        {"columns": "", "classes": [0, 1], "magnitudes": ["1"]},
        {"columns": "", "classes": [0, 1], "magnitudes": [1e9]},
        {"columns": "", "classes": [0, 1], "magnitudes": [0.0] * 1001},
        {"columns": "x" * 65, "classes": [0, 1], "magnitudes": []},
        {"columns": "", "classes": [0, 1], "magnitudes": [], "patients": 3},
    ],
)
def test_facts_that_are_none_are_refused(said: object) -> None:
    with pytest.raises(RefusedError):
        checked_facts(said, 9)


def test_units_and_classes_that_differ_are_named() -> None:
    table = {
        "a": told([[1.0, 5.0]] * 2, [0, 4]),
        "b": told([[1000.0, 5.0]] * 2, [3, 8]),
        "c": told([[1.5, 4.0]] * 2, [0, 3]),
    }
    assert unlike(table) == ["input 0 of b is 10^3 times as large as at the other sites: are its units the same?"]
    table["b"] = told([[1.0, 5.0]] * 2, [6, 8])
    assert unlike(table) == ["b has classes 6..8, of which no other site has any: are they numbered alike?"]
    assert unlike({name: table[name] for name in ("a", "b")}) == [], "of two nobody knows which is odd"
    assert other_columns(table) == ""


def with_columns(agreement: Agreement, folder: Path, **columns: tuple[str, ...]) -> Together:
    data = {
        name: replace(site_data(number, 20), feature_names=columns.get(name.replace("-", "_"), tuple("uvwxyz")))
        for number, name in enumerate(SITES)
    }
    return Together(agreement, folder, data)


@pytest.mark.thorough
def test_columns_in_another_order_end_the_run_before_its_first_round(tmp_path: Path) -> None:
    trial = Trial(tmp_path, agreed("fedper", rounds=4, deadline=30.0, gather=10.0))
    trial.network.together = with_columns(trial.agreement, tmp_path / "sites", site_b=tuple("zyxwvu"))
    with pytest.raises(CoterieError, match="in another order: site-a, site-c / site-b; bring them into one order"):
        trial.run()
    assert trial.status["state"] == "failed"
    assert not trial.network.asked


@pytest.mark.thorough
def test_who_comes_later_must_have_the_columns_of_the_others(tmp_path: Path) -> None:
    together = with_columns(agreed("fedper"), tmp_path, site_b=tuple("zyxwvu"))
    together.admit("site-a", "site-c")
    together.round("site-a", "site-c")
    with pytest.raises(RefusedError, match="in another order: site-a, site-c / site-b"):
        together.admit("site-b")
    assert "site-b" not in together.server.standing


@pytest.mark.thorough
def test_a_tables_columns_are_known(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("age,label,weight_kg\n30,0,70\n40,1,80\n")
    agreement = Agreement(name="trial", sites=("a", "b"), shape=(2,), classes=2)
    assert load_site_data(agreement, tmp_path / "own.csv").feature_names == ("age", "weight_kg")


@pytest.mark.thorough
def test_a_dry_run_shows_the_very_messages(tmp_path: Path) -> None:
    agreement, name, data = agreed("fedper"), "site-b", site_data(1, 31)
    lines = dry_run(agreement, name, data, tmp_path / "dry-run")
    together = Together(agreement, tmp_path / "sites", dict.fromkeys(SITES, data))
    hello = json.loads((tmp_path / "dry-run" / "hello.json").read_text())
    assert hello == together.sites[name].hello()
    together.admit(name)
    answer = together.answer(name, together.server.open_round([name])[name])
    sent = load_tensors(tmp_path / "dry-run" / "round-1.safetensors")[0]
    assert set(sent) == {"slot.model"}
    assert sent["slot.model"].numpy().tobytes() == answer.buffers["float32"]
    assert f"{answer.bytes} of numbers" in "\n".join(lines)
    assert any(line.startswith("Never: classifier") for line in lines)
    assert (tmp_path / "dry-run").stat().st_mode & 0o777 == 0o700


@pytest.mark.thorough
def test_a_dry_run_of_the_command_opens_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("something was sent")

    write_folder(tmp_path / "fed", Agreement(name="fed", sites=("a", "b"), shape=(1, 8, 8), classes=10, epochs=1))
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.random((40, 8, 8), np.float32), y=np.arange(40) % 10)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "bind", refuse)
    words = ["--name", "a", "--data", str(tmp_path / "a.npz"), "--dry-run"]
    assert main(["federation", "client", str(tmp_path / "fed"), *words]) == 0
    said = capsys.readouterr().out
    assert "nothing was sent" in said
    assert '"samples": 30' in said
    assert (tmp_path / "fed" / "sites" / "a" / "dry-run" / "round-1.json").is_file()
