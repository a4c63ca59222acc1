"""A figure that a notebook shows by itself. Imported where one is drawn, since it needs matplotlib."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

DPI = 110


class ShownFigure(Figure):
    """A figure of its own, without `pyplot`: notebooks show a plain one only once somebody has loaded that."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=DPI)
        return out.getvalue()
