"""Whatever the repository's texts name of it is there: modules and what is in them, files by their paths."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

from tests.architecture.test_layers import HOUSE

ROOT = Path(__file__).parents[2]
ENDINGS = {".py", ".md", ".toml", ".yml", ".yaml", ".ipynb", ".service", ".sbatch", ".html", ".js", ".conf", ""}
# A name within the package; and the path of a Python file, seen from the repository, the package, or another root.
DOTTED = re.compile(r"(?<![\w./@:-])coterie((?:\.[A-Za-z_]\w*)+)\b(?!\{)")
PATH = re.compile(r"(?<![\w./~*{}<>$-])((?:[a-z_][\w-]*/)+[a-z_]\w*\.py)\b")
ROOTS = (ROOT, ROOT / "src", HOUSE.folder)
# What looks like a name of ours and is one of somebody else's, or of a thing that is no module.
OTHERS = {
    "coterie.plain",  # a key of an attribute
    "coterie.test",  # a note that workers leave
    "coterie.method",  # a property of ONNX files
    "system/main.py",  # PFLlib's
    "trainers/mrmtl.py",  # of the code that the page of MR-MTL names
    "pytorch/pfedgraph_cosine.py",  # of the code that the page of pFedGraph names
    "src/x.py",  # an example
}


@cache
def listed() -> list[str]:
    """The files that are kept in the repository."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


@cache
def texts() -> dict[str, str]:
    """Those that are texts, by path."""
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in listed() if Path(name).suffix in ENDINGS}


@cache
def names_in(module: str) -> frozenset[str]:
    """What a module binds, and the names that it spells out: some are loaded late."""
    tree = ast.parse(HOUSE.modules[module].read_text(encoding="utf-8"))
    bound: set[str] = {"__all__", "__file__", "__doc__", "__path__", "__name__"}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                bound.add(name)
            case ast.ImportFrom(module=str() as source, names=[ast.alias(name="*")]):
                bound |= names_in(source.removeprefix("coterie."))
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.Constant(value=str() as text) if text.isidentifier():
                bound.add(text)
    return frozenset(bound)


def missing(dotted: str) -> str:
    """The part of a dotted name, without `coterie.`, that is not there; nothing if all is."""
    module, rest = dotted, list[str]()
    while module not in HOUSE.modules:
        module, _, last = module.rpartition(".")
        rest.insert(0, last)
    return rest[0] if rest and rest[0] not in names_in(module) else ""


@cache
def groups() -> frozenset[str]:
    """The groups of entry points: the second argument of every registry."""
    calls = (node for text in HOUSE.sources.values() for node in ast.walk(ast.parse(text)))
    return frozenset(
        call.args[1].value
        for call in calls
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "Registry"
        and isinstance(call.args[1], ast.Constant)
    )


def test_every_name_of_the_package_in_a_text_is_there() -> None:
    allowed = OTHERS | groups() | {Path(name).name for name in listed()}
    named = {path: {match[0] for match in DOTTED.finditer(text)} - allowed for path, text in texts().items()}
    gone = {path: {name for name in names if missing(name.removeprefix("coterie."))} for path, names in named.items()}
    assert not {path: names for path, names in gone.items() if names}


def test_every_python_file_named_in_a_text_is_there() -> None:
    """In the tests they may be of examples, and what they open has to be there anyway."""
    own = {path: text for path, text in texts().items() if not path.startswith("tests/")}
    named = {path: {match[1] for match in PATH.finditer(text)} - OTHERS for path, text in own.items()}
    gone = {
        path: {name for name in names if not any((root / name).is_file() for root in (*ROOTS, (ROOT / path).parent))}
        for path, names in named.items()
    }
    assert not {path: names for path, names in gone.items() if names}


def test_names_that_are_not_there_are_noticed() -> None:
    assert missing("rounds.round.Rounds") == ""
    assert missing("rounds.square.Rounds") == "square"
    assert missing("rounds.round.Squares") == "Squares"
    assert missing("Experiment") == missing("FedAvg") == ""
    assert missing("FedAverage") == "FedAverage"
    assert [match[1] for match in PATH.finditer("see `rounds/square.py` and https://a.b/c/d.py")] == [
        "rounds/square.py"
    ]
    assert [match[0] for match in DOTTED.finditer("coterie.errors, a/coterie.toml")] == ["coterie.errors"]
