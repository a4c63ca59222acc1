"""`python -m tools.house [OLD]`: how large the house is, and how much of it one run and one round walk through.

OLD is a commit or a directory that holds `src/coterie`: its figures then stand beside those of the working tree. Some
are read from the text (files, lines of code, who imports whom), some from runs in fresh processes: the modules that a
plain recorded run loads, and the files of which a function runs in one recorded round. They are a thermometer: nothing
is squeezed or split to please them.

`--contributing` writes the table of folders in CONTRIBUTING.md, from the layers that the tests enforce and from each
folder's own first sentence.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
# To understand a round, one reads all that stands in this folder, but for what only shows how far it is.
ROUND_FOLDER, NO_PART_OF_IT = "rounds", ("rounds/__init__.py", "rounds/progress.py")
RUN_ROUND = "Rounds.run_round"
SMALL, FEW = 70, 2  # a module of so few lines and importers may have its place in another one
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING),
    tokenize.ENDMARKER,
}
BEGIN, END = "<!-- folders: written by `python -m tools.house --contributing` -->", "<!-- end of folders -->"


# What the text says.


def code_lines(source: str) -> int:
    r"""How many lines hold code: neither blank nor a comment nor part of a docstring.

    >>> code_lines("'A module.'\n\n# A comment.\nx = (\n    1,  # one\n)\n")
    3
    """
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str())) as docstring, *_]:
                    documented.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


@dataclass(frozen=True)
class Tree:
    """The modules of a package that lies in `folder`, read and never executed."""

    folder: Path

    @cached_property
    def modules(self) -> dict[str, Path]:
        """The files by dotted name: `core.layout` for `core/layout.py`, `core` for its `__init__.py`, "" for all."""
        return {self._dotted(path): path for path in sorted(self.folder.rglob("*.py"))}

    def _dotted(self, path: Path) -> str:
        parts = path.relative_to(self.folder).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def sources(self) -> dict[str, str]:
        """The text of every file, by its path below the package."""
        return {
            path.relative_to(self.folder).as_posix(): path.read_text(encoding="utf-8") for path in self.modules.values()
        }

    @cached_property
    def imports(self) -> dict[str, frozenset[str]]:
        """For every module those of the package that it imports, wherever in its text."""
        return {module: self._reached(module, _imported) for module in self.modules}

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """For every module those that import it, or name it in a registry (`coterie.methods.fedavg:FedAvg`)."""
        who: dict[str, set[str]] = {module: set() for module in self.modules}
        for module in self.modules:
            for reached in self.imports[module] | self._reached(module, _registered):
                who[reached].add(module)
        return who

    def _reached(self, module: str, names_in: Any) -> frozenset[str]:
        tree = ast.parse(self.modules[module].read_text(encoding="utf-8"))
        names = (name for node in ast.walk(tree) for name in names_in(node))
        own = self.folder.name
        reached = {self._existing(name[len(own) + 1 :]) for name in names if name == own or name.startswith(f"{own}.")}
        return frozenset(reached - {module})

    def _existing(self, name: str) -> str:
        """The longest part of a dotted name that is a module: what follows is a name within it."""
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return name

    def circles(self) -> list[str]:
        """The modules that import each other in a circle, one text a circle.

        >>> Tree(Path("src/coterie")).circles()
        []
        """
        done: set[str] = set()
        circles: list[str] = []

        def visit(module: str, path: tuple[str, ...]) -> None:
            if module in path:
                circles.append(" → ".join((*path[path.index(module) :], module)))
            elif module not in done:
                for name in sorted(self.imports[module]):
                    visit(name, (*path, module))
                done.add(module)

        for module in self.modules:
            visit(module, ())
        return circles

    def lone(self) -> list[str]:
        """Modules that might be part of another one: short, and imported by hardly anybody."""
        return [
            module
            for module, path in self.modules.items()
            if path.name not in ("__init__.py", "__main__.py")
            and len(path.read_text(encoding="utf-8").splitlines()) <= SMALL
            and len(self.importers[module]) <= FEW
        ]

    def round(self) -> list[str]:
        """The files that one reads to understand a round."""
        return [name for name in self.sources if name.startswith(f"{ROUND_FOLDER}/") and name not in NO_PART_OF_IT]


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        assert node.level == 0, "imports are absolute here"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _registered(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(str() as text) if re.fullmatch(r"\w+(\.\w+)*:\w+", text):
            yield text.partition(":")[0]


# What runs say, each in a process of its own.


def loaded(source: Path) -> list[str]:
    """The modules of the package that a plain recorded run of FedAvg has loaded when it is over."""
    words = ["run", "fedavg", "--rounds", "2", "--epochs", "1", "--out", "run"]
    code = (
        f"import json, sys, coterie.cli\nassert coterie.cli.main({words!r}) == 0\n"
        "print(json.dumps(sorted(name for name in sys.modules if name.partition('.')[0] == 'coterie')))"
    )
    modules: list[str] = _answer(source, ["-c", code])
    return modules


def walked(source: Path, method: str) -> list[str]:
    """The files of which a function runs in the second round of a small recorded run, by their paths in the package."""
    files: list[str] = _answer(source, [__file__, "--walk", method])
    return files


def _answer(source: Path, command: Sequence[str]) -> Any:
    """What a fresh process that imports a tree's package prints last, in JSON."""
    if not (source / "coterie" / "__init__.py").is_file():
        raise SystemExit(f"{source}: there is no package coterie in it")
    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        process = subprocess.run(
            [sys.executable, "-P", *command],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if process.returncode:
        raise SystemExit(f"{source}: it does not run ({(process.stderr.strip().splitlines() or ['no word'])[-1]})")
    return json.loads(process.stdout.splitlines()[-1])


class Walk:
    """Notes which files of the package run a function, from the start of the second round to its end."""

    def __init__(self, package: Path) -> None:
        self.package, self.rounds, self.within = f"{package}{os.sep}", 0, False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """What Python calls at every call and return (`sys.setprofile`)."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self.package):
            if code.co_qualname == RUN_ROUND:
                self.rounds += 1
                self.within = self.rounds == 2
            # The bodies of modules and classes are no functions: that they run says that something is loaded.
            if self.within and code.co_flags & inspect.CO_OPTIMIZED:
                self.files.add(Path(code.co_filename).relative_to(self.package).as_posix())
        elif event == "return" and code.co_qualname == RUN_ROUND:
            self.within = False


def walk(method: str) -> list[str]:
    """Run a method on the digits in this process, with a run directory, and give the files of its second round."""
    import coterie as ct

    assert ct.__file__ is not None
    noted = Walk(Path(ct.__file__).parent)
    experiment = ct.Experiment(
        method, "digits", ct.Dirichlet(clients=6, alpha=0.5), rounds=3, epochs=1, engine="serial", threads=1
    )
    threading.setprofile(noted)
    sys.setprofile(noted)
    try:
        experiment.run(out="run")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # this is how it is ended
    if noted.rounds < 2:
        raise SystemExit(f"{RUN_ROUND}: no such function was called twice")
    return sorted(noted.files)


# Both together.


@dataclass(frozen=True)
class House:
    """The figures of a tree."""

    files: int
    code: int
    loaded: int  # modules, by a plain recorded run
    walked_pfedcs: int  # files of which a function runs in one round
    walked_fedavg: int
    round_files: int  # to understand a round
    round_lines: int
    circles: int
    lone: int
    folders: Mapping[str, tuple[int, int]]  # files and lines of code

    @classmethod
    def of(cls, source: Path) -> House:
        """Count and run what lies in `source`, a folder that holds `coterie`."""
        tree = Tree(source / "coterie")
        folders: dict[str, tuple[int, int]] = {}
        for name, text in tree.sources.items():
            folder = name.partition("/")[0] if "/" in name else "."
            files, lines = folders.get(folder, (0, 0))
            folders[folder] = files + 1, lines + code_lines(text)
        return cls(
            files=len(tree.sources),
            code=sum(lines for _, lines in folders.values()),
            loaded=len(loaded(source)),
            walked_pfedcs=len(walked(source, "pfedcs")),
            walked_fedavg=len(walked(source, "fedavg")),
            round_files=len(tree.round()),
            round_lines=sum(len(tree.sources[name].splitlines()) for name in tree.round()),
            circles=len(tree.circles()),
            lone=len(tree.lone()),
            folders=folders,
        )


WORDS = {
    "files": "files",
    "code": "lines of code",
    "loaded": "modules that a plain recorded run loads",
    "walked_pfedcs": "files that run in a recorded round of PFedCS",
    "walked_fedavg": "files that run in a recorded round of FedAvg",
    "round_files": "files to understand a round",
    "round_lines": "lines of these",
    "circles": "import cycles",
    "lone": f"modules of at most {SMALL} lines with at most {FEW} importers",
}


def show(console: Console, houses: Mapping[str, House]) -> None:
    """The figures of one tree or of several, side by side."""
    figures, folders = Table("", *houses), Table("folder", *houses, caption="files, lines of code")
    for name, words in WORDS.items():
        figures.add_row(words, *(f"{getattr(house, name):,}" for house in houses.values()))
    for folder in sorted({folder for house in houses.values() for folder in house.folders}):
        cells = (house.folders.get(folder) for house in houses.values())
        folders.add_row(folder, *("–" if cell is None else f"{cell[0]}, {cell[1]:,}" for cell in cells))
    for table in (figures, folders):
        for column in table.columns[1:]:
            column.justify = "right"
        console.print(table)


# The table in CONTRIBUTING.md.


def folders_table(layers: Sequence[Sequence[str]], package: Path) -> str:
    """The folders from the ground up as a table, each with the first sentence of what it says of itself."""
    ground, *others = layers
    rows = [f"| {', '.join(f'`{name}`' for name in sorted(ground))} | the ground: modules without a folder |"]
    for name in (name for layer in others for name in layer if name and (package / name).is_dir()):
        docstring = ast.get_docstring(ast.parse((package / name / "__init__.py").read_text(encoding="utf-8"))) or ""
        sentence = " ".join(docstring.partition("\n\n")[0].split()).partition(". ")[0]
        rows.append(f"| `{name}/` | {sentence.removesuffix('.')} |")
    return "\n".join(("| | |", "|---|---|", *rows))


def with_folders(page: str, layers: Sequence[Sequence[str]], package: Path) -> str:
    """A page with that table between its two comments."""
    block = f"{BEGIN}\n\n{folders_table(layers, package)}\n\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the figures, or write the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", nargs="?", help="a commit or a directory with src/coterie, to show beside this tree")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--contributing", action="store_true", help="write the table of folders in CONTRIBUTING.md")
    parser.add_argument("--walk", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.walk:
        print(json.dumps(walk(options.walk)))
        return 0
    if options.contributing:
        from tests.architecture.test_layers import LAYERS

        page = ROOT / "CONTRIBUTING.md"
        text = with_folders(page.read_text(encoding="utf-8"), LAYERS, ROOT / "src" / "coterie")
        page.write_text(text, encoding="utf-8")
        return 0
    from tools.golden import checked_out

    with tempfile.TemporaryDirectory(prefix="house-") as folder:
        houses = {}
        if options.old:
            houses[options.old] = House.of(checked_out(options.old, ROOT, Path(folder).resolve()))
        houses["here"] = House.of(ROOT / "src")
    if options.json:
        print(json.dumps({name: asdict(house) for name, house in houses.items()}))
    else:
        show(Console(), houses)
    return 0


if __name__ == "__main__":
    sys.exit(main())
