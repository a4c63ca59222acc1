"""What a run looks like afterwards: who learned from whom as a matrix and as a picture, and all of it as a page.

Public names are loaded when they are first used: launchers that run for days take pages from here, without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.report.learning import label_order, learning_matrix
    from coterie.report.page import report
    from coterie.report.pictures import Learning, picture

__all__ = ["Learning", "label_order", "learning_matrix", "picture", "report"]


def __getattr__(name: str) -> Any:
    if name in ("label_order", "learning_matrix"):
        from coterie.report import learning

        return getattr(learning, name)
    if name in ("Learning", "picture"):
        from coterie.report import pictures

        return getattr(pictures, name)
    if name == "report":
        from coterie.report.page import report

        return report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
