"""What a run looks like afterwards: who learned from whom as a matrix and as a picture, and all of it as a page."""

from __future__ import annotations

from coterie.report.learning import label_order, learning_matrix
from coterie.report.page import report
from coterie.report.pictures import Learning, picture

__all__ = ["Learning", "label_order", "learning_matrix", "picture", "report"]
