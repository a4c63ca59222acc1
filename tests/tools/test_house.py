"""The tool that counts: every figure on a package small enough to count by hand."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tools.house import House, Tree, Walk, code_lines, folders_table, loaded, main, show, walked, with_folders

ROOT = Path(__file__).parents[2]
FILES = {
    "__init__.py": '"""A toy.\n\n>>> 1\n1\n"""\n',
    "errors.py": "LIMIT = 3\n",
    "core/__init__.py": '"""What there is: rows. And more."""\n',
    "core/rows.py": "from toy.errors import LIMIT\n\nENTRY = 'toy.core.mixes:mix'\n",
    "core/mixes.py": "def mix():\n    from toy.core import rows\n\n    return rows\n",
    "rounds/__init__.py": "",
    "rounds/round.py": "from toy import errors\n\n\nclass Rounds:\n    def run_round(self):\n        errors\n",
    "rounds/progress.py": "from toy.rounds import round\n",
}


@pytest.fixture
def toy(tmp_path: Path) -> Tree:
    """A package on disk."""
    for name, text in FILES.items():
        (tmp_path / "toy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / name).write_text(text, encoding="utf-8")
    return Tree(tmp_path / "toy")


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("# one\n\n", 0),
        ('"""One.\n\nMore.\n"""\nx = 1\n', 1),
        ("x = (\n\n    1,  # one\n)\n", 3),
        ('x = """one\n\nthree"""\n', 3),
        ('def f():\n    """Docs."""\n    # why\n    return 1\n', 2),
        ("class A:\n    'Docs.'\n\n    x: int = 1\n    'no docstring'\n", 3),
    ],
)
def test_lines_of_code_are_neither_blank_nor_comment_nor_docstring(source: str, lines: int) -> None:
    assert code_lines(source) == lines


def test_who_imports_whom_is_read_from_the_text(toy: Tree) -> None:
    assert toy.imports["core.mixes"] == {"core.rows"}
    assert toy.imports["rounds.round"] == {"errors"}
    assert toy.importers["errors"] == {"core.rows", "rounds.round"}
    assert toy.importers["core.mixes"] == {"core.rows"}, "as an entry of a registry"
    assert toy.importers["core"] == set()


def test_circles_are_found_where_there_are_any(toy: Tree) -> None:
    assert toy.circles() == []
    (toy.folder / "errors.py").write_text("import toy.core.mixes\n", encoding="utf-8")
    assert Tree(toy.folder).circles() == ["core.mixes → core.rows → errors → core.mixes"]


def test_short_modules_that_hardly_anybody_imports_are_named(toy: Tree) -> None:
    assert toy.lone() == ["core.mixes", "core.rows", "errors", "rounds.progress", "rounds.round"]
    (toy.folder / "core" / "mixes.py").write_text("x = 1\n" * 71, encoding="utf-8")
    (toy.folder / "core" / "slots.py").write_text("import toy.errors\n", encoding="utf-8")
    assert Tree(toy.folder).lone() == ["core.rows", "core.slots", "rounds.progress", "rounds.round"]


def test_a_round_is_its_folder_without_the_progress_bar(toy: Tree) -> None:
    assert toy.round() == ["rounds/round.py"]


def test_only_functions_that_run_within_the_second_round_are_noted(toy: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy.folder / "rounds" / "round.py").write_text(
        "from toy.core.mixes import mix\nfrom toy.errors import often, once\n\n\nclass Rounds:\n    done = 0\n\n"
        "    def run_round(self):\n        self.done += 1\n"
        "        mix() if self.done == 2 else often()\n        once()\n",
        encoding="utf-8",
    )
    (toy.folder / "errors.py").write_text("LIMIT = 3\ndef often(): pass\ndef once(): pass\n", encoding="utf-8")
    (toy.folder / "core" / "rows.py").write_text("class Body:\n    x = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(toy.folder.parent)
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        monkeypatch.delitem(sys.modules, name)
    from toy.core.mixes import mix  # type: ignore[import-not-found]
    from toy.rounds.round import Rounds  # type: ignore[import-not-found]

    noted, rounds = Walk(toy.folder), Rounds()
    sys.setprofile(noted)
    try:
        rounds.run_round()
        assert not noted.files
        rounds.run_round()
        mix()
        rounds.run_round()
    finally:
        sys.setprofile(None)
    assert noted.files == {"rounds/round.py", "core/mixes.py", "errors.py"}, (
        "loading core/rows.py is no walk through it"
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        monkeypatch.delitem(sys.modules, name)


def test_folders_are_listed_by_what_they_say_of_themselves(toy: Tree) -> None:
    table = folders_table((("rng", "errors"), ("core",), ("gone",), ("",)), toy.folder)
    assert table.splitlines()[2:] == [
        "| `errors`, `rng` | the ground: modules without a folder |",
        "| `core/` | What there is: rows |",
    ]
    page = (
        "before\n<!-- folders: written by `python -m tools.house --contributing` -->old<!-- end of folders -->\nafter"
    )
    assert table in with_folders(page, (("rng", "errors"), ("core",)), toy.folder)


def test_figures_of_two_trees_stand_side_by_side() -> None:
    one = House(2, 30, 40, 20, 15, 3, 90, 0, 1, {".": (1, 10), "core": (1, 20)})
    other = House(1, 10, 40, 20, 15, 3, 90, 0, 1, {".": (1, 10)})
    console = Console(width=100, record=True, file=io.StringIO())
    show(console, {"old": one, "here": other})
    text = console.export_text()
    rows = {cells[1].strip(): cells[2:4] for line in text.splitlines() if len(cells := line.split("│")) == 5}
    assert [cell.strip() for cell in rows["lines of code"]] == ["30", "10"]
    assert [cell.strip() for cell in rows["core"]] == ["1, 20", "–"]


@pytest.mark.thorough
def test_a_run_and_a_round_of_this_tree_are_measured_in_fresh_processes() -> None:
    modules, files = loaded(ROOT / "src"), walked(ROOT / "src", "fedavg")
    assert {"coterie", "coterie.rounds.round", "coterie.methods.fedavg"} <= set(modules)
    assert {"rounds/round.py", "methods/fedavg.py", "core/columns.py", "rng.py"} <= set(files)
    assert not {"partition/dirichlet.py", "cli/app.py"} & set(files), "they do their work before the round"


def test_a_tree_that_does_not_run_is_named(toy: Tree) -> None:
    with pytest.raises(SystemExit, match="there is no package coterie"):
        loaded(toy.folder.parent)
    package = toy.folder.rename(toy.folder.with_name("coterie"))
    with pytest.raises(SystemExit, match=r"it does not run \(ModuleNotFoundError: .*coterie.cli"):
        loaded(package.parent)


@pytest.mark.thorough
def test_the_command_tells_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    house = json.loads(capsys.readouterr().out)["here"]
    assert house["circles"] == 0
    assert house["files"] == sum(files for files, _ in house["folders"].values())
    assert house["walked_fedavg"] <= house["walked_pfedcs"] < house["loaded"] < house["files"]
