"""What passes between the parts of a reproduction: tables of studies, and figures made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flatmin.paper.claims import Claim


@dataclass(frozen=True, eq=False)
class StudyTables:
    """One study: a row per run, and the traces, empty if it recorded none."""

    rows: pd.DataFrame
    traces: pd.DataFrame = field(default_factory=pd.DataFrame)


Tables = Mapping[str, StudyTables]


@dataclass(frozen=True)
class Item:
    """One figure with its sentence, its studies and its claims."""

    id: str
    title: str
    sentence: str
    studies: tuple[str, ...]
    draw: Callable[[Tables], Figure]
    claims: Callable[[Tables], list[Claim]] = lambda tables: []

    @property
    def beyond(self) -> bool:
        """Whether it goes beyond the paper."""
        return self.id.startswith("beyond")

    @property
    def heading(self) -> str:
        """Its title in the report."""
        return self.title if self.beyond else f"Figure {self.id}. {self.title}"
