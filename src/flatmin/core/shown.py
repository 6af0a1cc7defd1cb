"""Records: what a computation returns, as people, notebooks and scripts see it.

A subclass of `Shown` is a frozen dataclass with keyword-only fields; nothing else is written at
the class. It has a one-line `repr`, its page (see `pages`) as `str` and as HTML, and `as_dict`.
What it shows besides its fields it says in `contents` and `page`.

>>> class Rate(Shown):
...     value: float
...     init: str = "pytorch"
>>> rate = Rate(value=0.25)
>>> rate, rate.as_dict()
(Rate(value=0.25, init='pytorch'), {'value': 0.25, 'init': 'pytorch'})
>>> print(rate)
 Rate
 ───────────────
 value   0.25
 init    pytorch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, dataclass_transform

from flatmin.core.pages import Listing, Page, html, number, text
from flatmin.core.plain import plain

_SHORT = 60


@dataclass_transform(
    frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,)
)
class Shown:
    """The base of all records."""

    def __init_subclass__(cls, eq: bool = False) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True, repr=False, eq=eq)(cls)

    def contents(self) -> Mapping[str, Any]:
        """Names and values for `as_dict`: the fields, but those that repr leaves out."""
        shown: Any = fields(self)  # type: ignore[arg-type]
        return {one.name: getattr(self, one.name) for one in shown if one.repr}

    def as_dict(self) -> dict[str, Any]:
        """The record as plain values, ready for JSON; what is not finite is None."""
        found: dict[str, Any] = plain(self)
        return found

    def page(self) -> Page:
        """What `str` and a notebook show, and the command prints."""
        rows = [
            (name.replace("_", " "), _word(one, quoted=False))
            for name, one in self.contents().items()
        ]
        return [Listing((type(self).__name__, ""), rows)]

    def __repr__(self) -> str:
        plainly = [
            f"{name}={_word(value)}"
            for name, value in self.contents().items()
            if value is None or isinstance(value, str | bool | int | float | Enum | Path)
        ]
        return f"{type(self).__name__}({', '.join(plainly)})"

    def __str__(self) -> str:
        return text(self.page())

    def _repr_html_(self) -> str:
        return html(self.page())


def _word(value: Any, quoted: bool = True) -> str:
    """A value in one line."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str) and not quoted:
        return value if len(value) <= _SHORT else f"{value[:_SHORT]}..."
    words = repr(plain(value))
    end = "...'" if quoted else "..."
    return words if len(words) <= _SHORT else f"{words[:_SHORT]}{end}"
