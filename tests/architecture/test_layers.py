"""The folders are the architecture: an import points to an earlier layer, and no modules import each other in a circle.

Counted are all imports: of modules, within functions, and those for type checkers alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "coterie"

# From the ground up. A module may import from its own line and from the lines above it.
LAYERS = (
    (
        "errors",
        "rng",
        "files",
        "options",
        "registry",
        "devices",
        "display",
        "interrupts",
        "one_core",
        "processes",
        "typed",
        "version",
    ),
    ("core",),
    ("client",),
    ("maths",),
    ("methods",),
    ("engines",),
    ("rounds",),
    ("data",),
    ("partition",),
    ("models",),
    ("setup",),
    ("runs",),
    ("compare",),
    ("report",),
    ("loggers",),
    ("reproduce",),
    ("deployment", "serve"),
    ("testing",),
    ("cli", "__main__"),
    ("",),  # the package itself, which gathers the public names
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def module_name(path: Path) -> str:
    """`core.layout` for `core/layout.py`, `core` for `core/__init__.py`, nothing for the package."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def imports_of(module: str) -> frozenset[str]:
    """The modules of the package that a module imports, wherever in its text."""
    found = set()
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        for name in _imported(node):
            if name == "coterie" or name.startswith("coterie."):
                found.add(_existing(name.removeprefix("coterie").removeprefix(".")))
    return frozenset(found - {module})


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        assert node.level == 0, "imports are absolute here"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _existing(name: str) -> str:
    """The longest part of a dotted name that is a module: what follows is a name within it."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


def layer(module: str) -> str:
    return module.partition(".")[0]


def test_every_module_stands_in_a_layer() -> None:
    assert {layer(module) for module in modules()} <= RANK.keys()


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_point_to_earlier_layers(module: str) -> None:
    if module == "cli":
        assert "" not in imports_of(module)
    later = [name for name in imports_of(module) if RANK[layer(name)] > RANK[layer(module)]]
    assert not later, f"{module or 'coterie'} imports {', '.join(sorted(later))}, which stand above it"


def test_no_modules_import_each_other_in_a_circle() -> None:
    order: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            circle = (*path[path.index(module) :], module)
            raise AssertionError(" → ".join(circle))
        if module not in order:
            for name in sorted(imports_of(module)):
                visit(name, (*path, module))
            order[module] = len(order)

    for module in modules():
        visit(module, ())


def test_modules_are_loaded_by_their_names_in_the_listed_places_only() -> None:
    """Loading by string would go round these tests. The public names are loaded when they are first used."""
    calls = {
        module
        for module, path in modules().items()
        if "import_module" in path.read_text(encoding="utf-8") or "__import__" in path.read_text(encoding="utf-8")
    }
    assert calls <= {"", "registry", "engines.ray.session"}, "import Ray and plug-ins by string, nothing else"


@pytest.mark.thorough
def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_modules_are_of_readable_length() -> None:
    long = {module: n for module, path in modules().items() if (n := len(path.read_text().splitlines())) > 500}
    assert not long
