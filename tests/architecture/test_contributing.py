"""CONTRIBUTING.md shows the folders as the layers say they stand, and only what is there."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.test_layers import HOUSE, LAYERS
from tools.house import with_folders

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_table_lists_the_folders_from_the_ground_up() -> None:
    assert with_folders(PAGE, LAYERS, HOUSE.folder) == PAGE, "python -m tools.house --contributing writes the table"
    assert all(f"`{name}`" in PAGE or f"| `{name}/` |" in PAGE for names in LAYERS[:-2] for name in names)
