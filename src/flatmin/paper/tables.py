"""What passes between the parts of a reproduction: tables of studies, and figures made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flatmin.paper.claims import Claim


@dataclass(frozen=True, eq=False)
class StudyTables:
    """One study: a row per run, and the traces if it recorded any."""

    rows: pd.DataFrame
    traces: pd.DataFrame | None = None


Tables = Mapping[str, StudyTables]


@dataclass(frozen=True)
class Item:
    """One figure with its sentence, its studies and its claims."""

    id: str
    title: str
    sentence: str
    studies: tuple[str, ...]
    draw: Callable[[Tables], Figure]
    claims: Callable[[Tables], list[Claim]]
