"""The page on what leaves a site says what the code does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.deployment.disclosure import HEADER, disclosure, dry_run, table
from coterie.deployment.messages import FAULTS
from coterie.deployment.server import Server
from coterie.methods import METHODS
from coterie.testing.together import agreed, site_data

PAGE = Path(__file__).parents[2] / "docs" / "what-leaves-a-site.md"


@pytest.mark.thorough
def test_the_table_is_the_one_that_the_code_gives() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index(HEADER[0])
    shown = lines[begin : begin + len(HEADER) + len(METHODS)]
    assert shown == table(), "print it anew with 'python -m coterie.deployment.disclosure'"


@pytest.mark.parametrize(
    ("method", "travels", "stays"),
    [
        ("local", "nothing", "the whole model"),
        ("fedavg", "model", "nothing"),
        ("fedper", "extractor", "classifier, batch-norm statistics"),
        ("ditto", "model", "personal model"),
    ],
)
def test_well_known_methods(method: str, travels: str, stays: str) -> None:
    found = disclosure(METHODS[method]())
    assert found.up == found.down == [travels]
    assert found.down_late == ""
    assert found.stays == stays


def test_methods_that_need_class_counts_are_named_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    servers = {name: Server(agreed(name, validation=0.2)) for name in METHODS}
    counting = sorted(name for name, server in servers.items() if server.federation.asks_class_counts)
    assert f"({', '.join(f'`{name}`' for name in counting)};" in text


# What each field of a message is called on the page; a field that is not among them is not to be sent.
SAID = {
    "hello": {
        "site": "its name",
        "fingerprint": "a fingerprint of the agreement",
        "first_weights": "and of the first weights",
        "torch": "its PyTorch version",
        "samples": "how many samples it has for training",
        "validation": "validation and testing",
        "test": "validation and testing",
        "class_counts": "how many training samples of each class",
        "facts": "its lowest and highest class, a hash of the names of a table's",
        "snapshots": "the rounds whose results are still on its disk",
    },
    "round-1": {
        "round": "With each round's answer",
        "diverged": "Or just that training diverged",
        "received": "how many test samples the model gets right and the sum of its losses, before and after",
        "trained": "before and after",
        "seconds": "the seconds that it took",
    },
    "farewell": {"round": "With the farewell", "received": "how many test samples the finished model gets right"},
}


@pytest.mark.thorough
def test_every_field_of_every_message_is_on_the_page(tmp_path: Path) -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    dry_run(agreed("fedpac"), "site-a", site_data(0, 23), tmp_path)
    for message, fields in SAID.items():
        sent = json.loads((tmp_path / f"{message}.json").read_text())
        assert set(sent) == set(fields), message
        assert [field for field, words in fields.items() if words not in page] == [], message
    assert set(json.loads((tmp_path / "hello.json").read_text())["facts"]) == {"columns", "classes", "magnitudes"}
    for moment in ("received", "trained"):
        assert set(json.loads((tmp_path / "round-1.json").read_text())[moment]) == {"correct", "loss", "samples"}


def test_the_numbers_of_errors_are_on_the_page() -> None:
    assert len(FAULTS) == 6, "the page says what each of them means"
    assert "one of six numbers" in PAGE.read_text(encoding="utf-8")
