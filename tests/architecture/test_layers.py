"""The folders are the architecture: an import points to an earlier layer, and no modules import each other in a circle.

Counted are all imports: of modules, within functions, and those for type checkers alone.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tools.house import Tree

HOUSE = Tree(Path(__file__).parents[2] / "src" / "coterie")

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
    ("topology",),
    ("server_steps",),
    ("robust",),
    ("privacy",),
    ("scenarios",),
    ("data",),
    ("partition",),
    ("models",),
    ("setup",),
    ("runs",),
    ("compare",),
    ("report",),
    ("loggers",),
    ("reproduce",),
    ("benchmark",),
    ("deployment", "serve"),
    ("testing",),
    ("cli", "__main__"),
    ("",),  # the package itself, which gathers the public names
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def layer(module: str) -> str:
    return module.partition(".")[0]


def test_every_module_stands_in_a_layer_and_every_layer_is_of_modules() -> None:
    assert {layer(module) for module in HOUSE.modules} == RANK.keys()


@pytest.mark.parametrize("module", sorted(HOUSE.modules))
def test_imports_point_to_earlier_layers(module: str) -> None:
    if module == "cli":
        assert "" not in HOUSE.imports[module]
    later = [name for name in HOUSE.imports[module] if RANK[layer(name)] > RANK[layer(module)]]
    assert not later, f"{module or 'coterie'} imports {', '.join(sorted(later))}, which stand above it"


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not HOUSE.circles()


def test_modules_are_loaded_by_their_names_in_the_listed_places_only() -> None:
    """Loading by string would go round these tests."""
    calls = {
        module
        for module, path in HOUSE.modules.items()
        if "import_module" in path.read_text(encoding="utf-8") or "__import__" in path.read_text(encoding="utf-8")
    }
    assert calls <= {"registry", "engines.ray.session"}, "import Ray and plug-ins by string, nothing else"


@pytest.mark.thorough
def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in HOUSE.modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_modules_are_of_readable_length() -> None:
    long = {module: n for module, path in HOUSE.modules.items() if (n := len(path.read_text().splitlines())) > 500}
    assert not long
