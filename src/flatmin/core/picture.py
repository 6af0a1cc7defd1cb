"""A figure that a notebook shows by itself, whether pyplot was imported or not."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class Picture(Figure):
    """What every `plot` returns."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=110)
        return content.getvalue()
