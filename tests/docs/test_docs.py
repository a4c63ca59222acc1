"""The documentation is true: its examples run, its links lead somewhere, its tables say what the code says."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tools.method_facts import with_facts
from tools.pictures_of_w import drawn, experiment, svg

import coterie as ct
from coterie.cli import main
from coterie.cli.experiments import experiments, one_experiment
from coterie.data import DATASETS
from coterie.engines import ENGINES
from coterie.methods import METHODS
from coterie.options import option_fields
from coterie.partition import PARTITIONS
from coterie.report.facts import facts, kept_facts
from coterie.setup.config import Config
from coterie.setup.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
METHOD_PAGES = ROOT / "docs" / "methods"
# What makes a documented run small enough for a test.
QUICK = {"rounds": "2", "epochs": "1", "clients": "4", "threads": "1"}


def blocks(page: Path, kind: str) -> list[str]:
    """The code blocks whose fence says just `kind`; a block that must not be run says more ("python no-run")."""
    return [body for info, body in FENCE.findall(page.read_text(encoding="utf-8")) if info.strip() == kind]


def command_lines(page: Path) -> list[list[str]]:
    """The words after `coterie` of every command line that the page shows."""
    shown = "".join(blocks(page, "console")).splitlines()
    return [shlex.split(line.removeprefix("$ coterie ")) for line in shown if line.startswith("$ coterie ")]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def as_config(words: list[str]) -> tuple[list[str], Config, list[str]]:
    """A command line of `run` or `compare` in parts: methods, settings (as text), method options."""
    methods, given, sets = [], dict[str, Any](), list[str]()
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            methods.append(word)
        elif word == "--set":
            sets.append(next(rest))
        elif word == "--seeds":
            break
        elif word == "--keep-optimizer":
            given["keep_optimizer"] = "true"
        elif word not in ("--out", "--columns"):
            given[word.removeprefix("--").replace("-", "_")] = next(rest)
        else:
            next(rest)
    given = {"client_column" if key == "client" else key: value for key, value in given.items()}
    return methods, given, sets


def smaller(words: list[str]) -> list[str]:
    """The same command line, made quick."""
    out = list(words)
    for option, value in QUICK.items():
        if f"--{option}" in out:
            out[out.index(f"--{option}") + 1] = value
        else:
            out += [f"--{option}", value]
    if "--seeds" in out:
        start = out.index("--seeds") + 1
        stop = next((i for i in range(start, len(out)) if out[i].startswith("--")), len(out))
        out[start:stop] = ["0"]
    return out


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/index.md",
        "docs/devices.md",
        "docs/listeners.md",
        "docs/notebooks.md",
        "docs/runs.md",
        "docs/plugins.md",
        "docs/reports.md",
        "docs/cli.md",
    ],
)
def test_python_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / page, "python")
    assert found
    for number, body in enumerate(found):
        exec(compile(body, f"{page}, example {number + 1}", "exec", dont_inherit=True), {"__name__": "example"})


@pytest.mark.thorough
def test_the_readmes_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = command_lines(ROOT / "README.md")
    assert {words[0] for words in lines} >= {"run", "show", "compare", "methods"}
    for words in lines:
        trains = words[0] in ("run", "compare")
        assert main(smaller(words) if trains else words) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_command_on_a_methods_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (words,) = command_lines(METHOD_PAGES / f"{name}.md")
    assert words[:2] == ["run", name]
    assert main([*smaller(words), "--batch", "100"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_line_shown_is_understood(page: Path) -> None:
    """Settings and options exist and have allowed values, unless the page shows a mistake on purpose."""
    text = page.read_text(encoding="utf-8")
    for words in command_lines(page):
        wrong = f"$ coterie {' '.join(words)}\ncoterie: error:" in text
        if wrong or "--config" in words or "--protocol" in words or words[0] not in ("run", "compare"):
            continue
        methods, given, sets = as_config(words[1:])
        if words[0] == "run":
            one_experiment(methods[0], None, given, sets)
        else:
            experiments(methods, None, given, sets)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_errors_shown_are_those_that_come(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^\$ coterie (.*)\n(coterie: error: .*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    for line, message in shown:
        words = shlex.split(line)
        if "--out" in words:
            Path(words[words.index("--out") + 1]).mkdir()
            (tmp_path / words[words.index("--out") + 1] / "config.toml").touch()
        assert main(words) == 2
        assert capsys.readouterr().err.strip() == message


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_methods_page_names_its_options_and_their_defaults(name: str) -> None:
    text = (METHOD_PAGES / f"{name}.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", text, re.MULTILINE)
    assert told == [(item.name, str(item.default) or '""') for item in fields(METHODS[name])]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_sends_readers_elsewhere_for_a_public_name(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    elsewhere = {
        name for names in re.findall(r"from coterie\.[\w.]+ import ([\w, ]+)", text) for name in names.split(", ")
    }
    elsewhere |= set(re.findall(r"`(\w+)`(?:\sand\s`\w+`)?\s(?:lives? )?in\s`coterie\.", text))
    assert not elsewhere & set(ct.__all__)
    for names in re.findall(r"((?:`\w+`(?:,| and)?\s)+)are names of `coterie`", text):
        assert set(re.findall(r"\w+", names)) - {"and"} <= set(ct.__all__)


def test_there_is_a_page_for_every_method_and_no_other() -> None:
    assert {page.stem for page in METHOD_PAGES.glob("*.md")} - {"index"} == set(METHODS)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_overview_has_a_methods_paper_and_cost(name: str) -> None:
    rows = (METHOD_PAGES / "index.md").read_text(encoding="utf-8").splitlines()
    mine = [row for row in rows if f"]({name}.md) |" in row]
    assert len(mine) == 2
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", mine[0])[1:-1]]
    assert cells[1] == (METHODS[name].paper or "(baseline)")
    assert cells[5] == METHODS[name].extra_cost


def test_partition_rules_are_listed_with_their_defaults() -> None:
    text = (ROOT / "docs" / "partitions.md").read_text(encoding="utf-8")
    for name, rule in PARTITIONS.items():
        options = ", ".join(f"`{option}={item.default}`" for option, item in option_fields(rule).items())
        assert f"| `{name}` | {options} |" in text


def test_data_sets_and_engines_are_listed() -> None:
    data = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    everything = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    natural = (ROOT / "docs" / "natural.md").read_text(encoding="utf-8")
    for name in DATASETS:
        assert f"| `{name}` |" in (natural if name.startswith("natural/") else data)
    for name in ENGINES:
        assert f"| `{name}` |" in everything


def test_the_readme_names_every_method_and_who_else_has_it() -> None:
    """As the table of the overview says, of which the README is an extract."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{len(METHODS)}, each with a page" in text
    shown = dict(re.findall(r"\(docs/methods/([\w-]+)\.md\)([¹²³⁴]*)", text.partition("| | methods |")[2]))
    rows = re.findall(
        r"^\| \[[^\]]*\]\(([\w-]+)\.md\) \| ((?:(?:yes|–) \| ){4})",
        (METHOD_PAGES / "index.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    elsewhere = {
        name: "".join(mark for mark, has in zip("¹²³⁴", cells.split(" | "), strict=False) if has == "yes")
        for name, cells in rows
    }
    assert shown == elsewhere
    assert set(shown) == set(METHODS)
    counted = [int(number) for number in re.findall(r"[¹²³⁴] [\w-]+\s\((\d+)", text)]
    assert counted == [sum(mark in marks for marks in shown.values()) for mark in "¹²³⁴"]


def test_the_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_option_on_a_methods_page_says_where_its_default_comes_from(name: str) -> None:
    text = (METHOD_PAGES / f"{name}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `\w+` \| `[^`]*` \|(.*)\|$", text, re.MULTILINE)
    assert all(len(cells) == 2 and all(cell.strip() for cell in cells) for cells in (row.split(" | ") for row in rows))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_methods_page_begins_with_its_idea_in_three_sentences(name: str) -> None:
    idea = (METHOD_PAGES / f"{name}.md").read_text(encoding="utf-8").split("\n\n")[2]
    assert len(re.findall(r"\.(?:\s|$)", idea)) == 3


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_methods_page_has_a_picture_of_its_w(name: str) -> None:
    text = (METHOD_PAGES / f"{name}.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"\]\(\.\./(pictures/w/[\w-]+\.svg)\)", text)
    picture = (ROOT / "docs" / shown).read_text(encoding="utf-8")
    assert shown == f"pictures/w/{name}.svg"
    assert f"<title>{METHODS[name].__name__}: who learns" in picture
    assert 'class="cells"' in picture
    assert len(picture) < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_methods_page_says_what_the_code_says_of_its_traffic(name: str) -> None:
    text = (METHOD_PAGES / f"{name}.md").read_text(encoding="utf-8")
    told = facts(METHODS[name]())
    assert with_facts(text, name, told) == text, "run 'python -m tools.method_facts'"
    assert kept_facts()[name] == told, "run 'python -m tools.method_facts'"


def test_the_facts_of_every_method_are_kept() -> None:
    assert list(kept_facts()) == sorted(METHODS), "run 'python -m tools.method_facts'"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedrema", "local"])
def test_the_picture_of_w_is_what_the_method_does(name: str) -> None:
    made = svg(name, drawn(name, experiment(name).run()))
    kept = (ROOT / "docs" / "pictures" / "w" / f"{name}.svg").read_text(encoding="utf-8")
    assert made == kept, "run 'python -m tools.pictures_of_w'"


def test_the_glossary_has_the_words_of_the_code() -> None:
    listed = set(
        re.findall(r"^\| ([^|]+?) \|", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    words = {word.strip(" `") for entry in listed for word in entry.split(",")}
    needed = "client row layout group slot value cohort recipe phase term measurement keep upload mix exchange engine"
    assert {*needed.split(), "ledger", "moment", "task", "view", "listener", "W"} <= words


@pytest.mark.parametrize("page", ["from-pfllib", "from-fl-bench"])
def test_options_named_on_the_pages_for_movers_exist(page: str) -> None:
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8")
    # The first column holds the options of the other program.
    ours = {word for line in text.splitlines() for word in re.findall(r"`--([a-z-]+)", line.partition(" | ")[2])}
    settings = {
        *(item.name for item in fields(Settings)),
        *(name for rule in PARTITIONS.values() for name in option_fields(rule)),
    }
    known = {name.replace("_", "-") for name in settings} | {"set", "out", "seeds", "listener"}
    assert ours
    assert ours <= known, ours - known


@pytest.mark.thorough
def test_the_method_on_the_page_about_plugins_runs_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "plugins.md"
    (source,) = blocks(page, "python")
    (tmp_path / "my.py").write_text(source, encoding="utf-8")
    shown = "".join(blocks(page, "console no-run")).splitlines()
    for words in [shlex.split(line.removeprefix("$ coterie ")) for line in shown]:
        trains = words[0] in ("run", "compare")
        assert main(smaller(words) if trains else words) == 0, capsys.readouterr().err
