"""A figure that a notebook shows by itself, whether pyplot was imported or not.

matplotlib is imported here first. It reads its settings from the first `matplotlibrc` it finds, in
this folder before all others; a pipe or a device of that name would be read for ever.
"""

from __future__ import annotations

import os
from io import BytesIO
from os.path import exists, expanduser, isdir, isfile, join

from flatmin.core.errors import SettingError


def _check_settings() -> None:
    name, chosen = "matplotlibrc", os.environ.get("MATPLOTLIBRC", "")
    mine = os.environ.get("XDG_CONFIG_HOME") or expanduser("~/.config")
    folders = (chosen, os.environ.get("MPLCONFIGDIR", ""), join(mine, "matplotlib"))
    for place in (name, chosen, *(join(folder, name) for folder in folders)):
        if exists(place) and not (isfile(place) or isdir(place) or place == os.devnull):
            raise SettingError(f"matplotlib would read its settings from {place!r}: it is no file")


_check_settings()

from matplotlib.figure import Figure  # noqa: E402


class Picture(Figure):
    """What every `plot` returns."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=110)
        return content.getvalue()
