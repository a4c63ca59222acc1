"""The page: its numbers are the run's, it needs nothing else, and nothing in a run can break out of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import convert
from report_tools import CLIENTS, ROUNDS, content_of, lines_of, small_run, with_classes

from coterie.core.exchange import Applied
from coterie.data import load
from coterie.partition import Partition, Pathological
from coterie.report import report
from coterie.report.html import CHARTS, asset
from coterie.report.learning import ABSENT, PARTS, agreement, label_overlap, learning_matrix
from coterie.report.page import page, report_content
from coterie.runs.directory import RunDirectory
from coterie.runs.experiment import Experiment
from coterie.runs.record import Line
from coterie.runs.tensors import sealed

pytestmark = pytest.mark.thorough

EVIL = "</script><script>alert(1)</script><!--<img src='https://evil.example/x' onerror=alert(2)>&amp;\u2028"


class Tags(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method in ("local", "fedavg", "fedrema"):
        for seed in (0, 1):
            small_run(folder / f"{method}-s{seed}", method, seed)
    small_run(folder / "some", join=0.5, evaluate_every=2, held_out=1)
    return folder


def one(folder: Path) -> Any:
    return content_of(page(report_content([folder])))["runs"][0]


def test_a_page_says_where_a_run_comes_from(runs: Path, tmp_path: Path) -> None:
    about = json.loads((runs / "fedrema-s0" / "about.json").read_text())
    told = dict(one(runs / "fedrema-s0")["origin"])
    (session,) = about["sessions"]
    for word in (session["torch"], session["python"], session["processor"], session["begun"][:10]):
        assert word in told["session"]
    assert f"labels {about['data']['fingerprint']['labels'][:16]}…" in told["data"]
    assert told["model"] == f"mlp, {about['model']['parameters']} parameters"
    shutil.copytree(runs / "fedrema-s0", tmp_path / "it")
    (tmp_path / "it" / "about.json").write_text("[]")
    assert one(tmp_path / "it")["origin"] == []  # the rest is shown


def test_the_curves_are_those_of_the_rounds(runs: Path) -> None:
    shown, lines = one(runs / "fedrema-s0"), lines_of(runs / "fedrema-s0")
    assert list(shown["curves"]) == ["received", "trained"]  # everybody took part: nothing stored differs
    for moment, curve in shown["curves"].items():
        assert curve["rounds"] == [1, 2, 3, 4]
        np.testing.assert_allclose(curve["mean"], [line[moment]["mean"] for line in lines], atol=1e-5)
        np.testing.assert_allclose(curve["worst"], [line[moment]["worst_decile"] for line in lines], atol=1e-5)
        accuracies = np.array([line[moment]["values"]["accuracy"] for line in lines])
        for name, share in (("q10", 0.1), ("median", 0.5), ("q75", 0.75)):
            np.testing.assert_allclose(curve[name], np.quantile(accuracies, share, axis=1), atol=1e-5)
        np.testing.assert_allclose(shown["final"][moment], accuracies[-1], atol=1e-5)
    assert shown["cost"]["bytes"]["up"] == [line["bytes"]["up"] for line in lines]
    assert shown["cost"]["total_bytes"] == sum(sum(line["bytes"].values()) for line in lines)
    np.testing.assert_allclose(shown["cost"]["seconds"]["train"], [li["seconds"]["train"] for li in lines], atol=1e-4)
    assert shown["state"] == "finished: 4 rounds"
    assert shown["wrong"] == []
    assert dict(shown["config"])["lr"] == "0.05"
    assert ["delta", "0.0"] in shown["options"]


def test_some_clients_rest_some_are_held_out_and_not_every_round_is_tested(runs: Path) -> None:
    shown, lines = one(runs / "some"), lines_of(runs / "some")
    assert list(shown["curves"]) == ["received", "trained", "stored"]
    assert shown["curves"]["stored"]["rounds"] == [2, 4]
    np.testing.assert_allclose(shown["final"]["stored"], lines[-1]["stored"]["values"]["accuracy"], atol=1e-5)
    partition = RunDirectory(runs / "some").partition()
    taking_part = [client for client in range(CLIENTS) if client not in partition.held_out]
    assert shown["clients"] == [str(client) for client in taking_part]
    assert shown["counts"] == partition.class_counts(load("digits"))[taking_part].tolist()
    assert any(ABSENT in matrix for track in shown["learning"] for matrix in track["weights"])


def test_the_matrices_are_those_that_were_recorded(runs: Path) -> None:
    directory = RunDirectory(runs / "fedrema-s0")
    counts = directory.partition().class_counts(load("digits"))
    shown = one(directory.path)
    # The mix in which clients choose comes first, whatever the order of the record.
    assert [(track["group"], track["target"]) for track in shown["learning"]] == [
        ("classifier", "model"),
        ("extractor", "model"),
    ]
    personal, shared = shown["learning"]
    assert personal["rounds"] == [1, 2, 3, 4]
    for place, round in enumerate(personal["rounds"]):
        extractor, classifier = directory.mixes(round)
        expected = learning_matrix([classifier], CLIENTS)
        found = np.array(personal["weights"][place])
        np.testing.assert_allclose(np.resize(found, (CLIENTS, CLIENTS)) / PARTS, expected, atol=0.5 / PARTS)
        np.testing.assert_allclose(np.array(shared["weights"][place]) / PARTS, extractor.weights[0], atol=0.5 / PARTS)
        follows = agreement(expected, label_overlap(counts))
        assert personal["agreement"]["values"][place] == (
            None if np.isnan(follows) else pytest.approx(follows, abs=1e-4)
        )
    np.testing.assert_allclose(shown["overlap"], label_overlap(counts), atol=1e-4)
    assert sorted(shown["order"]) == list(range(CLIENTS))


def test_who_trains_alone_has_no_matrix(runs: Path) -> None:
    assert one(runs / "local-s0")["learning"] == []


def test_runs_that_differ_in_the_seed_alone_are_one_method(runs: Path) -> None:
    paths = [runs / f"{method}-s{seed}" for method in ("local", "fedavg", "fedrema") for seed in (0, 1)]
    content = content_of(page(report_content(paths)))
    comparison = content["comparison"]
    assert content["notes"] == []
    assert [(method["title"], method["seeds"]) for method in comparison["methods"]] == [
        ("Local", [0, 1]),
        ("FedAvg", [0, 1]),
        ("FedReMa", [0, 1]),
    ]
    means = np.array([[line["received"]["mean"] for line in lines_of(path)] for path in paths[2:4]])
    curve = comparison["methods"][1]["curves"]["received"]
    np.testing.assert_allclose(curve["mean"], means.mean(0), atol=1e-5)
    np.testing.assert_allclose(curve["std"], means.std(0, ddof=1), atol=1e-5)
    spent = np.array([[sum(line["bytes"].values()) for line in lines_of(path)] for path in paths[2:4]])
    np.testing.assert_allclose(curve["bytes"], spent.cumsum(1).mean(0))
    row = comparison["table"]["rows"][1]
    assert row["cells"][1].rstrip("*") == f"{100 * means[:, -1].mean():.1f}±{100 * means[:, -1].std(ddof=1):.1f}"


def test_who_gained_and_who_lost(runs: Path) -> None:
    paths = [runs / name for name in ("local-s0", "fedavg-s0", "fedavg-s1")]
    content = content_of(page(report_content(paths)))
    (row,) = content["comparison"]["gains"]["moments"]["received"]
    alone, together = (np.array(lines_of(path)[-1]["received"]["values"]["accuracy"]) for path in paths[:2])
    # Seed 1 has no local run beside it, and another partition.
    assert [gain["seed"] for gain in row["gains"]] == [0] * CLIENTS
    np.testing.assert_allclose([gain["gain"] for gain in row["gains"]], together - alone, atol=1e-5)
    assert row["gained"] == int((together > alone).sum())
    assert row["lost"] == int((together < alone).sum())
    assert "that takes 3 seeds or more" in content["comparison"]["table"]["note"]


def test_without_a_local_run_the_page_says_why_there_are_no_gains(runs: Path) -> None:
    content = report_content([runs / "fedavg-s0", runs / "fedrema-s0"])
    assert content["comparison"]["gains"]["moments"] == {}
    assert "no run of local training" in content["comparison"]["gains"]["why"]


def test_methods_of_one_name_are_told_apart_by_their_settings(runs: Path, tmp_path: Path) -> None:
    other = small_run(tmp_path / "other", "fedavg", lr=0.01)
    content = report_content([runs / "fedavg-s0", runs / "fedavg-s1", other])
    assert [one["title"] for one in content["comparison"]["methods"]] == ["FedAvg (lr=0.05)", "FedAvg (lr=0.01)"]
    assert [one["seeds"] for one in content["comparison"]["methods"]] == [[0, 1], [0]]


def begun_on(run: Path, data: str) -> None:
    """Let a run say that it was begun on other data."""
    config = (run / "config.toml").read_text().replace('data = "digits"', f'data = "{data}"')
    (run / "config.toml").write_text(config)
    about = {key: value for key, value in json.loads((run / "about.json").read_text()).items() if key != "sha256"}
    (run / "about.json").write_text(json.dumps(sealed({**about, "config": {**about["config"], "data": data}})))
    summary = {key: value for key, value in json.loads((run / "summary.json").read_text()).items() if key != "sha256"}
    (run / "summary.json").write_text(json.dumps(sealed({**summary, "config": {**summary["config"], "data": data}})))


def test_runs_that_do_not_compare_are_named_and_still_shown(runs: Path, tmp_path: Path) -> None:
    other = shutil.copytree(runs / "fedavg-s0", tmp_path / "elsewhere")
    begun_on(other, "diabetes")
    again = shutil.copytree(runs / "fedrema-s0", tmp_path / "again")
    content = report_content([runs / "fedavg-s0", runs / "fedrema-s0", other, again])
    assert len(content["runs"]) == 4
    assert [one["title"] for one in content["comparison"]["methods"]] == ["FedAvg", "FedReMa"]
    assert content["notes"] == [
        "elsewhere: left out of the comparison: its data set is diabetes, not digits",
        "again: left out of the comparison: another run has the same settings and seed",
    ]
    alone = report_content([runs / "fedavg-s0", other])
    assert alone["comparison"] is None
    assert "there are no two runs to compare" in alone["notes"]


def test_another_partition_under_the_same_seed_is_pointed_out(runs: Path, tmp_path: Path) -> None:
    other = small_run(tmp_path / "other", "fedper", partition_seed=7)
    (note,) = report_content([runs / "fedavg-s0", other])["notes"]
    assert note.startswith("the runs with seed 0 are on 2 different partitions")


def test_the_page_needs_nothing_else(runs: Path, tmp_path: Path) -> None:
    path = report([runs / "local-s0", runs / "fedrema-s0"], tmp_path / "deep" / "report.html")
    text = path.read_text(encoding="utf-8")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    tags = Tags(text)
    assert not [(tag, attributes) for tag, attributes in tags.found if {"src", "href", "srcset"} & attributes.keys()]
    assert {tag for tag, _ in tags.found} <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "noscript",
        "script",
    }
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    # The only address in the script is the name of SVG.
    assert set(re.findall(r"https?://[^'\"\s]+", text)) == {"http://www.w3.org/2000/svg"}
    for call in ("fetch(", "XMLHttpRequest", "innerHTML", "eval(", "document.write"):
        assert call not in text


def test_the_policy_of_the_page_allows_its_own_script_alone(runs: Path) -> None:
    text = page(report_content([runs / "local-s0"]))
    policy = next(attributes["content"] or "" for _, attributes in Tags(text).found if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        body = text.rpartition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_nothing_in_a_run_breaks_out_of_the_page(tmp_path: Path) -> None:
    digits = load("digits")
    drawn = Pathological(clients=4)(digits, seed=0)
    named = Partition(drawn.train, drawn.test, names=(EVIL, "b", "c", "d"), notes=(EVIL,))
    folder = tmp_path / "<b>run"
    Experiment("fedavg", partition=named, rounds=1, epochs=1, threads=1).run(folder)
    with_classes(folder, named.class_counts(digits).tolist(), [EVIL, *map(str, range(9))])
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"2026-01-01 00:00:00,000 WARNING {EVIL.strip()}\n")
    text = page(report_content([folder]))
    shown = content_of(text)["runs"][0]
    assert shown["clients"][0] == shown["classes"][0] == shown["notes"][0] == EVIL
    assert shown["name"] == "<b>run"
    assert any("alert(1)" in line for line in shown["wrong"])
    assert "alert(1)</script" not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    assert "<b>" not in text
    assert "\u2028" not in text


def test_classes_are_what_the_run_says_they_are(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "fedavg-s0", tmp_path / "run")
    begun_on(folder, "given (mine)")
    assert one(folder)["counts"] == one(runs / "fedavg-s0")["counts"], "the data set is not needed"
    about = json.loads((folder / "about.json").read_text())
    changed = {key: value for key, value in about.items() if key != "sha256"}
    counts = [[client + 1, 2] for client in range(CLIENTS)]
    with_classes(folder, counts, ["cat", "dog"])
    assert (one(folder)["counts"], one(folder)["classes"]) == (counts, ["cat", "dog"])

    def said(**news: object) -> str:
        return json.dumps(sealed({**changed, **news}))

    damaged = [
        ("{", "about.json is damaged"),
        ("[]", "about.json is damaged"),
        (said(clients=3), "about.json is damaged (clients is a whole number, not a list)"),
        (said(clients=[{}]), "about.json is damaged (clients[0] lacks name"),
        (json.dumps({**about, "clients": about["clients"][1:]}), "about.json is damaged (its SHA-256 is another)"),
        (said(clients=about["clients"][1:]), "does not fit its clients"),
        (said(data={**about["data"], "class_names": ["a"]}), "does not fit its clients"),
        (said(data={**about["data"], "class_names": []}), "has no classes"),
    ]
    for text, why in damaged:
        (folder / "about.json").write_text(text)
        shown = one(folder)
        assert (shown["counts"], shown["overlap"]) == (None, None)
        assert why in shown["why"]
        assert shown["learning"][0]["agreement"] is None


def test_code_that_a_run_names_is_not_run(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "fedavg-s0", tmp_path / "run")
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\ndef made(): pass\n")
    begun_on(folder, f"{trap}:made")
    assert one(folder)["counts"] == one(runs / "fedavg-s0")["counts"]
    assert not (tmp_path / "sprung").exists()


def test_a_long_run_makes_a_small_page(runs: Path, tmp_path: Path) -> None:
    """20 clients × 200 rounds, written as a run writes them."""
    clients, rounds = 20, 200
    folder = shutil.copytree(runs / "fedrema-s0", tmp_path / "long")
    draw = np.random.default_rng(0)
    indices = np.array_split(np.arange(1797), 2 * clients)
    partition = Partition(tuple(indices[:clients]), tuple(indices[clients:]))
    partition.save(folder / "partition.safetensors")
    with_classes(folder, partition.class_counts(load("digits")).tolist(), list(map(str, range(10))))
    directory = RunDirectory(folder)
    (folder / "rounds.jsonl").write_text("")
    (line, *_) = lines_of(runs / "fedrema-s0")
    for round in range(1, rounds + 1):
        means = {"mean": 0.5, "weighted": 0.5, "std": 0.1, "worst_decile": 0.1}
        tests = {
            moment: {**means, "values": {"accuracy": draw.random(clients).tolist()}}
            for moment in ("received", "trained", "stored")
        }
        kept = {key: line[key] for key in ("seconds", "bytes")}
        directory.add_line(convert({**kept, "round": round, "cohort": list(range(clients)), **tests}, Line))
        everyone = torch.arange(clients)
        mixes = []
        for group in ("extractor", "classifier"):
            weights = torch.from_numpy(draw.dirichlet(np.ones(clients), clients))
            mixes.append(Applied(weights, group, "model", gated=False, rows=everyone, columns=everyone))
        directory.add_mixes(round, mixes)
    text = page(report_content([folder]))
    shown = content_of(text)["runs"][0]
    assert [len(track["weights"]) for track in shown["learning"]] == [rounds, rounds]
    assert len(text.encode()) < 5_000_000
    # What would not fit is thinned out, and the page says so: `recorded` beside the rounds that it has.
    many = content_of(page(report_content([folder] + [shutil.copytree(folder, tmp_path / f"c{i}") for i in range(3)])))
    track = many["runs"][0]["learning"][0]
    assert track["recorded"] == rounds
    assert track["rounds"][0] == 1
    assert len(track["rounds"]) < rounds
    assert len(track["agreement"]["values"]) == rounds
    assert len(track["rounds"]) > ROUNDS


@pytest.mark.parametrize("last", [("main.js",), ("standing.js", "server.js"), ("standing.js", "site.js")])
def test_scripts_of_a_page_name_nothing_twice(last: tuple[str, ...]) -> None:
    """They share one scope: a name that two of them declare ends all of the page."""
    names = [
        name
        for script in (*CHARTS, *last)
        for name in re.findall(r"^(?:const|let|var|function|class) (\w+)", asset(script), re.MULTILINE)
    ]
    assert len(names) > 50
    assert not [name for name, times in Counter(names).items() if times > 1]
