"""What a run looks like afterwards: who learned from whom as a matrix and as a picture, and all of it as a page.

Public names are loaded when they are first used: launchers that run for days take pages from here, without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.registry import on_first_use

if TYPE_CHECKING:
    from coterie.report.figures import Learning as Learning
    from coterie.report.figures import picture as picture
    from coterie.report.learning import label_order as label_order
    from coterie.report.learning import learning_matrix as learning_matrix
    from coterie.report.page import report as report

__getattr__ = on_first_use(__name__, __file__)
